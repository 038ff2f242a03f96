//! Commands and their flags: a contract, since scripts rely on them.

mod backup;
mod groups;
mod restore;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::print::Output;
use crate::telemetry::LogFormat;

pub(in crate::cli) use backup::{BackupArgs, BackupCommand, DeleteArgs};
pub use groups::commands;
pub(super) use groups::{command, is_of_plugin};
pub(in crate::cli) use restore::{CleanArgs, RestoreArgs, RestoreCommand};

/// Options that every command has stand apart from its own.
const EVERYWHERE: &str = "Everywhere";
/// Options that name a cluster in Kubernetes, too.
const IN_KUBERNETES: &str = "Of a cluster in Kubernetes, by kubectl";

/// Keeps an etcd cluster alive at the edge.
#[derive(Debug, Parser)]
#[command(
    name = "etcd-operator",
    version,
    after_help = "Start with: sudo etcd-operator init"
)]
pub(super) struct Cli {
    /// Puts /etc/etcd-operator, /var/lib/etcd-operator and /run/etcd-operator under DIR
    #[arg(
        long,
        global = true,
        help_heading = EVERYWHERE,
        value_name = "DIR",
        default_value = "/"
    )]
    pub(super) root: PathBuf,
    /// The document, instead of /etc/etcd-operator/cluster.yaml
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Writes the first document, from what it finds on this host
    #[command(
        after_help = "The cluster gets the host's name, and etcd the newest version in the store. A document that\nexists already stays.\n\nExample:\n  sudo etcd-operator init\n  sudo etcd-operator init --name till-17"
    )]
    Init(InitArgs),
    /// Keeps etcd alive on this host until SIGTERM, which leaves etcd running
    #[command(
        after_help = "Reads the document, starts etcd with mutual TLS and keeps it alive. SIGHUP reads the\ndocument again; SIGTERM ends the operator and leaves etcd running.\n\nExample:\n  etcd-operator etcd install --from ./etcd-v3.6.16-linux-arm64 3.6.16\n  etcd-operator agent"
    )]
    Agent(AgentArgs),
    /// Keeps etcd alive in Kubernetes, from EtcdCluster objects
    #[command(
        after_help = "The DaemonSet of deploy/etcd-operator.yaml runs this. It needs POD_NAME, POD_NAMESPACE and\nNODE_NAME in its environment.\n\nExample:\n  etcd-operator manifests | kubectl apply -f -"
    )]
    Controller(ControllerArgs),
    /// Prints the objects that run the controller in Kubernetes: RBAC and a DaemonSet
    #[command(
        after_help = "Example:\n  etcd-operator manifests --image registry.example/etcd-operator:1 | kubectl apply -f -\n  etcd-operator manifests --namespaces shop,till | kubectl apply -f -"
    )]
    Manifests {
        /// The operator's image
        #[arg(long)]
        image: Option<String>,
        /// Clusters of these namespaces alone: Roles in each of them instead of a ClusterRole
        #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = namespace)]
        namespaces: Vec<String>,
    },
    /// Converts documents of CoreOS' etcd operator (v1beta2) into ours
    #[command(
        after_help = "Our documents go to stdout; for each old field, a line on stderr says what became of it. Exits with 0\nwhen nothing is open, with 3 where a line says `decide`, with 2 when there is nothing to convert.\n\nExample:\n  kubectl get etcdclusters.etcd.database.coreos.com -o yaml | etcd-operator convert - > shop.yaml"
    )]
    Convert {
        /// The documents; - is standard input
        file: PathBuf,
    },
    /// Prints the script with which a shell completes these commands
    #[command(
        after_help = "The packages bring it for all three shells.\n\nExample:\n  eval \"$(etcd-operator completions bash)\"\n  etcd-operator completions fish > ~/.config/fish/completions/etcd-operator.fish"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Checks what etcd needs, then starts it; service managers call this
    #[command(
        after_help = "Every start of etcd goes through here. It checks identity, data, certificates and earlier\nstarts, then becomes etcd. A refusal exits with 3 and the reason.\n\nExample:\n  etcd-operator guard --detach"
    )]
    Guard(GuardArgs),
    /// Prints etcd's systemd unit for this document; --install writes and enables it
    #[command(
        after_help = "The operator's unit runs it with --install, as root, before each start.\n\nExample:\n  etcd-operator unit"
    )]
    Unit(UnitArgs),
    /// Shows conditions, members, certificates; exits with 0 when available
    #[command(
        after_help = "The first line says OK, or what needs attention and what to do next.\n\nExample:\n  etcd-operator status\n  etcd-operator status --watch\n  etcd-operator status -o json | jq .host.etcd.clientURL\n  etcd-operator status -n shop --cluster till"
    )]
    Status(StatusArgs),
    /// Shows the next step, or the hold, and what the document on disk would change
    #[command(
        after_help = "Exits with 3 when held, with 2 when the document is bad.\n\nExample:\n  etcd-operator plan\n  etcd-operator plan -n shop --cluster till"
    )]
    Plan(PlanArgs),
    /// Shows what a document would change: restarts of etcd; what waits or is refused
    #[command(
        after_help = "Changes nothing. Exits with 0 when the whole document can be applied, even with a restart of\netcd; with 2 when it is bad, every problem on stderr; with 3 when a part of it waits or is\nrefused. Any user may check a file; without rights it is not compared with the one in force.\n\nExample:\n  etcd-operator diff\n  etcd-operator diff ./cluster.yaml -o json | jq .changes[].effect\n  etcd-operator diff -n shop ./till.yaml"
    )]
    Diff(DiffArgs),
    /// Makes the agent read its document again; exits with 2 when the agent refuses it
    #[command(
        after_help = "systemctl reload etcd-operator runs this. It prints what the document changes. Exits with 2 when the\ndocument is refused and the one before stays in force; with 3 when a part of it waits or is refused.\n\nExample:\n  etcd-operator reload"
    )]
    Reload(OutputArgs),
    /// Prints how a program connects: etcdctl, k3s, kubeadm or Patroni
    #[command(
        after_help = "With the certificate of the client of the program's name, where the document or certs issue has one,\nelse with the one of admin.\n\nExample:\n  eval \"$(etcd-operator env)\"; etcdctl endpoint health\n  k3s server $(etcd-operator env --for k3s)\n  etcd-operator env --for patroni --tls /etc/patroni/tls >> /etc/patroni/config.yml"
    )]
    Env(EnvArgs),
    /// Pauses the operator, such as while a person works on etcd; ends by itself
    #[command(
        after_help = "etcd runs on; systemd restarts it after a crash, and leaves it stopped after a person stopped\nit. A reboot also ends a pause. For a pause without an end, set paused: true in the document.\n\nExample:\n  sudo etcd-operator pause 30m\n  sudo etcd-operator pause 0"
    )]
    Pause {
        /// For how long, such as 30m or 2h, at most 7d; 0 ends a pause
        #[arg(value_name = "DURATION")]
        duration: String,
    },
    /// Ends a pause
    #[command(after_help = "Example:\n  sudo etcd-operator resume")]
    Resume,
    /// Runs etcdctl with the right addresses and certificates
    #[command(
        after_help = "The etcdctl of the store, of the version that runs, as the client admin. It gets all\narguments after etcdctl, and its exit code is returned.\n\nExample:\n  sudo etcd-operator etcdctl get --prefix /registry\n  sudo etcd-operator etcdctl endpoint status -w table"
    )]
    Etcdctl {
        /// As etcdctl takes them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Checks whether this host is fit: rights, disk, kernel, power supply, clock
    #[command(
        after_help = "Exits with 1 if it is not. Writes up to 22 MB to the data's disk, for at most 10 s, to see how\nfast it syncs.\n\nExample:\n  sudo etcd-operator preflight"
    )]
    Preflight(PreflightArgs),
    /// Installs versions of etcd in the store, and lists them
    #[command(subcommand)]
    Etcd(EtcdCommand),
    /// Lists, issues, accepts and removes certificates of the cluster and its clients
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Takes, lists, verifies, copies and removes snapshots
    #[command(
        after_help = "Of a cluster in Kubernetes they run in the Pod of its backup worker.\n\nExample:\n  etcd-operator backup list\n  etcd-operator backup list -n shop --cluster till"
    )]
    Backup(BackupArgs),
    /// Replaces the member's data with a snapshot's; the old data is kept aside
    #[command(
        after_help = "The operator verifies the snapshot and makes new data from it while etcd still runs. Then it stops\netcd and exchanges the data. If etcd does not serve the new data, the old data comes back.\nRevisions go on 1,000,000,000 beyond the last one seen, so that clients with a cache notice.\n\nExample:\n  etcd-operator restore --dry-run\n  etcd-operator restore --from ./snapshot.db --yes\n  etcd-operator restore --undo --dry-run"
    )]
    Restore(RestoreArgs),
    /// Checks a snapshot file page by page, whoever made it
    #[command(
        after_help = "Prints what etcdutl snapshot status prints, in constant memory and without mapping the file.\nTakes files of this operator, etcdctl and k3s.\n\nExample:\n  etcd-operator verify-snapshot ./snapshot.db"
    )]
    VerifySnapshot {
        /// The file
        file: PathBuf,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Prints the version, as --version does
    Version,
    /// Explains a reason of status, an Event or an alert, and what to do
    #[command(
        after_help = "Examples:\n  etcd-operator explain DiskFull\n  etcd-operator explain \"shop-0: a majority of the members does not answer\"\n  etcd-operator explain"
    )]
    Explain(ExplainArgs),
    /// Prints the CustomResourceDefinition: the document's fields, explained
    #[command(after_help = "Example:\n  etcd-operator crd | kubectl apply -f -")]
    Crd,
}

