//! Logs to stderr, metrics and `/healthz` on an address of the user's choice.
//!
//! Without that choice no port is open.

mod backup;
mod disk;
mod line;
mod members;

use std::borrow::Cow;
use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::writer::MakeWriterExt as _;
use tracing_subscriber::registry::LookupSpan;

use line::Stderr;

use crate::api::status::condition_name;
use crate::clock;
use crate::http;
use crate::observed::{Observed, Process};
use crate::status::{Status, Verdict};

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; with journald's priorities where a journal reads them.
    Text,
    /// One JSON object a line.
    Json,
}

/// Begins to log to stderr.
pub fn log(format: LogFormat, level: Level) {
    // The library of Kubernetes tells each attempt of its own. What came of them is told here.
    let told = move |it: &Metadata<'_>| level > Level::INFO || !it.target().starts_with("kube_");
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(Stderr.with_filter(told));
    // A second call, in tests, changes nothing.
    let _ = match format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_target(false)
            .try_init(),
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => {
            builder.event_format(Journal).try_init()
        }
        LogFormat::Text => builder
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .try_init(),
    };
}

/// `<N>` in front of each line is its priority (rule F8); the journal has the time itself.
struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        format::DefaultFields::new().format_fields(writer.by_ref(), event)?;
        let _ = context;
        writeln!(writer)
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConditionLabels {
    condition: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabels {
    version: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HoldLabels {
    reason: &'static str,
}

/// The metrics of the operator, named by Prometheus' conventions.
pub struct Metrics {
    registry: Registry,
    conditions: Family<ConditionLabels, Gauge<i64, AtomicI64>>,
    holds: Family<HoldLabels, Gauge<i64, AtomicI64>>,
    version: Family<VersionLabels, Gauge<i64, AtomicI64>>,
    members: members::MemberMetrics,
    passes: Counter<u64, AtomicU64>,
    stopped: Gauge<i64, AtomicI64>,
    confirmed: Gauge<i64, AtomicI64>,
    certificate_expiry: Gauge<i64, AtomicI64>,
    etcd_uptime: Gauge<i64, AtomicI64>,
    database_bytes: Gauge<i64, AtomicI64>,
    quota_bytes: Gauge<i64, AtomicI64>,
    disk: disk::DiskMetrics,
    backups: backup::BackupMetrics,
    /// Seconds since boot of the last pass, for `/healthz`.
    last_pass: AtomicU64,
}

/// A gauge in this unit.
fn measured(registry: &mut Registry, name: &str, help: &str, unit: Unit) -> Gauge<i64, AtomicI64> {
    let gauge = Gauge::default();
    registry.register_with_unit(name, help, unit, gauge.clone());
    gauge
}

/// No pass for so long: the operator itself is stuck.
const HEALTHY_SECONDS: u64 = 120;

impl Metrics {
    /// All of them, at zero.
    pub fn new() -> Arc<Self> {
        Self::in_registry(Registry::with_prefix("etcd_operator"))
    }

    /// Those of one cluster among several.
    pub fn of_cluster(namespace: &str, name: &str) -> Arc<Self> {
        let labels = [("namespace", namespace), ("cluster", name)];
        let labels = labels.map(|(key, value)| (Cow::Borrowed(key), Cow::Owned(value.to_owned())));
        Self::in_registry(Registry::with_prefix_and_labels(
            "etcd_operator",
            labels.into_iter(),
        ))
    }

    fn in_registry(mut registry: Registry) -> Arc<Self> {
        let conditions = Family::default();
        let holds = Family::default();
        let version = Family::default();
        let passes = Counter::default();
        let stopped = Gauge::default();
        registry.register(
            "condition",
            "1 true, 0 false, -1 unknown",
            conditions.clone(),
        );
        registry.register(
            "hold",
            "1 while the plan holds for this reason",
            holds.clone(),
        );
        registry.register(
            "version_info",
            "1 for the version of etcd that runs, else of the one that is started next",
            version.clone(),
        );
        registry.register("passes", "Passes made", passes.clone());
        registry.register(
            "stopped",
            "1 while etcd is stopped because the document says size: 0",
            stopped.clone(),
        );
        let confirmed = measured(
            &mut registry,
            "confirmed_timestamp",
            "The time up to which the conditions are confirmed, since 1970",
            Unit::Seconds,
        );
        let certificate_expiry = measured(
            &mut registry,
            "certificate_expiry_timestamp",
            "When the first leaf certificate in use ends, since 1970",
            Unit::Seconds,
        );
        let etcd_uptime = measured(
            &mut registry,
            "etcd_uptime",
            "Since etcd was started; 0 while it does not run",
            Unit::Seconds,
        );
        let database_bytes = measured(
            &mut registry,
            "database_size",
            "etcd's database file",
            Unit::Bytes,
        );
        let quota_bytes = measured(&mut registry, "database_quota", "etcd's quota", Unit::Bytes);
        Arc::new(Metrics {
            backups: backup::BackupMetrics::registered(&mut registry),
            disk: disk::DiskMetrics::registered(&mut registry),
            members: members::MemberMetrics::registered(&mut registry),
            registry,
            conditions,
            holds,
            version,
            passes,
            stopped,
            confirmed,
            certificate_expiry,
            etcd_uptime,
            database_bytes,
            quota_bytes,
            last_pass: AtomicU64::new(clock::since_boot().as_secs()),
        })
    }

    /// Takes over what a pass saw.
    pub fn record(&self, observed: &Observed, status: &Status) {
        let whole = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        self.passes.inc();
        self.last_pass.store(
            clock::since_boot().as_secs(),
            std::sync::atomic::Ordering::Relaxed,
        );
        self.confirmed.set(status.confirmed_until.0);
        for it in &status.conditions {
            let value = match it.verdict {
                Verdict::True => 1,
                Verdict::False => 0,
                Verdict::Unknown => -1,
            };
            self.conditions
                .get_or_create(&ConditionLabels {
                    condition: condition_name(it.kind),
                })
                .set(value);
        }
        let stopped = status.conditions.iter().any(|it| it.reason == "SizeZero");
        self.stopped.set(i64::from(stopped));
        self.backups.record(&observed.backups);
        self.holds.clear();
        if let Some(held) = &status.hold {
            self.holds
                .get_or_create(&HoldLabels {
                    reason: held.hold.reason(),
                })
                .set(1);
        }
        self.version.clear();
        if let Some(version) = status.version {
            let version = version.to_string();
            self.version
                .get_or_create(&VersionLabels { version })
                .set(1);
        }
        self.members.record(&status.members);
        self.disk.record(observed);
        self.certificate_expiry
            .set(status.certificates.map_or(0, |(end, _)| end.0));
        self.database_bytes
            .set(status.details.map_or(0, |it| whole(it.db_size)));
        if let Some(instance) = observed.speaker() {
            self.quota_bytes.set(
                instance
                    .facts
                    .identity
                    .as_ref()
                    .map_or(0, |it| whole(it.quota)),
            );
            self.etcd_uptime.set(match instance.process {
                Process::Running { seconds, .. } => whole(seconds),
                _ => 0,
            });
        }
    }

    /// The page that Prometheus scrapes.
    pub fn page(&self) -> String {
        let mut text = String::new();
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        // The library writes OpenMetrics, in which a counter's family has no suffix and a page ends
        // with a mark; in the text format 0.0.4 the family is called as its sample.
        let mut page = String::with_capacity(text.len());
        for line in text
            .lines()
            .filter(|it| *it != "# EOF" && !it.starts_with("# UNIT"))
        {
            page.push_str(&line.replacen(
                "etcd_operator_passes ",
                "etcd_operator_passes_total ",
                1,
            ));
            page.push('\n');
        }
        page
    }

    /// One page of several: a family is described once, and its samples stand together.
    pub fn pages(all: &[Arc<Metrics>]) -> String {
        let mut families: Vec<(String, Vec<String>)> = Vec::new();
        for page in all.iter().map(|it| it.page()) {
            let mut at = 0;
            for line in page.lines() {
                if line.starts_with("# HELP") {
                    let found = families.iter().position(|(head, _)| head == line);
                    at = found.unwrap_or(families.len());
                    if found.is_none() {
                        families.push((line.to_owned(), Vec::new()));
                    }
                } else if let Some((_, lines)) = families.get_mut(at)
                    && !(line.starts_with('#') && lines.first().is_some_and(|it| it == line))
                {
                    lines.push(line.to_owned());
                }
            }
        }
        let mut page = String::new();
        for (head, lines) in families {
            page.push_str(&head);
            page.push('\n');
            for line in lines {
                page.push_str(&line);
                page.push('\n');
            }
        }
        page
    }

    fn healthy(&self) -> bool {
        let last = self.last_pass.load(std::sync::atomic::Ordering::Relaxed);
        clock::since_boot().as_secs() < last + HEALTHY_SECONDS
    }
}

/// Serves `/metrics` and `/healthz`. The address is loopback; the command line sees to it.
pub async fn serve(metrics: Arc<Metrics>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tokio::spawn(async move {
        let mut open = http::Connections::default();
        loop {
            let (stream, _) = http::accept(|| listener.accept()).await;
            let metrics = metrics.clone();
            let service = service_fn(move |request| {
                let response = respond(&metrics, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let served = http::builder().serve_connection(TokioIo::new(stream), service);
            open.admit(tokio::spawn(served).abort_handle());
        }
    });
    Ok(())
}

fn respond(metrics: &Metrics, request: &hyper::Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, metrics.page()),
        "/healthz" if metrics.healthy() => (StatusCode::OK, "ok\n".to_owned()),
        "/healthz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the operator made no pass for two minutes\n".to_owned(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "this server has /metrics and /healthz\n".to_owned(),
        ),
    };
    plain(status, text)
}

/// An answer in the text format.
pub fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    // Prometheus scrapes nothing that is served as octet-stream.
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
