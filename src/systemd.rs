//! systemd, over D-Bus: a unit is started, stopped, installed, and seen to change by signal.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream as _;
use zbus::{Connection, DBusError as _, MatchRule, MessageStream, OwnedObjectPath, OwnedVariant};

use crate::paths::Paths;

const SYSTEMD: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const UNIT_PREFIX: &str = "etcd-member@";

/// Why systemd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The bus, or systemd on it, cannot be reached.
    #[error("failed to reach systemd over D-Bus (is dbus installed and running?): {0}")]
    Unreachable(String),
    /// It knows no such unit.
    #[error("systemd knows no {unit}: run as root: etcd-operator unit --install")]
    NoUnit {
        /// Which one.
        unit: String,
    },
    /// This user may not.
    #[error(
        "systemd does not let this user {what} {unit}: polkit is missing, or has no rule for it; next: etcd-operator preflight, or the drop-in /usr/share/doc/etcd-operator/examples/run-as-root.conf, which needs no polkit"
    )]
    NotAllowed {
        /// The verb.
        what: &'static str,
        /// Which unit.
        unit: String,
    },
    /// Anything else, in systemd's words.
    #[error("systemd refuses to {what} {unit}: {why}")]
    Refused {
        /// The verb.
        what: &'static str,
        /// Which unit.
        unit: String,
        /// Its words.
        why: String,
    },
}

/// The unit of a cluster's member on this host.
pub fn member_unit(cluster: &str) -> String {
    format!("{UNIT_PREFIX}{cluster}.service")
}

/// Whether a unit is one that this operator writes.
pub fn is_member_unit(unit: &str) -> bool {
    unit.starts_with(UNIT_PREFIX)
}

/// Where the unit is written.
pub fn member_unit_path(paths: &Paths, cluster: &str) -> PathBuf {
    paths.units().join(member_unit(cluster))
}

/// Whether systemd runs this host and has the member's unit.
pub fn has_member_unit(paths: &Paths, cluster: &str) -> bool {
    runs(paths) && member_unit_path(paths, cluster).exists()
}

/// Whether systemd runs this host. A root elsewhere than `/` is nothing that systemd knows.
pub fn runs(paths: &Paths) -> bool {
    paths.root == Path::new("/") && Path::new("/run/systemd/system").is_dir()
}

/// timedated is started to answer, and may be asked at a bad moment.
const CLOCK_DEADLINE: Duration = Duration::from_secs(5);

/// Whether the kernel's clock is synchronised (adjtimex), as timedated tells; false without an answer. The
/// kernel's own call has no safe binding.
pub async fn clock_is_synchronised() -> bool {
    let asked = async {
        let bus = Connection::system().await?;
        let timedate = "org.freedesktop.timedate1";
        let property = (timedate, "NTPSynchronized");
        let path = "/org/freedesktop/timedate1";
        let answer = bus.call_method(Some(timedate), path, Some(PROPERTIES), "Get", &property);
        let value: OwnedVariant = answer.await?.body().deserialize()?;
        Ok::<bool, zbus::Error>(bool::try_from(&*value).unwrap_or(false))
    };
    let answer = tokio::time::timeout(CLOCK_DEADLINE, asked).await;
    answer.is_ok_and(|it| it.unwrap_or(false))
}

/// A connection to systemd.
#[derive(Debug)]
pub struct Systemd(Connection);

impl Systemd {
    /// Connects to the system bus.
    pub async fn connect() -> Result<Self, SystemdError> {
        match Connection::system().await {
            Ok(connection) => Ok(Systemd(connection)),
            Err(error) => Err(SystemdError::Unreachable(error.to_string())),
        }
    }

    /// Starts a unit. What starts already goes on.
    pub async fn start(&self, unit: &str) -> Result<(), SystemdError> {
        self.on_unit("start", "StartUnit", unit).await
    }

