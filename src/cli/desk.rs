//! A cluster in Kubernetes, from wherever a kubeconfig is: `status`, `plan`, `diff` and `backup` with `--cluster` or `-n`, or
//! under the name `kubectl-etcd`.
//!
//! kubectl is the way there, with every way of signing in that it knows. The object's status tells what a host's agent
//! tells; commands about snapshots run in the Pod of the backup worker, where the snapshots and the keys are.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Cli, ClusterArgs, FAILED, Failure, Outcome, USAGE};
use crate::api::EtcdCluster;
use crate::controller::{CONTAINER, PROGRAM, backup_pod};
use crate::member::pod::is_of_worker;

/// The plugin's name: kubectl runs it as `kubectl etcd`.
const PLUGIN: &str = "kubectl-etcd";
/// An object is smaller (etcd's limit of a request).
const OBJECT_MAX: u64 = 2 << 20;
/// kubectl gives up an API server after this.
const PATIENCE: &str = "--request-timeout=20s";
const KIND: &str = "etcdclusters.etcd.edge-operator.io";

/// Whether this process is kubectl's plugin.
pub(super) fn is_plugin() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name).file_name() == Some(OsStr::new(PLUGIN))
}

/// A cluster in Kubernetes has no such files, and to leave them out in silence would answer another question.
pub(super) fn refuse_files_of_a_host(cli: &Cli) -> Result<(), Failure> {
    let given = cli.config.is_some() || cli.root != Path::new("/");
    if given && cli.command.cluster().is_some_and(Desk::is_meant) {
        let text = "--root and --config name files of this host: leave them out for a cluster in Kubernetes";
        return Err(Failure::new(USAGE, text));
    }
    Ok(())
}

/// A cluster in Kubernetes, and the way to it.
pub(super) struct Desk {
    /// Before kubectl's own words: of k3s.
    program: Vec<OsString>,
    /// `-n`, `--context` and `--kubeconfig`.
    flags: Vec<OsString>,
    cluster: String,
}

/// What is said of an object whose last edit its status does not know.
pub(super) const UNSEEN: &str = "the operator has not seen the last edit yet";

/// Whether that is so.
pub(super) fn is_unseen(object: &EtcdCluster) -> bool {
    let seen = object
        .status
        .as_ref()
        .map_or(0, |it| it.observed_generation);
    object.metadata.generation.is_some_and(|it| it != seen)
}

impl Desk {
    /// Whether these arguments mean a cluster in Kubernetes. In the Pod of a worker they are those that a desk was given.
    pub(super) fn is_meant(arguments: &ClusterArgs) -> bool {
        let ClusterArgs {
            cluster,
            namespace,
            context,
            kubeconfig,
        } = arguments;
        let given = cluster.is_some() || namespace.is_some() || context.is_some();
        (given || kubeconfig.is_some() || is_plugin()) && !is_of_worker()
    }

    /// None: they mean this host.
    pub(super) fn of(arguments: &ClusterArgs) -> Result<Option<Self>, Failure> {
        Self::is_meant(arguments)
            .then(|| Self::to(arguments, None))
            .transpose()
    }

    /// The way there. `otherwise`: the cluster, where the arguments name none.
    pub(super) fn to(arguments: &ClusterArgs, otherwise: Option<&str>) -> Result<Self, Failure> {
        let mut flags = Vec::new();
        let mut flag = |name: &str, value: Option<&OsStr>| {
            if let Some(value) = value {
                flags.extend([OsString::from(name), value.to_owned()]);
            }
        };
        flag("--namespace", arguments.namespace.as_ref().map(OsStr::new));
        flag("--context", arguments.context.as_ref().map(OsStr::new));
        let file = arguments.kubeconfig.as_deref().map(Path::as_os_str);
        flag("--kubeconfig", file);
        let mut desk = Desk {
            program: kubectl()?,
            flags,
            cluster: String::new(),
        };
        desk.cluster = match arguments.cluster.as_deref().or(otherwise) {
            Some(named) => named.to_owned(),
            None => desk.only_one()?,
        };
        Ok(desk)
    }