impl Command {
    /// What of a command names a cluster in Kubernetes; none: it is of a host, or looks at neither.
    pub(super) fn cluster(&self) -> Option<&ClusterArgs> {
        let (Command::Status(StatusArgs { cluster, .. })
        | Command::Plan(PlanArgs { cluster, .. })
        | Command::Diff(DiffArgs { cluster, .. })
        | Command::Backup(BackupArgs { cluster, .. })) = self
        else {
            return None;
        };
        Some(cluster)
    }
}

/// A cluster in Kubernetes, as kubectl finds it.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Its name; left out: the only one of its namespace
    #[arg(long, global = true, help_heading = IN_KUBERNETES, value_name = "NAME")]
    pub(super) cluster: Option<String>,
    /// Its namespace
    #[arg(short, long, global = true, help_heading = IN_KUBERNETES, value_name = "NAMESPACE", value_parser = namespace)]
    pub(super) namespace: Option<String>,
    /// The kubeconfig's context
    #[arg(long, global = true, help_heading = IN_KUBERNETES, value_name = "CONTEXT")]
    pub(super) context: Option<String>,
    /// The kubeconfig
    #[arg(long, global = true, help_heading = IN_KUBERNETES, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A reason, the type of a condition, an alert, or a whole message in quotes; none: the list of all
    pub(super) reason: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// The cluster's name, instead of the host's
    #[arg(long)]
    pub(super) name: Option<String>,
    /// The version of etcd, instead of the newest in the store
    #[arg(long = "version", value_name = "VERSION", id = "etcd_version")]
    pub(super) etcd_version: Option<String>,
    /// Replaces the document that is there, and keeps it beside the new one
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    /// What runs etcd's process
    #[arg(long, value_enum, default_value_t = DriverChoice::Auto)]
    pub(super) driver: DriverChoice,
    /// Serves /metrics and /healthz on this loopback address, such as 127.0.0.1:2390; left out: nowhere
    #[arg(long, value_name = "ADDRESS")]
    pub(super) metrics_address: Option<SocketAddr>,
    /// How logs look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) log_format: LogFormat,
    /// How much is logged: error, warn, info, debug
    #[arg(long, default_value = "info")]
    pub(super) log_level: tracing::Level,
}

