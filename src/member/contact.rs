//! Calls a member's etcd, for both modes, and keeps state between calls. What a restart forgets of it is asked
//! anew.

use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::{Client, DowngradeOptions};
use tokio::time::timeout;

use crate::clock;
use crate::cluster::MemberId;
use crate::etcd::client::Look;
use crate::etcd::{client, metrics};
use crate::member::records::IdentityFile;
use crate::observed::{
    self, Instance, Membership, Process, Proposals, Reading, Regain, Service, Writing,
};
use crate::plan::space;
use crate::tls::ClientFiles;
use crate::version::{Line, SHORT_LOG, Version};

/// Where a member's etcd is reached.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// For clients.
    pub url: String,
    /// The operator's own certificate.
    pub files: ClientFiles,
    /// Its metrics.
    pub metrics: SocketAddr,
    /// It has joined, and was not seen to serve since.
    pub joins: bool,
}

/// A member that joins serves clients late: etcd waits for its own name in the member list, 6 s and more where
/// the data came as a snapshot (measured with 3.6 and 3.7). Its port takes connections before. So a look at it
/// waits for 40 ms at first, because others wait for it, and on a slow board longer: for a twentieth of the time
/// since the first look at the process.
const JOINING_PATIENCE: Duration = Duration::from_millis(40);
const JOINING_PATIENCE_MAX: Duration = Duration::from_secs(1);
const JOINING_PART: u32 = 20;

/// Asks a member's etcd. One that joins counts once it follows a leader.
pub async fn look(endpoint: &Endpoint) -> Look {
    look_for(endpoint, JOINING_PATIENCE).await
}

async fn look_for(endpoint: &Endpoint, patience: Duration) -> Look {
    let asked = client::look(&endpoint.url, &endpoint.files);
    if !endpoint.joins {
        let look = asked.await;
        if !look.learner {
            return look;
        }
        let numbers = timeout(JOINING_PATIENCE_MAX, metrics::read(endpoint.metrics)).await;
        return match numbers.ok().flatten().and_then(|it| it.following) {
            Some(answer) => Look::failed(Reading::Joining(answer)),
            None => look,
        };
    }
    let (look, numbers) = tokio::join!(
        timeout(patience, asked),
        timeout(JOINING_PATIENCE_MAX, metrics::read(endpoint.metrics)),
    );
    let look = look.unwrap_or_else(|_| Look::failed(Reading::TimedOut));
    if look.read == Reading::Answered {
        return look;
    }
    match numbers.ok().flatten().and_then(|it| it.following) {
        Some(answer) => Look::failed(Reading::Joining(answer)),
        None => look,
    }
}

/// Why a call to etcd failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to {what}: {why}")]
pub struct CallError {
    /// Which call.
    pub what: &'static str,
    /// etcd's reason.
    pub why: String,
}

/// Has the leader hand its leadership over to this member, and waits until it has.
///
/// # Errors
/// etcd refused, or did not answer in time. The leader is as before, or the other one.
pub async fn give_up_leadership(endpoint: &Endpoint, to: MemberId) -> Result<(), CallError> {
    let what = "hand the leadership over";
    let mut client = connect(what, endpoint).await?;
    call(what, LEADERSHIP_DEADLINE, client.move_leader(to.0)).await?;
    Ok(())
}

/// Where etcd is changed from 3.5 to 3.6, writes the entries after which it begins its log anew ([`SHORT_LOG`]): 3.7 could not
/// read it.
///
/// # Errors
/// A write was refused, or not answered in time.
pub async fn begin_log_anew(
    endpoint: &Endpoint,
    identity: Option<&IdentityFile>,
) -> Result<(), CallError> {
    let from = identity.and_then(IdentityFile::other_version);
    let to = identity.and_then(IdentityFile::version);
    let lines = (from.and_then(Version::line), to.and_then(Version::line));
    if lines != (Some(Line::V3_5), Some(Line::V3_6)) {
        return Ok(());
    }
    let what = "begin the log anew";
    let mut client = connect(what, endpoint).await?;
    for _ in 0..=SHORT_LOG {
        if let Writing::Failed(why) = client::probe_write(&mut client).await {
            let why = why.to_string();
            return Err(CallError { what, why });
        }
    }
    Ok(())
}

/// Has etcd lower the version of its data to the line of this version (rule D24), unless it does already. etcd is asked first
/// whether that line can follow.
///
/// # Errors
/// etcd refused, or did not answer in time.
pub async fn enable_downgrade(endpoint: &Endpoint, to: Version) -> Result<(), CallError> {
    let enable = "enable etcd's downgrade";
    let client = &mut connect(enable, endpoint).await?;
    if downgrade_under_way(client).await?.and_then(Version::line) == to.line() {
        return Ok(());
    }
    let line = format!("{}.{}.0", to.major, to.minor);
    let validate = DowngradeOptions::Validate(line.clone());
    downgrade("validate etcd's downgrade", client, validate).await?;
    downgrade(enable, client, DowngradeOptions::Enable(line)).await
}

