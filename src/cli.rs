//! The command line: names, flags and exit codes are a contract.
//!
//! Exit codes: 0 done, 1 failed, 2 usage or bad document, 3 held.

mod backup;
mod certs;
mod owner;
mod preflight;
mod print;
mod progress;
mod restore;
mod show;
mod unit;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::agent;
use crate::agent::driver::{HostDriver, ProcessDriver, SystemdDriver};
use crate::document;
use crate::etcd::store;
use crate::guard::{self, Keeper};
use crate::member::starts;
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::systemd;
use crate::telemetry::{self, LogFormat, Metrics};
use crate::version::{Class, Version, classify};

pub use print::Output;

/// Done.
pub const DONE: u8 = 0;
/// Failed; the reason is on stderr.
pub const FAILED: u8 = 1;
/// Usage, or a bad document.
pub const USAGE: u8 = 2;
/// Held: nothing was done, the reason is printed.
pub const HELD: u8 = 3;

/// Keeps an etcd cluster alive at the edge.
#[derive(Debug, Parser)]
#[command(
    name = "etcd-operator",
    version,
    after_help = "Start with: etcd-operator agent --help"
)]
pub struct Cli {
    /// Puts /etc/etcd-operator, /var/lib/etcd-operator and /run/etcd-operator under DIR
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// The document, instead of /etc/etcd-operator/cluster.yaml
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keeps etcd alive on this host until SIGTERM; etcd stays
    #[command(
        after_help = "Reads the document, starts etcd with mutual TLS and keeps it alive. SIGHUP reads the\ndocument again; SIGTERM ends the operator and leaves etcd running.\n\nExample:\n  etcd-operator etcd install --from ./etcd-v3.6.14-linux-arm64 3.6.14\n  etcd-operator agent"
    )]
    Agent(AgentArgs),
    /// Starts etcd after its checks; what service managers call
    #[command(
        after_help = "Every start of etcd goes through here. It checks identity, data, certificates and earlier\nstarts, then becomes etcd. A refusal exits with 3 and the reason.\n\nExample:\n  etcd-operator guard --detach"
    )]
    Guard(GuardArgs),
    /// etcd's systemd unit for this document: printed, or written and enabled
    #[command(
        after_help = "The operator's unit runs it with --install, as root, before each start.\n\nExample:\n  etcd-operator unit"
    )]
    Unit(UnitArgs),
    /// What is: conditions, members, certificates; exits with 0 when available
    #[command(
        after_help = "Example:\n  etcd-operator status\n  etcd-operator status -o json | jq .host.etcd.clientURL"
    )]
    Status(OutputArgs),
    /// What would be done next, or why nothing is; exits with 3 when held
    #[command(after_help = "Example:\n  etcd-operator plan")]
    Plan(OutputArgs),
    /// Lines for a shell: how etcdctl, or k3s, connects
    #[command(
        after_help = "Example:\n  eval \"$(etcd-operator env)\"; etcdctl endpoint health\n  k3s server $(etcd-operator env --for k3s)"
    )]
    Env(EnvArgs),
    /// Whether this host is fit for it: rights, disk, kernel, supply, clock; exits with 1 if not
    #[command(
        after_help = "Writes up to 22 MB to the data's disk, for at most 10 s, to see how fast it syncs.\n\nExample:\n  sudo etcd-operator preflight"
    )]
    Preflight(PreflightArgs),
    /// The store: etcd with etcdutl, one folder a version
    #[command(subcommand)]
    Etcd(EtcdCommand),
    /// Certificates of the cluster and its clients
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Snapshots: taken, listed, proven, removed
    #[command(subcommand)]
    Backup(BackupCommand),
    /// Puts a snapshot's data in place of the member's; what is there now is kept aside
    #[command(
        after_help = "The snapshot is proven and new data made of it while etcd still runs; then etcd is stopped for\nthe exchange. If it does not serve the new data, the old data comes back. Revisions jump by\n1,000,000,000, so that clients with a cache notice.\n\nExample:\n  etcd-operator restore --dry-run\n  etcd-operator restore --from ./snapshot.db --yes"
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
    /// Prints the CustomResourceDefinition: the document's fields, explained
    #[command(after_help = "Example:\n  etcd-operator crd | kubectl apply -f -")]
    Crd,
}

