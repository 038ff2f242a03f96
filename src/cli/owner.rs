//! Root and the state directory of another user.
//!
//! Under systemd the state belongs to the user etcd-operator. What that user could exchange, programs and
//! links among them, is neither run nor followed with root's rights: what root asks is done as that user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;

use super::{CertsCommand, Command, Context, DriverChoice, EtcdCommand, Failure, USAGE};
use crate::process;

/// Goes on as the owner of the state directory, where root asks and the owner is another. Commands that
/// need root stay root; those that would run the owner's programs as root are refused.
pub(super) fn act_as_owner(context: &Context, command: &Command) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = match fs::metadata(&context.paths.lib) {
        Ok(it) if it.uid() != 0 => (it.uid(), it.gid()),
        _ => return Ok(()),
    };
    match command {
        Command::Status(_)
        | Command::Plan(_)
        | Command::Env(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Certs(CertsCommand::List(_) | CertsCommand::Issue { .. })
        | Command::Etcd(EtcdCommand::List(_)) => {}
        Command::Guard(_) => return Err(refused(context, uid)),
        Command::Agent(it) if it.driver != DriverChoice::Systemd => {
            return Err(refused(context, uid));
        }
        // The unit's agent by its drop-in, what installs programs, what looks at rights, what prints.
        Command::Agent(_)
        | Command::Etcd(EtcdCommand::Install { .. })
        | Command::Unit(_)
        | Command::Preflight(_)
        | Command::VerifySnapshot { .. }
        | Command::Controller(_)
        | Command::Manifests { .. }
        | Command::Init(_)
        | Command::Crd => return Ok(()),
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "this program itself, with fewer rights"
    )]
    let mut again = std::process::Command::new(process::own_executable()?);
    let error = again
        .args(std::env::args_os().skip(1))
        .uid(uid)
        .gid(gid)
        .exec();
    Err(error.into())
}

fn refused(context: &Context, uid: u32) -> Failure {
    let text = format!(
        "{} belongs to the user {uid}, whose programs are not run as root: start it by its unit, or as that user",
        context.paths.lib.display()
    );
    Failure::new(USAGE, text)
}