/// Has etcd end a downgrade; none has to be under way.
///
/// # Errors
/// etcd refused, or did not answer in time.
pub async fn cancel_downgrade(endpoint: &Endpoint) -> Result<(), CallError> {
    let what = "cancel etcd's downgrade";
    let client = &mut connect(what, endpoint).await?;
    if downgrade_under_way(client).await?.is_none() {
        return Ok(());
    }
    downgrade(what, client, DowngradeOptions::Cancel).await?;
    // etcd 3.6 and 3.7 say that it is cancelled, also where nobody acknowledged that (`downgradeCancel` in v3_server.go).
    match downgrade_under_way(client).await? {
        None => Ok(()),
        Some(_) => Err(CallError {
            what,
            why: "it is still enabled".to_owned(),
        }),
    }
}

/// The version to which etcd lowers its data. etcd 3.5 does not tell it, and ends its own downgrade by itself.
async fn downgrade_under_way(client: &mut Client) -> Result<Option<Version>, CallError> {
    let status = call("read etcd's status", DOWNGRADE_DEADLINE, client.status()).await?;
    Ok(client::downgrade_of(&status))
}

async fn downgrade(
    what: &'static str,
    client: &Client,
    asked: DowngradeOptions,
) -> Result<(), CallError> {
    let mut client = client.maintenance_client();
    call(what, DOWNGRADE_DEADLINE, client.downgrade(asked)).await?;
    Ok(())
}

/// Longer than etcd waits for a proposal with the slowest timing that this operator renders.
const DOWNGRADE_DEADLINE: Duration = Duration::from_secs(15);

/// Connects for a call.
async fn connect(what: &'static str, endpoint: &Endpoint) -> Result<Client, CallError> {
    let connected = client::connect(&endpoint.url, &endpoint.files).await;
    connected.map_err(|why| CallError { what, why })
}

/// Waits for etcd's answer to a call.
///
/// # Errors
/// etcd refused, or did not answer in time.
pub(super) async fn call<T>(
    what: &'static str,
    deadline: Duration,
    asked: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, CallError> {
    let why = match timeout(deadline, asked).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => client::plain(&error),
        Err(_) => format!("no answer within {} s", deadline.as_secs()),
    };
    Err(CallError { what, why })
}

/// Longer than an election takes with the slowest timing that this operator renders.
const LEADERSHIP_DEADLINE: Duration = Duration::from_secs(15);

/// State from the last calls to one member.
#[derive(Default)]
pub struct Contact {
    /// The last connection, if this pass may still need it. Idle connections are not kept: a
    /// controller of 50 clusters would hold 50 of them, with their buffers.
    client: Option<Client>,
    /// When the process was first asked, since boot.
    since: Duration,
    /// The id of the process that was asked last.
    process: Option<u32>,
    /// It joins, and has answered no client yet.
    joins: bool,
    /// The last attempt to write to it.
    written: Option<Writing>,
    /// The last attempt to regain space that was not enough, and when (seconds since boot).
    regain: Option<(Regain, u64)>,
    /// The metrics of the pass before.
    numbers: Option<metrics::Numbers>,
}

impl Contact {
    /// Whether the member joins its cluster, also once its ids are written down: until it answers a client.
    pub fn joins(&self, identity: Option<&IdentityFile>) -> bool {
        self.joins || identity.is_some_and(IdentityFile::joins)
    }

    /// Asks etcd. `served`: the cluster has served before, so it has ids.
    pub async fn look(
        &mut self,
        endpoint: &Endpoint,
        process: Process,
        served: bool,
    ) -> (Service, Membership) {
        let Process::Running { pid, .. } = process else {
            self.forget();
            let membership = if served {
                Membership::Unreachable
            } else {
                Membership::Unbootstrapped
            };
            return (Service::UNKNOWN, membership);
        };
        // etcd may have restarted since the last call.
        if self.process != Some(pid) {
            self.forget();
            self.process = Some(pid);
            self.since = clock::since_boot();
        }
        let asked_for = clock::since_boot().saturating_sub(self.since);
        let patience = (asked_for / JOINING_PART).clamp(JOINING_PATIENCE, JOINING_PATIENCE_MAX);
        let look = look_for(endpoint, patience).await;
        let answered = look.read == Reading::Answered;
        let follows = matches!(look.read, Reading::Joining(_));
        self.joins = !answered && (endpoint.joins || follows);
        let write = self.written.clone().unwrap_or(Writing::NotTried);
        let proposals = if answered && write == Writing::Acknowledged {
            self.proposals(endpoint.metrics).await
        } else {
            Proposals::Unknown
        };
        let more = write != Writing::Acknowledged || look.alarms.no_space;
        self.client = look.client.filter(|_| more);
        let service = Service {
            read: look.read,
            write,
            alarms: look.alarms,
            proposals,
            details: look.details,
        };
        // Whoever waits to join a cluster that has never served says nothing of it.
        let waits = self.joins && !served && look.membership == Membership::Unreachable;
        let membership = if waits {
            Membership::Unbootstrapped
        } else {
            look.membership
        };
        (service, membership)
    }