    /// Stops a unit.
    pub async fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        self.on_unit("stop", "StopUnit", unit).await
    }

    async fn on_unit(
        &self,
        what: &'static str,
        method: &'static str,
        unit: &str,
    ) -> Result<(), SystemdError> {
        match self.call(method, &(unit, "replace")).await {
            Ok(_) => Ok(()),
            Err(error) => Err(refused(what, unit, error)),
        }
    }

    /// Whether the unit has given up.
    pub async fn has_failed(&self, unit: &str) -> Result<bool, SystemdError> {
        let state = self
            .property(
                object_path(unit),
                "org.freedesktop.systemd1.Unit",
                "ActiveState",
            )
            .await
            .map_err(|error| refused("look at", unit, error))?;
        Ok(<&str>::try_from(&*state).is_ok_and(|it| it == "failed"))
    }

    /// The number of systemd's version; `None` where it cannot be parsed.
    pub async fn version(&self) -> Option<u32> {
        let path = OwnedObjectPath::try_from(PATH).ok()?;
        let version = self.property(path, MANAGER, "Version").await.ok()?;
        let text = <&str>::try_from(&*version).ok()?;
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }

    async fn property(
        &self,
        path: OwnedObjectPath,
        interface: &str,
        name: &str,
    ) -> zbus::Result<OwnedVariant> {
        let answer = self
            .0
            .call_method(
                Some(SYSTEMD),
                path,
                Some(PROPERTIES),
                "Get",
                &(interface, name),
            )
            .await?;
        answer.body().deserialize()
    }

    /// Makes systemd read all units again, and start this one at boot.
    pub async fn enable(&self, unit: &str) -> Result<(), SystemdError> {
        let failed = |error| refused("enable", unit, error);
        self.call("Reload", &()).await.map_err(failed)?;
        self.call("EnableUnitFiles", &([unit].as_slice(), false, false))
            .await
            .map_err(failed)?;
        Ok(())
    }

    /// Starts a unit at boot no more.
    pub async fn disable(&self, unit: &str) -> Result<(), SystemdError> {
        match self
            .call("DisableUnitFiles", &([unit].as_slice(), false))
            .await
        {
            Ok(_) => Ok(()),
            Err(error) => Err(refused("disable", unit, error)),
        }
    }

    /// Listens for changes of a unit.
    pub async fn changes(&self, unit: &str) -> Result<Changes, SystemdError> {
        let failed = |error| refused("listen to", unit, error);
        self.call("Subscribe", &()).await.map_err(failed)?;
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(SYSTEMD)
            .interface(PROPERTIES)
            .path(object_path(unit))
            .build()
            .map_err(failed)?;
        let stream = MessageStream::for_match_rule(rule, &self.0, None).await;
        Ok(Changes(stream.map_err(failed)?))
    }

    async fn call<B>(&self, method: &'static str, body: &B) -> zbus::Result<zbus::Message>
    where
        B: serde::Serialize + zbus::zvariant::DynamicType,
    {
        self.0
            .call_method(Some(SYSTEMD), PATH, Some(MANAGER), method, body)
            .await
    }
}

/// A change of a unit is several signals, one for each of its interfaces.
const CHANGES_SETTLE: Duration = Duration::from_millis(20);
const CHANGES_AT_ONCE: usize = 16;

/// Signals that something about a unit changed.
#[derive(Debug)]
pub struct Changes(MessageStream);

impl Changes {
    /// Waits for the next one, and takes those that come with it; `false`: the bus went away.
    pub async fn next(&mut self) -> bool {
        let mut alive = self.one().await;
        for _ in 0..CHANGES_AT_ONCE {
            match tokio::time::timeout(CHANGES_SETTLE, self.one()).await {
                Ok(it) if alive => alive = it,
                _ => break,
            }
        }
        alive
    }

    async fn one(&mut self) -> bool {
        let next = std::future::poll_fn(|context| Pin::new(&mut self.0).poll_next(context)).await;
        matches!(next, Some(Ok(_)))
    }
}

/// systemd's words for people.
fn refused(what: &'static str, unit: &str, error: zbus::Error) -> SystemdError {
    let unit = unit.to_owned();
    // Errors of the bus itself come as a type of their own, others by name.
    let (name, why) = match error {
        zbus::Error::MethodError(name, why, _) => (name.to_string(), why.unwrap_or_default()),
        zbus::Error::FDO(error) => (
            error.name().to_string(),
            error.description().unwrap_or_default().to_owned(),
        ),
        other => (String::new(), other.to_string()),
    };
    match name.rsplit('.').next().unwrap_or_default() {
        "NoSuchUnit" => SystemdError::NoUnit { unit },
        "AccessDenied" | "InteractiveAuthorizationRequired" => {
            SystemdError::NotAllowed { what, unit }
        }
        _ => SystemdError::Refused { what, unit, why },
    }
}

/// The bus' path of a unit: everything but letters and digits as `_` and its code
/// (sd_bus_path_encode).
fn object_path(unit: &str) -> OwnedObjectPath {
    let mut path = String::from("/org/freedesktop/systemd1/unit/");
    for byte in unit.bytes() {
        if byte.is_ascii_alphanumeric() {
            path.push(char::from(byte));
        } else {
            use std::fmt::Write as _;
            let _ = write!(path, "_{byte:02x}");
        }
    }
    OwnedObjectPath::try_from(path).unwrap_or_default()
}
