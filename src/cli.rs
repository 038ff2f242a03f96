//! The command line: names, flags and exit codes are a contract.
//!
//! Exit codes: 0 done, 1 failed, 2 usage or bad document, 3 held; 130: Ctrl-C ended a command whose
//! restore goes on.

mod arguments;
mod backup;
mod certs;
mod completions;
mod convert;
mod desk;
mod edit;
mod env;
mod etcdctl;
mod explain;
mod init;
mod owner;
mod pause;
mod places;
mod pod;
mod preflight;
mod print;
mod progress;
mod restore;
mod show;
mod status;
mod store;
mod unit;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::agent::driver::{HostDriver, ProcessDriver, SystemdDriver};
use crate::agent::{self, Beginning, kept};
use crate::controller;
use crate::disk;
use crate::document::{self, Document};
use crate::guard::{self, Keeper};
use crate::member::records::{self, IdentityFile};
use crate::member::{place, starts};
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::systemd;
use crate::telemetry::{self, LogFormat, Metrics};
use crate::tls::{Certificates, ClientFiles};

pub use arguments::commands;
pub use print::Output;

use arguments::{
    AgentArgs, BackupArgs, BackupCommand, CertsCommand, CleanArgs, Cli, ClusterArgs, Command,
    ControllerArgs, DeleteArgs, DiffArgs, DriverChoice, EtcdCommand, ExplainArgs, GuardArgs,
    InitArgs, IssueArgs, PlanArgs, RestoreArgs, RestoreCommand, StatusArgs,
};

/// Done.
pub const DONE: u8 = 0;
/// Failed; the reason is on stderr.
pub const FAILED: u8 = 1;
/// Usage, or a bad document.
pub const USAGE: u8 = 2;
/// Held: nothing was done, the reason is printed.
pub const HELD: u8 = 3;
/// Ended by Ctrl-C while what it asked for goes on without it.
pub const INTERRUPTED: u8 = 130;

/// In a thread that ends: the parser of so many commands takes 130 KiB of stack, which would stay resident.
fn parse() -> Result<Cli, clap::Error> {
    let parse = || {
        let mut command = arguments::command(desk::is_plugin());
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let name = matches.subcommand_name().unwrap_or_default();
        if desk::is_plugin() && !arguments::is_of_plugin(name) {
            let kind = clap::error::ErrorKind::InvalidSubcommand;
            let text =
                format!("{name} is no command of kubectl etcd: run etcd-operator {name} on a host");
            return Err(command.error(kind, text));
        }
        Cli::from_arg_matches(&matches)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, parse);
        // Where the system has no room for a thread, here.
        let parsed = thread.ok().and_then(|it| it.join().ok());
        parsed.unwrap_or_else(parse)
    })
}

/// Runs the command of this process' arguments.
pub fn run() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if let (Some(verb), Some(dir)) = (arguments.next(), arguments.next())
        && verb == disk::PROBE
    {
        return ExitCode::from(disk::probe(Path::new(&dir)));
    }
    if let Ok(program) = crate::process::own_executable() {
        disk::probe_by(program);
    }
    let cli = match parse() {
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
    given: owner::Given,
    /// The command line names the document.
    named: bool,
    /// This is the Pod of a backup worker.
    worker: Option<Box<pod::InWorker>>,
}

impl Context {
    fn document(&self) -> Result<ClusterSpec, Failure> {
        match &self.worker {
            Some(worker) => Ok(worker.spec.clone()),
            None => Ok(*self.read()?.spec),
        }
    }

    /// Who lives here.
    fn identity(&self, spec: &ClusterSpec) -> Result<Option<IdentityFile>, Failure> {
        if let Some(worker) = &self.worker {
            return Ok(Some(worker.identity.clone()));
        }
        let member = place::resolve(&self.paths, spec);
        let (identity, _) = records::load_identities(&self.paths, &member.storage_dir)?;
        Ok(identity)
    }

    /// The keys of this cluster, as far as they are here.
    fn certificates(&self) -> Certificates {
        match self.worker {
            Some(_) => pod::InWorker::certificates(),
            None => Certificates::at(self.paths.tls()),
        }
    }

    /// Where etcd is reached, and with what.
    fn etcd(&self, spec: &ClusterSpec) -> Result<(String, ClientFiles), Failure> {
        match &self.worker {
            Some(worker) => worker.member(),
            None => Ok((
                place::resolve(&self.paths, spec).client_url,
                self.certificates().operator_files(),
            )),
        }
    }

    fn read(&self) -> Result<Document, Failure> {
        document::read(&self.config, &self.paths.lib).map_err(|problems| {
            let problems = problems.0.iter();
            let lines: Vec<String> = problems
                .map(|it| document::line(&self.config, it))
                .collect();
            Failure::new(USAGE, lines.join("\n"))
        })
    }
}