#[derive(Debug, Args)]
struct AgentArgs {
    /// What keeps etcd's process
    #[arg(long, value_enum, default_value_t = DriverChoice::Auto)]
    driver: DriverChoice,
    /// Serves /metrics and /healthz on this loopback address, such as 127.0.0.1:2390
    #[arg(long, value_name = "ADDRESS")]
    metrics_address: Option<SocketAddr>,
    /// How logs look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// How much is logged: error, warn, info, debug
    #[arg(long, default_value = "info")]
    log_level: tracing::Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverChoice {
    /// systemd where it runs this host and is supported, else process
    Auto,
    /// A unit of its own, etcd-member@NAME.service
    Systemd,
    /// A detached process
    Process,
}

#[derive(Debug, Args)]
struct GuardArgs {
    /// For the agent: a session of its own, where no service manager keeps the process
    #[arg(long, conflicts_with = "supervised")]
    detach: bool,
    /// For a service manager: what may pass by itself is waited for
    #[arg(long)]
    supervised: bool,
    /// For a service manager: etcd has ended
    #[arg(long, conflicts_with_all = ["detach", "supervised"])]
    ended: bool,
}

#[derive(Debug, Args)]
struct UnitArgs {
    /// Writes it to /etc/systemd/system and has it started at boot (root only)
    #[arg(long)]
    install: bool,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Args)]
struct PreflightArgs {
    /// Leaves the disk alone: its syncs are not timed
    #[arg(long)]
    skip_disk: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Args)]
struct EnvArgs {
    /// Whose variables or flags
    #[arg(long = "for", value_enum, default_value_t = EnvFor::Etcdctl)]
    target: EnvFor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EnvFor {
    /// ETCDCTL_* variables
    Etcdctl,
    /// --datastore-* flags
    K3s,
}

#[derive(Debug, Subcommand)]
enum EtcdCommand {
    /// Installs a version from a directory that holds etcd, etcdutl and etcdctl
    #[command(
        after_help = "Without --from it looks in /usr/local/bin and /usr/bin.\n\nExample:\n  etcd-operator etcd install --from ./etcd-v3.6.14-linux-arm64 3.6.14"
    )]
    Install {
        /// Such as 3.6.14
        #[arg(value_name = "VERSION", id = "etcd_version")]
        version: String,
        /// The directory
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
    },
    /// Lists what is installed, and what is known of it
    #[command(after_help = "Example:\n  etcd-operator etcd list")]
    List(OutputArgs),
}

#[derive(Debug, Subcommand)]
enum CertsCommand {
    /// Lists certificates in use and those of clients, with their ends
    #[command(after_help = "Example:\n  etcd-operator certs list")]
    List(OutputArgs),
    /// Issues a client certificate and prints where its files are
    #[command(after_help = "Example:\n  etcd-operator certs issue k3s")]
    Issue {
        /// The common name: lower-case letters, digits and '-'
        name: String,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// latest (the newest verified one), the name of a snapshot, or a file
    #[arg(long, value_name = "SNAPSHOT", default_value = "latest")]
    from: String,
    /// Only says what would be done, and what would be lost
    #[arg(long)]
    dry_run: bool,
    /// Does it without asking
    #[arg(long)]
    yes: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    /// Takes a snapshot now and proves it; it stays until it is removed by hand
    #[command(after_help = "Example:\n  etcd-operator backup create")]
    Create(OutputArgs),
    /// Lists snapshots, newest first
    #[command(after_help = "Example:\n  etcd-operator backup list -o json | jq .[0].name")]
    List(OutputArgs),
    /// Prints what is known of one
    #[command(after_help = "Example:\n  etcd-operator backup show latest")]
    Show {
        /// Its name, or latest
        name: String,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Checks one, or all of them; exits with 1 if one is damaged
    #[command(after_help = "Example:\n  etcd-operator backup verify --level 3")]
    Verify {
        /// Its name, or latest; left out: all
        name: Option<String>,
        /// 1 size, 2 hash, 3 structure
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
        level: u8,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Removes what the document no longer keeps, never the newest verified one
    #[command(after_help = "Example:\n  etcd-operator backup prune --dry-run")]
    Prune {
        /// Only says what would be removed
        #[arg(long)]
        dry_run: bool,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}

/// Runs the command of this process' arguments.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { DONE });
        }
    };
    match dispatch(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // The journal names the program itself, and takes the priority from the line (rule F8).
            let prefix = if std::env::var_os("JOURNAL_STREAM").is_some() {
                "<3>"
            } else {
                "etcd-operator: "
            };
            for line in failure.text.lines() {
                eprintln!("{prefix}{line}");
            }
            ExitCode::from(failure.code)
        }
    }
}

