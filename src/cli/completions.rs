//! `completions`: the script with which a shell completes the commands.

use std::string::FromUtf8Error;

use clap_complete::Generator;
use clap_complete::aot::{Bash, Fish, Zsh};

use super::arguments::{self, Shell};
use super::{DONE, Outcome, print};

pub(super) fn completions(shell: Shell) -> Outcome {
    let script = match shell {
        // clap_complete 4.6 names a program with a dash in two ways, and bash would complete no further
        // than its first word.
        Shell::Bash => script(Bash)?.replace("etcd__subcmd__operator", "etcd__operator"),
        Shell::Zsh => script(Zsh)?,
        Shell::Fish => script(Fish)?,
    };
    print::text(&script)?;
    Ok(DONE)
}

fn script(shell: impl Generator) -> Result<String, FromUtf8Error> {
    let mut script = Vec::new();
    let mut command = arguments::commands();
    clap_complete::generate(shell, &mut command, "etcd-operator", &mut script);
    String::from_utf8(script)
}
