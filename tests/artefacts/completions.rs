//! What bash, zsh and fish complete, each by the file that is installed for it.

use std::path::Path;
use std::process::Command;

use crate::{checkout, skip, text};

/// What a shell's program prints, with the program that is tested first in its path; none where the shell
/// is not installed.
fn shell(name: &str, arguments: &[&str]) -> Option<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_etcd-operator"));
    let before = std::env::var("PATH").unwrap();
    let path = format!("{}:{before}", program.parent().unwrap().display());
    let mut command = Command::new(name);
    command.args(arguments).env("PATH", path).env("LC_ALL", "C");
    let Ok(output) = command
        .current_dir(checkout().join("systemd/completions"))
        .output()
    else {
        skip(&format!("{name} is not installed"));
        return None;
    };
    let errors = text(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{name}: {errors}"
    );
    Some(text(&output.stdout))
}

/// Each of the words stands in what was offered, and nothing that the help hides.
#[track_caller]
fn assert_offered(offered: &str, words: &[&str]) {
    let terminal = regex::Regex::new(r"\x1b\[[0-9;?]*[A-Za-z]").unwrap();
    let plain = terminal.replace_all(offered, " ");
    let there: Vec<&str> = plain.split_ascii_whitespace().collect();
    for word in words {
        assert!(there.contains(word), "{word} is not in {offered}");
    }
    for hidden in ["worker", "--contents"] {
        assert!(!there.contains(&hidden), "{hidden} is in {offered}");
    }
}

/// What each shell offers for a line that is not finished.
const OFFERED: [(&str, &[&str]); 4] = [
    (
        "etcd-operator ",
        &["status", "backup", "convert", "completions"],
    ),
    (
        "etcd-operator backup ",
        &["create", "list", "verify", "prune"],
    ),
    ("etcd-operator status --output ", &["json", "yaml", "table"]),
    ("etcd-operator certs issue --", &["--owner", "--renew"]),
];

#[track_caller]
fn assert_completes(offered: impl Fn(&str) -> Option<String>) {
    for (line, words) in OFFERED {
        let Some(offered) = offered(line) else {
            return;
        };
        assert_offered(&offered, words);
    }
}

#[test]
fn bash_completes_commands_flags_and_their_values() {
    let offered = |line: &str| {
        let script = format!(
            "source ./etcd-operator; line='{line}'; COMP_WORDS=($line); [[ $line != *' ' ]] || COMP_WORDS+=('')
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE=$line COMP_POINT=${{#line}}
            set -- etcd-operator \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"
            [[ $(complete -p etcd-operator) =~ -F\\ ([^ ]+) ]]; ${{BASH_REMATCH[1]}} \"$@\"; echo \"${{COMPREPLY[@]}}\""
        );
        shell("bash", &["--norc", "-c", &script])
    };
    assert_completes(offered);
    if let Some(first) = offered("etcd-operator ") {
        assert_offered(&first, &["--root"]);
    }
}

#[test]
fn fish_completes_commands_flags_and_their_values() {
    let offered = |line: &str| {
        let script = format!("source ./etcd-operator.fish; complete -C '{line}'");
        shell("fish", &["--no-config", "-c", &script])
    };
    assert_completes(offered);
}

/// zsh completes on a terminal alone: one of its own, in which each Tab's list is asked for.
#[test]
fn zsh_completes_commands_flags_and_their_values() {
    let offered = |line: &str| {
        let script = format!(
            "zmodload zsh/zpty; fpath=($PWD $fpath)
            zpty shop zsh -f -i
            zpty -w shop \"fpath=($PWD \\$fpath); autoload -Uz compinit; compinit -D -u\"
            zpty -w shop 'zstyle \":completion:*\" insert-tab false; PS1=be\"\"gun'
            zpty -r shop text '*begun*'
            zpty -n -w shop $'{line}\\t\\t'
            zpty -n -w shop $'\\x15echo en\"\"ded\\n'
            zpty -r shop text '*ended*'
            print -r -- $text"
        );
        shell("zsh", &["-f", "-c", &script])
    };
    assert_completes(offered);
}