/// A failure with its exit code.
struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    fn new(code: u8, text: impl Into<String>) -> Self {
        Failure {
            code,
            text: text.into(),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(FAILED, format!("{:#}", error.into()))
    }
}

type Outcome = Result<u8, Failure>;

/// Paths and document of one invocation.
struct Context {
    paths: Paths,
    config: PathBuf,
}

impl Context {
    fn document(&self) -> Result<ClusterSpec, Failure> {
        document::read(&self.config).map_err(|problems| {
            let lines: Vec<String> = problems
                .0
                .iter()
                .map(|it| format!("{}: {it}", self.config.display()))
                .collect();
            Failure::new(USAGE, lines.join("\n"))
        })
    }
}

fn dispatch(cli: &Cli) -> Outcome {
    let root = std::path::absolute(&cli.root)?;
    let paths = Paths::under(&root);
    let config = match &cli.config {
        Some(path) => std::path::absolute(path)?,
        None => paths.document(),
    };
    let context = Context { paths, config };
    owner::act_as_owner(&context, &cli.command)?;
    match &cli.command {
        Command::Agent(arguments) => run_agent(&context, arguments),
        Command::Guard(arguments) => run_guard(&context, arguments),
        Command::Unit(it) => unit::unit(&context, it.install),
        Command::Preflight(it) => preflight::preflight(&context, it.skip_disk, it.output),
        Command::Status(it) => show::status(&context, it.output),
        Command::Plan(it) => show::plan(&context, it.output),
        Command::Env(it) => show::env(&context, it.target == EnvFor::K3s),
        Command::Etcd(EtcdCommand::Install { version, from }) => {
            install(&context, version, from.as_deref())
        }
        Command::Etcd(EtcdCommand::List(it)) => list_store(&context, it.output),
        Command::Certs(CertsCommand::List(it)) => certs::list(&context, it.output),
        Command::Certs(CertsCommand::Issue { name, output }) => {
            certs::issue(&context, name, *output)
        }
        Command::Backup(it) => {
            protect_process();
            backup::backup(&context, it)
        }
        Command::Restore(it) => {
            protect_process();
            restore::restore(&context, it)
        }
        Command::VerifySnapshot { file, output } => backup::verify_snapshot(file, *output),
        Command::Crd => {
            print::text(crate::api::crd::CRDS_YAML)?;
            Ok(DONE)
        }
    }
}

/// One thread: the operator waits nearly all of the time.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
}