    /// Asks etcd again for its id and its member list, right before it is interrupted.
    pub async fn look_again(
        &mut self,
        endpoint: &Endpoint,
        process: Process,
    ) -> (Option<MemberId>, Membership) {
        if !matches!(process, Process::Running { .. }) {
            return (None, Membership::Unreachable);
        }
        let look = look(endpoint).await;
        let id = observed::answer(&look.read, look.details).map(|it| it.member);
        self.client = look.client;
        (
            id.or_else(|| look.details.map(|it| it.member)),
            look.membership,
        )
    }

    /// Forgets what was proven about the last process. It is not proven for the next one.
    pub fn forget(&mut self) {
        self.client = None;
        self.numbers = None;
        self.process = None;
        self.written = None;
    }

    /// The last attempt to regain space, until the alarm is gone.
    pub fn regain(&mut self, service: &Service) -> Option<Regain> {
        if service.read == Reading::Answered && !service.alarms.no_space {
            self.regain = None;
        }
        let (attempt, at) = self.regain?;
        let seconds = clock::since_boot().as_secs().saturating_sub(at);
        Some(Regain { seconds, ..attempt })
    }

    /// Whether proposals are applied. Stuck: some waited in this pass and in the one before, and
    /// none was applied in between.
    async fn proposals(&mut self, address: SocketAddr) -> Proposals {
        let numbers = metrics::read(address).await;
        let before = std::mem::replace(&mut self.numbers, numbers);
        match (before, numbers) {
            (_, Some(now)) if now.pending < 0.5 => Proposals::Moving,
            (Some(before), Some(now)) if before.pending > 0.5 && before.applied >= now.applied => {
                Proposals::Stuck
            }
            (Some(_), Some(_)) => Proposals::Moving,
            (_, None) | (None, Some(_)) => Proposals::Unknown,
        }
    }

    /// Sends one write that leaves nothing behind. Returns whether etcd acknowledged it.
    pub async fn probe_write(&mut self, process: Option<Process>) -> bool {
        let Some(client) = self.client.as_mut() else {
            return false;
        };
        let written = client::probe_write(client).await;
        let acknowledged = written == Writing::Acknowledged;
        let looked_at = self.process;
        if matches!(process, Some(Process::Running { pid, .. }) if Some(pid) == looked_at) {
            self.written = Some(written);
        }
        acknowledged
    }

    /// Compacts, defragments, checks the size, and only then disarms the alarm (rule D28).
    pub async fn regain_space(&mut self, instance: &Instance) -> Result<(), CallError> {
        let failed = |what| {
            move |error: etcd_client::Error| CallError {
                what,
                why: client::plain(&error),
            }
        };
        let details = instance.service.details;
        let quota = space::quota(instance);
        let (Some(client), Some(details)) = (self.client.as_mut(), details) else {
            return Ok(());
        };
        // Count the attempt before it is made, so that one that fails half-way is not repeated in
        // every pass.
        let attempts = self.regain.map_or(0, |(it, _)| it.attempts);
        let mut attempt = Regain {
            revision: details.revision,
            in_use: details.db_in_use,
            attempts: attempts.saturating_add(1),
            seconds: 0,
        };
        self.regain = Some((attempt, clock::since_boot().as_secs()));
        let (size, in_use) = client::compact_and_defragment(client)
            .await
            .map_err(failed("compact and defragment"))?;
        attempt.in_use = in_use;
        self.regain = Some((attempt, clock::since_boot().as_secs()));
        tracing::info!(size, in_use, quota, "compacted and defragmented");
        if size > space::regained(quota) {
            return Err(CallError {
                what: "regain space",
                why: format!(
                    "{} MiB of the quota's {} MiB are live data: delete keys, then compact",
                    in_use >> 20,
                    quota >> 20
                ),
            });
        }
        self.disarm(details.member).await
    }

    /// Disarms the alarm where there is already space: the quota was raised, or a person freed
    /// space (rule D28).
    pub async fn accept_writes(&mut self, instance: &Instance) -> Result<(), CallError> {
        match instance.service.details {
            Some(details) => self.disarm(details.member).await,
            None => Ok(()),
        }
    }

    async fn disarm(&mut self, member: MemberId) -> Result<(), CallError> {
        let Some(client) = self.client.as_mut() else {
            return Ok(());
        };
        let disarmed = client::disarm_no_space(client, member).await;
        disarmed.map_err(|error| CallError {
            what: "disarm the NOSPACE alarm",
            why: client::plain(&error),
        })?;
        self.regain = None;
        // A write must be proven again.
        self.written = None;
        Ok(())
    }
}