    /// The name of the only cluster of the namespace.
    fn only_one(&self) -> Result<String, Failure> {
        let names = self.read(&["get", KIND, "-o", "jsonpath={.items[*].metadata.name}"])?;
        let names = String::from_utf8_lossy(&names).into_owned();
        let names: Vec<&str> = names.split_whitespace().collect();
        match names.as_slice() {
            [only] => Ok((*only).to_owned()),
            [] => Err(Failure::new(
                FAILED,
                "there is no EtcdCluster in this namespace: name another one with -n",
            )),
            several => Err(Failure::new(
                USAGE,
                format!(
                    "there are {} clusters in this namespace, {}: name one with --cluster",
                    several.len(),
                    several.join(", ")
                ),
            )),
        }
    }

    /// The object.
    pub(super) fn object(&self) -> Result<EtcdCluster, Failure> {
        let text = self.read(&["get", KIND, &self.cluster, "-o", "json"])?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn command(&self) -> Command {
        #[expect(clippy::disallowed_methods, reason = "a person asks by kubectl")]
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]).args(&self.flags);
        command
    }

    /// What kubectl prints.
    fn read(&self, words: &[&str]) -> Result<Vec<u8>, Failure> {
        let mut child = self
            .command()
            .args(words)
            .arg(PATIENCE)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let mut text = Vec::new();
        if let Some(out) = child.stdout.take() {
            out.take(OBJECT_MAX).read_to_end(&mut text)?;
        }
        if child.wait()?.success() {
            return Ok(text);
        }
        let text = format!("kubectl {} failed, for the reason above", words.join(" "));
        Err(Failure::new(FAILED, text))
    }

    /// Runs this very command in the Pod of the cluster's backup worker, without what leads there and stands before it.
    /// kubectl's exit code is the command's.
    pub(super) fn in_worker(&self, arguments: impl Iterator<Item = OsString>) -> Outcome {
        let mut command = self.command();
        command.arg("exec");
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            command.arg("-it"); // it may ask
        }
        command
            .args([&backup_pod(&self.cluster), "-c", CONTAINER, "--", PROGRAM])
            .args(from_the_command(arguments.skip(1)));
        Err(command.exec().into())
    }
}

/// Without the options before the command. Each of those takes a value.
fn from_the_command(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut arguments = arguments.peekable();
    while let Some(option) = arguments.next_if(|it| it.as_bytes().starts_with(b"-")) {
        let text = option.as_bytes();
        let short = !text.starts_with(b"--");
        if !(text.contains(&b'=') || short && text.len() > 2) {
            arguments.next();
        }
    }
    arguments
}

/// kubectl, or the one in k3s.
fn kubectl() -> Result<Vec<OsString>, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&path).any(|it| it.join(name).is_file());
    if there("kubectl") {
        Ok(vec!["kubectl".into()])
    } else if there("k3s") {
        Ok(vec!["k3s".into(), "kubectl".into()])
    } else {
        let text = "a cluster in Kubernetes is asked by kubectl, which is not in PATH: kubernetes.io/docs/tasks/tools";
        Err(Failure::new(FAILED, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_to_the_worker_stays_here() {
        for (line, rest) in [
            ("backup list", "backup list"),
            ("-n shop backup list -o json", "backup list -o json"),
            (
                "--namespace=backup --context c backup list -n x",
                "backup list -n x",
            ),
            (
                "-nshop --cluster till --kubeconfig=a backup create",
                "backup create",
            ),
        ] {
            let words = line.split(' ').map(OsString::from);
            let found: Vec<OsString> = from_the_command(words).collect();
            assert_eq!(found.join(OsStr::new(" ")), rest, "{line}");
        }
    }
}