#[derive(Debug, Args)]
pub(super) struct ControllerArgs {
    /// Serves /metrics, /livez and /readyz on this port of the Pod
    #[arg(long, value_name = "PORT", default_value_t = crate::controller::manifests::PORT)]
    pub(super) port: u16,
    /// Repositories of etcd's images that a document may name
    #[arg(long, value_name = "PREFIX", default_values = crate::api::pod::IMAGE_PREFIXES)]
    pub(super) image_prefix: Vec<String>,
    /// Clusters of these namespaces alone; left out: of all
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = namespace)]
    pub(super) namespaces: Vec<String>,
    /// How logs look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) log_format: LogFormat,
    /// How much is logged: error, warn, info, debug
    #[arg(long, default_value = "info")]
    pub(super) log_level: tracing::Level,
}

fn namespace(text: &str) -> Result<String, String> {
    if crate::cluster::is_dns_label(text) && text.len() <= 63 {
        return Ok(text.to_owned());
    }
    Err("a namespace's name has lower-case letters, digits and '-', at most 63".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DriverChoice {
    /// systemd where it runs this host and is supported, else process
    Auto,
    /// A unit of its own, etcd-member@NAME.service
    Systemd,
    /// A detached process
    Process,
}

/// Shells that have completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Args)]
pub(super) struct GuardArgs {
    /// For the agent: starts etcd in its own session, as no service manager keeps it
    #[arg(long, conflicts_with = "supervised")]
    pub(super) detach: bool,
    /// For a service manager: waits for obstacles that may go away by themselves
    #[arg(long)]
    pub(super) supervised: bool,
    /// For a Pod of the controller: takes its input from the environment
    #[arg(long, conflicts_with_all = ["detach", "supervised"])]
    pub(super) pod: bool,
    /// For a Pod of the controller: puts a copy of this program into DIR and ends
    #[arg(long, value_name = "DIR", conflicts_with_all = ["detach", "supervised", "pod"])]
    pub(super) copy_to: Option<PathBuf>,
    /// For a service manager: says that etcd has ended
    #[arg(long, conflicts_with_all = ["detach", "supervised"])]
    pub(super) ended: bool,
}

#[derive(Debug, Args)]
pub(super) struct UnitArgs {
    /// Writes it to /etc/systemd/system and has it started at boot (root only)
    #[arg(long)]
    pub(super) install: bool,
}

#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    /// The document; - is standard input; left out: the one on disk
    pub(super) file: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    /// Shows it again every 2 s, until Ctrl-C
    #[arg(short, long)]
    pub(super) watch: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct PreflightArgs {
    /// Does not time the disk's syncs
    #[arg(long)]
    pub(super) skip_disk: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct EnvArgs {
    /// The program to print the lines for
    #[arg(long = "for", value_name = "PROGRAM", value_enum, default_value_t = EnvFor::Etcdctl)]
    pub(super) target: EnvFor,
    /// Where `certs issue --out` copied the client's files
    #[arg(long, value_name = "DIR")]
    pub(super) tls: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum EnvFor {
    /// ETCDCTL_* variables
    Etcdctl,
    /// --datastore-* flags
    K3s,
    /// ClusterConfiguration
    Kubeadm,
    /// The section etcd3 of its file
    Patroni,
}

#[derive(Debug, Subcommand)]
pub(super) enum EtcdCommand {
    /// Installs a version from a release's .tar.gz, or a directory that holds etcd, etcdutl and etcdctl
    #[command(
        after_help = "Without --from and --download it looks in /usr/local/bin and /usr/bin. Releases:\ngithub.com/etcd-io/etcd/releases. --download goes on where a link broke. Behind a proxy:\nsudo HTTPS_PROXY=http://HOST:PORT etcd-operator etcd install --download VERSION\n\nExample:\n  sudo etcd-operator etcd install --from ./etcd-v3.6.16-linux-arm64.tar.gz 3.6.16\n  sudo etcd-operator etcd install --download 3.6.16"
    )]
    Install(InstallArgs),
    /// Lists the installed versions, and what is known of each
    #[command(after_help = "Example:\n  etcd-operator etcd list")]
    List(OutputArgs),
}

#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// Such as 3.6.16
    #[arg(value_name = "VERSION", id = "etcd_version")]
    pub(super) version: String,
    /// The archive or the directory
    #[arg(long, value_name = "FILE|DIR", conflicts_with = "download")]
    pub(super) from: Option<PathBuf>,
    /// Downloads the project's release and compares its checksum
    #[arg(long)]
    pub(super) download: bool,
    /// Downloads it from here, from a folder such as v3.6.16
    #[arg(long, value_name = "URL", requires = "download", value_hint = clap::ValueHint::Url)]
    pub(super) mirror: Option<String>,
    /// Also installs an archive whose checksum is not the release's
    #[arg(long)]
    pub(super) unverified: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum CertsCommand {
    /// Lists the certificates in use and those of clients, with their expiry
    #[command(after_help = "Example:\n  etcd-operator certs list")]
    List(OutputArgs),
    /// Issues a client certificate, or names the files of a good one; the operator renews it
    #[command(
        after_help = "The operator renews issued certificates in its own directory. The same command renews a copy\n(--out): run it from a timer.\n\nExample:\n  sudo etcd-operator certs issue k3s\n  sudo etcd-operator certs issue till-1 --out /etc/till/tls --owner till"
    )]
    Issue(IssueArgs),
    /// Accepts that the CA was replaced: status no longer reports it
    #[command(
        after_help = "The operator replaces a lost CA, and etcd then refuses certificates of the old one. Accept the new\none once every client has a new certificate and the new ca.crt.\n\nExample:\n  sudo etcd-operator certs accept"
    )]
    Accept,
    /// Removes a client of `certs issue`; its certificate is no longer renewed
    #[command(
        after_help = "Copies elsewhere stay valid until they expire.\n\nExample:\n  sudo etcd-operator certs remove till-1"
    )]
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct IssueArgs {
    /// The common name: lower-case letters, digits and '-'
    pub(super) name: String,
    /// Copies NAME.crt, NAME.key and ca.crt to this directory
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// The user who owns the copies; their mode is 600
    #[arg(long, value_name = "USER", requires = "out")]
    pub(super) owner: Option<String>,
    /// Issues a new one even if there is a good one
    #[arg(long)]
    pub(super) renew: bool,
    /// For root's command: prints the files' contents
    #[arg(long, hide = true)]
    pub(super) contents: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(super) output: Output,
}