fn dispatch(cli: &Cli) -> Outcome {
    desk::refuse_files_of_a_host(cli)?;
    let root = std::path::absolute(&cli.root)?;
    let paths = Paths::under(&root);
    let config = match &cli.config {
        Some(path) => std::path::absolute(path)?,
        None => paths.document(),
    };
    let mut context = Context {
        paths,
        config,
        given: owner::Given::default(),
        named: cli.config.is_some(),
        worker: None,
    };
    pod::act_in_worker(&mut context, &cli.command)?;
    owner::act_as_owner(&mut context, &cli.command)?;
    match &cli.command {
        Command::Init(it) => init::init(&context, it),
        Command::Agent(arguments) => run_agent(&context, arguments),
        Command::Controller(arguments) => run_controller(arguments),
        Command::Manifests { image, namespaces } => manifests(image.as_deref(), namespaces),
        Command::Convert { file } => convert::convert(file),
        Command::Completions { shell } => completions::completions(*shell),
        Command::Guard(arguments) => run_guard(&context, arguments),
        Command::Unit(it) => unit::unit(&context, it.install),
        Command::Preflight(it) => preflight::preflight(&context, it.skip_disk, it.output),
        Command::Status(it) => status::status(&context, it),
        Command::Plan(it) => show::plan(&context, it),
        Command::Pause { duration } => pause::pause(&context, duration),
        Command::Resume => pause::resume(&context),
        Command::Diff(it) => edit::diff(&context, it),
        Command::Reload(it) => edit::reload(&context, it.output),
        Command::Env(it) => env::env(&context, it),
        Command::Etcdctl { arguments } => etcdctl::etcdctl(&context, arguments),
        Command::Etcd(EtcdCommand::Install(it)) => store::install(&context, it),
        Command::Etcd(EtcdCommand::List(it)) => store::list(&context, it.output),
        Command::Certs(CertsCommand::List(it)) => certs::list(&context, it.output),
        Command::Certs(CertsCommand::Issue(it)) => certs::issue(&context, it),
        Command::Certs(CertsCommand::Accept) => certs::accept(&context),
        Command::Certs(CertsCommand::Remove { name }) => certs::remove(&context, name),
        Command::Backup(it) => {
            protect_process();
            backup::backup(&context, it)
        }
        Command::Restore(it) if it.pod && it.rehearse => {
            protect_process();
            pod::rehearse(&context, it)
        }
        Command::Restore(it) if it.pod => {
            protect_process();
            pod::restore(&context, it)
        }
        Command::Restore(it) => {
            protect_process();
            restore::restore(&context, it)
        }
        Command::VerifySnapshot { file, output } => verify::verify_snapshot(file, *output),
        Command::Version => {
            print::text(concat!("etcd-operator ", env!("CARGO_PKG_VERSION"), "\n"))?;
            Ok(DONE)
        }
        Command::Explain(it) => explain::explain(it),
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
    let chosen = kept::choose(&context.paths, &context.config);
    let (accepted, refused) =
        chosen.map_err(|refused| Failure::new(USAGE, refused.lines(&context.config).join("\n")))?;
    let spec = &accepted.document.spec;
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
        let beginning = Beginning {
            paths: context.paths.clone(),
            config: context.config.clone(),
            accepted,
            refused,
            driver,
            telemetry: metrics,
        };
        agent::run(beginning).await?;
        Ok(DONE)
    })
}

fn run_controller(arguments: &ControllerArgs) -> Outcome {
    protect_process();
    telemetry::log(arguments.log_format, arguments.log_level);
    let told = |name: &str| {
        std::env::var(name).map_err(|_| {
            let text =
                format!("{name} is not in the environment: deploy/etcd-operator.yaml sets it");
            Failure::new(USAGE, text)
        })
    };
    let address = std::env::var("POD_IP").ok().and_then(|it| it.parse().ok());
    let address = address.unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    let own = controller::Own {
        pod: told("POD_NAME")?,
        namespace: told("POD_NAMESPACE")?,
        node: told("NODE_NAME")?,
        listen: (address, arguments.port).into(),
        image_prefixes: arguments.image_prefix.clone(),
        namespaces: each_once(&arguments.namespaces),
    };
    runtime()?.block_on(controller::run(own))?;
    Ok(DONE)
}

fn each_once(namespaces: &[String]) -> Vec<String> {
    let once: std::collections::BTreeSet<&String> = namespaces.iter().collect();
    once.into_iter().cloned().collect()
}

fn manifests(image: Option<&str>, namespaces: &[String]) -> Outcome {
    let standard = controller::manifests::image(env!("CARGO_PKG_VERSION"));
    let all = controller::manifests::generate(image.unwrap_or(&standard), &each_once(namespaces));
    let texts: Result<Vec<String>, _> = all.iter().map(crate::document::to_yaml).collect();
    print::text(&texts?.join("---\n"))?;
    Ok(DONE)
}

fn run_guard(context: &Context, arguments: &GuardArgs) -> Outcome {
    protect_process();
    telemetry::log(LogFormat::Text, tracing::Level::INFO);
    if arguments.ended {
        let told = |name| std::env::var(name).unwrap_or_default();
        let result = told("SERVICE_RESULT");
        let how = starts::how_by_systemd(&result, &told("EXIT_CODE"), &told("EXIT_STATUS"));
        starts::ended(&context.paths, result == "success", how);
        return Ok(DONE);
    }
    if let Some(dir) = &arguments.copy_to {
        std::fs::copy(crate::process::own_executable()?, dir.join("etcd-operator"))?;
        return Ok(DONE);
    }
    let keeper = if arguments.pod {
        Keeper::Pod
    } else if arguments.supervised {
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
            let supervised = matches!(keeper, Keeper::Supervisor | Keeper::Pod);
            let again = supervised && refusal.may_pass();
            Err(Failure::new(if again { FAILED } else { HELD }, text))
        }
        // Only the operator writes one: nobody shall try again by itself.
        error @ guard::GuardError::NoLaunchRecord if keeper == Keeper::Supervisor => {
            Err(Failure::new(HELD, error.to_string()))
        }
        error => Err(error.into()),
    }
}