/// Keys pass through this process: no core dump, and files for this user alone.
fn protect_process() {
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

fn run_agent(context: &Context, arguments: &AgentArgs) -> Outcome {
    protect_process();
    telemetry::log(arguments.log_format, arguments.log_level);
    if let Some(address) = arguments.metrics_address
        && !address.ip().is_loopback()
    {
        let text = format!("--metrics-address {address}: metrics are served on loopback only");
        return Err(Failure::new(USAGE, text));
    }
    let spec = context.document()?;
    let driver = match arguments.driver {
        DriverChoice::Auto => HostDriver::choose(&context.paths, &spec.name),
        DriverChoice::Process => HostDriver::Process(ProcessDriver::new(&context.paths)),
        DriverChoice::Systemd if systemd::runs(&context.paths) => {
            HostDriver::Systemd(SystemdDriver::new(&context.paths, &spec.name))
        }
        DriverChoice::Systemd => {
            let text = "--driver systemd: systemd does not run this host, or --root is not /; use --driver process";
            return Err(Failure::new(USAGE, text));
        }
    };
    runtime()?.block_on(async {
        let metrics = match arguments.metrics_address {
            Some(address) => {
                let metrics = Metrics::new();
                telemetry::serve(metrics.clone(), address)
                    .await
                    .map_err(|error| {
                        Failure::new(
                            FAILED,
                            format!("failed to listen on {address} for metrics: {error}"),
                        )
                    })?;
                Some(metrics)
            }
            None => None,
        };
        agent::run(&context.paths, &context.config, spec, driver, metrics).await?;
        Ok(DONE)
    })
}

fn run_guard(context: &Context, arguments: &GuardArgs) -> Outcome {
    protect_process();
    telemetry::log(LogFormat::Text, tracing::Level::INFO);
    if arguments.ended {
        let stopped = std::env::var("SERVICE_RESULT").is_ok_and(|it| it == "success");
        starts::ended(&context.paths, stopped);
        return Ok(DONE);
    }
    let keeper = if arguments.supervised {
        Keeper::Supervisor
    } else if arguments.detach {
        Keeper::Agent
    } else {
        Keeper::Caller
    };
    match guard::run(&context.paths, keeper) {
        guard::GuardError::Refused(refusal) => {
            let text = format!(
                "etcd is not started: {}: {refusal}; next: {}",
                refusal.reason(),
                refusal.next_step()
            );
            // Tried again by whoever supervises it.
            let again = keeper == Keeper::Supervisor && refusal.may_pass();
            Err(Failure::new(if again { FAILED } else { HELD }, text))
        }
        // Only the operator writes one: nobody shall try again by itself.
        error @ guard::GuardError::NoLaunchRecord if keeper == Keeper::Supervisor => {
            Err(Failure::new(HELD, error.to_string()))
        }
        error => Err(error.into()),
    }
}

fn install(context: &Context, text: &str, from: Option<&std::path::Path>) -> Outcome {
    let version: Version = text
        .parse()
        .map_err(|_| Failure::new(USAGE, format!("'{text}' is not a version such as 3.6.14")))?;
    match classify(version) {
        Class::TooOld | Class::Unknown => {
            let text = format!(
                "etcd {version} is none of the lines 3.5, 3.6 and 3.7 that this operator knows"
            );
            return Err(Failure::new(USAGE, text));
        }
        Class::NeverCreate(bug) => {
            eprintln!("etcd-operator: warning: no cluster is born with {version}: {bug}");
        }
        Class::Warn(bug) => eprintln!("etcd-operator: warning: {bug}"),
        Class::Supported => {}
    }
    let installed = store::install(&context.paths.store(), version, from)?;
    if !installed.programs.contains(&"etcdutl") {
        eprintln!(
            "etcd-operator: warning: etcdutl was not there; restoring a snapshot will need it"
        );
    }
    print::text(&format!(
        "etcd {version} ({}) sha256 {}\n",
        installed.programs.join(", "),
        installed.sha256
    ))?;
    Ok(DONE)
}

fn list_store(context: &Context, output: Output) -> Outcome {
    let class = |version| match classify(version) {
        Class::Supported => "supported".to_owned(),
        Class::Warn(bug) => format!("known bug: {bug}"),
        Class::NeverCreate(bug) => format!("loses data: {bug}"),
        Class::TooOld | Class::Unknown => "not supported".to_owned(),
    };
    let installed = store::list(&context.paths.store());
    if output != Output::Table {
        let values: Vec<_> = installed
            .iter()
            .map(|it| serde_json::json!({
                "version": it.version.to_string(), "programs": it.programs, "sha256": it.sha256, "class": class(it.version),
            }))
            .collect();
        print::value(output, &values)?;
        return Ok(DONE);
    }
    let mut rows = vec![[
        "VERSION".to_owned(),
        "PROGRAMS".to_owned(),
        "CLASS".to_owned(),
    ]];
    rows.extend(installed.iter().map(|it| {
        [
            it.version.to_string(),
            it.programs.join(","),
            class(it.version),
        ]
    }));
    print::table(&rows)?;
    Ok(DONE)
}
