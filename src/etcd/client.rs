//! etcd's API, one question at a time, each with a deadline.
//!
//! Every pass asks over a new connection: what it proves is a handshake with the certificates of
//! today, as a client would make it (rules D7, D42). Nothing asked here is written to etcd's log:
//! alarms come from the status, because the alarm request itself goes through Raft.

use std::fs;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, CompactionOptions, ConnectOptions, Identity, StatusResponse, TlsOptions,
};
use tokio::time::timeout;

use crate::cluster::{
    ClusterId, Health, Member, MemberId, MemberName, MemberSet, PeerUrl, Role, detail,
};
use crate::observed::{Alarms, Details, Membership, Reading, Writing};
use crate::tls::ClientFiles;
use crate::version::Version;

/// A key that is read and removed, and never exists. Removing it goes through Raft, the log and the
/// store like every write, and leaves nothing behind, not even a revision.
const PROBE_KEY: &str = "etcd-operator/probe";
/// A slow disk may take its time; beyond this the answer is "no".
const ANSWER_DEADLINE: Duration = Duration::from_secs(4);
/// Handshakes take long on small boards under load (rule C5), and loopback connects at once.
const CONNECT_DEADLINE: Duration = Duration::from_secs(4);
/// What has no deadline of its own (a snapshot, defragmenting: rule D31) ends when the machine at the other
/// end has gone without a word; later than a snapshot's stream gives up by itself, which says more.
const ALIVE_EVERY: Duration = Duration::from_secs(60);
const ALIVE_DEADLINE: Duration = Duration::from_secs(30);

/// What one look at etcd brought.
pub struct Look {
    /// The read.
    pub read: Reading,
    /// The member list.
    pub membership: Membership,
    /// Alarms.
    pub alarms: Alarms,
    /// The rest.
    pub details: Option<Details>,
    /// It says that it has no vote.
    pub learner: bool,
    /// The connection, if it answered.
    pub client: Option<Client>,
}

impl Look {
    /// A look that brought nothing but this.
    pub fn failed(read: Reading) -> Self {
        Look {
            read,
            membership: Membership::Unreachable,
            alarms: Alarms::default(),
            details: None,
            learner: false,
            client: None,
        }
    }
}

/// Connects, reads linearizably, asks for status and members.
pub async fn look(url: &str, files: &ClientFiles) -> Look {
    let client = match timeout(CONNECT_DEADLINE, connect(url, files)).await {
        Ok(Ok(client)) => client,
        Ok(Err(why)) => return Look::failed(Reading::Failed(detail(format_args!("{why}")))),
        Err(_) => return Look::failed(Reading::TimedOut),
    };
    questions(client).await
}

/// Connects with mutual TLS; the reason in plain words where that fails.
pub async fn connect(url: &str, files: &ClientFiles) -> Result<Client, String> {
    let read = |path: &std::path::Path| {
        fs::read(path).map_err(|error| format!("failed to read {}: {error}", path.display()))
    };
    let identity = Identity::from_pem(read(&files.cert)?, read(&files.key)?);
    let mut tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read(&files.ca)?))
        .identity(identity);
    if let Some(name) = &files.server_name {
        tls = tls.domain_name(name);
    }
    let options = ConnectOptions::new()
        .with_tls(tls)
        .with_connect_timeout(CONNECT_DEADLINE)
        .with_keep_alive(ALIVE_EVERY, ALIVE_DEADLINE);
    Client::connect([url], Some(options))
        .await
        .map_err(|error| plain(&error))
}

/// The member answers for itself at once; the read waits for a majority, and says whether what the member
/// answers is worth more than a word. It tells its list after the read, so that the list has every change that a majority
/// had agreed on by then.
async fn questions(client: Client) -> Look {
    let (mut reader, mut asker) = (client.clone(), client.clone());
    let (read, status) = tokio::join!(
        timeout(ANSWER_DEADLINE, reader.get(PROBE_KEY, None)),
        timeout(ANSWER_DEADLINE, asker.status()),
    );
    let told = match status {
        Ok(Ok(status)) => timeout(ANSWER_DEADLINE, tell(&mut asker, status)).await,
        Ok(Err(error)) => Ok(Err(error)),
        Err(late) => Err(late),
    };
    let failed = |error: &etcd_client::Error| detail(format_args!("{}", plain(error)));
    let (read, revision) = match read {
        Ok(Ok(answer)) => {
            let header = answer.header();
            let revision = header.map_or(0, etcd_client::ResponseHeader::revision);
            (Reading::Answered, Some(revision))
        }
        Ok(Err(error)) if is_refused_by_auth(&error) => {
            (Reading::NotPermitted(failed(&error)), None)
        }
        Ok(Err(error)) => (Reading::Failed(failed(&error)), None),
        Err(_) => (Reading::TimedOut, None),
    };
    match (read, told) {
        (Reading::Answered, Ok(Ok(told))) => Look {
            read: Reading::Answered,
            membership: told
                .members
                .map_or(Membership::TooManyMembers, Membership::Known),
            alarms: told.alarms,
            details: Some(Details {
                revision: revision.unwrap_or(told.details.revision),
                ..told.details
            }),
            learner: false, // etcd lets no learner read for a client
            client: Some(client),
        },
        (Reading::Answered, Ok(Err(error))) => Look::failed(Reading::Failed(failed(&error))),
        (Reading::Answered, Err(_)) => Look::failed(Reading::TimedOut),
        // etcd serves its users: what it tells of itself is as good as ever.
        (read @ Reading::NotPermitted(_), Ok(Ok(told))) => Look {
            membership: told
                .members
                .map_or(Membership::TooManyMembers, Membership::Unconfirmed),
            alarms: told.alarms,
            details: Some(told.details),
            ..Look::failed(read)
        },
        (read, Ok(Ok(told))) => Look {
            learner: told.is_learner(),
            membership: told
                .members
                .map_or(Membership::Unreachable, Membership::Unconfirmed),
            ..Look::failed(read)
        },
        (read, _) => Look::failed(read),
    }
}

/// etcd's own auth says so, and nothing else does.
fn is_refused_by_auth(error: &etcd_client::Error) -> bool {
    let words = plain(error);
    let told = matches!(error, etcd_client::Error::GRpcStatus(_));
    told && [
        "permission denied",
        "user name is empty",
        "user name not found",
        "invalid auth token",
    ]
    .iter()
    .any(|it| words.contains(it))
}

/// What a member tells without asking any other.
struct Told {
    /// None: more than this operator can hold.
    members: Option<MemberSet>,
    alarms: Alarms,
    details: Details,
}

impl Told {
    fn is_learner(&self) -> bool {
        let own = self.details.member;
        let listed = self.members.as_ref().and_then(|it| it.by_id(own));
        listed.is_some_and(|it| it.role != Role::Voter)
    }
}

async fn tell(client: &mut Client, status: StatusResponse) -> Result<Told, etcd_client::Error> {
    let listed = client.member_list().await?;
    let header = status.header();
    let own = MemberId(header.map_or(0, etcd_client::ResponseHeader::member_id));
    let cluster = ClusterId(header.map_or(0, etcd_client::ResponseHeader::cluster_id));
    let mut members = Some(MemberSet::of(cluster));
    for it in listed.members() {
        let peer_url = it.peer_urls().first().map_or("", String::as_str);
        let member = Member {
            id: MemberId(it.id()),
            name: MemberName::try_from(it.name()).unwrap_or_default(),
            peer_url: PeerUrl::try_from(peer_url).unwrap_or_default(),
            role: if it.is_learner() {
                Role::Learner { caught_up: false }
            } else {
                Role::Voter
            },
            health: if MemberId(it.id()) == own {
                Health::Serving
            } else {
                Health::Unknown
            },
        };
        members = members.and_then(|mut set| set.insert(member).is_ok().then_some(set));
    }
    let told = |text: &str| status.errors().iter().any(|it| it.contains(text));
    let bytes = |it: i64| u64::try_from(it).unwrap_or(0);
    Ok(Told {
        members,
        alarms: Alarms {
            no_space: told("NOSPACE"),
            corrupt: told("CORRUPT"),
        },
        details: Details {
            cluster,
            member: own,
            leader: (status.leader() != 0).then_some(MemberId(status.leader())),
            revision: header.map_or(0, etcd_client::ResponseHeader::revision),
            raft_index: status.raft_index(),
            db_size: bytes(status.db_size()),
            db_in_use: bytes(status.raft_used_db_size()),
            downgrade_to: downgrade_of(&status),
            storage: status.storage_version().parse().ok(),
        },
    })
}

/// The version to which etcd lowers its data.
pub fn downgrade_of(status: &etcd_client::StatusResponse) -> Option<Version> {
    let enabled = status.downgrade_info().filter(|it| it.enabled())?;
    enabled.target_version().parse().ok()
}

/// The store's revision, by a linearizable read.
pub async fn revision(client: &mut Client) -> Result<i64, etcd_client::Error> {
    let read = client.get(PROBE_KEY, None).await?;
    Ok(read
        .header()
        .map_or(0, etcd_client::ResponseHeader::revision))
}

/// One write that leaves nothing behind (rule D7: a member without its log answers reads).
pub async fn probe_write(client: &mut Client) -> Writing {
    match timeout(ANSWER_DEADLINE, client.delete(PROBE_KEY, None)).await {
        Ok(Ok(_)) => Writing::Acknowledged,
        Ok(Err(error)) => Writing::Failed(detail(format_args!("{}", plain(&error)))),
        Err(_) => Writing::Failed(detail(format_args!(
            "no answer within {} s",
            ANSWER_DEADLINE.as_secs()
        ))),
    }
}

/// Compacts at the current revision and defragments this member (rule D28). The database's size
/// and what is in use of it, afterwards.
pub async fn compact_and_defragment(client: &mut Client) -> Result<(u64, u64), etcd_client::Error> {
    let revision = revision(client).await?;
    let options = CompactionOptions::new().with_physical();
    match client.compact(revision, Some(options)).await {
        Ok(_) => {}
        // Compacted there before: as good.
        Err(error) if plain(&error).contains("compacted") => {}
        Err(error) => return Err(error),
    }
    client.defragment().await?; // no deadline: never stopped half-way (rule D31)
    let status = client.status().await?;
    let bytes = |it: i64| u64::try_from(it).unwrap_or(0);
    Ok((bytes(status.db_size()), bytes(status.raft_used_db_size())))
}

/// Disarms the NOSPACE alarm of this member, after space was really regained, and of members that are none any more: nobody
/// else would, and etcd refuses writes as long as one is on (rule A8).
pub async fn disarm_no_space(
    client: &mut Client,
    member: MemberId,
) -> Result<(), etcd_client::Error> {
    use etcd_client::{AlarmAction, AlarmMember, AlarmOptions, AlarmType::Nospace};
    let told = client.alarm(AlarmAction::Get, Nospace, None).await?;
    let listed = client.member_list().await?;
    let is_gone = |id: &u64| !listed.members().iter().any(|it| it.id() == *id);
    let armed = told.alarms().iter().map(AlarmMember::member_id);
    for id in std::iter::once(member.0).chain(armed.filter(is_gone)) {
        let mut options = AlarmOptions::new();
        options.with_member(id);
        let disarm = client.alarm(AlarmAction::Deactivate, Nospace, Some(options));
        disarm.await?;
    }
    Ok(())
}

/// An error in its own words, down to its last source: what a transport says first is "transport
/// error".
pub fn plain(error: &etcd_client::Error) -> String {
    use etcd_client::Error;
    let (first, source): (String, Option<&dyn std::error::Error>) = match error {
        Error::GRpcStatus(status) => (
            status.message().to_owned(),
            std::error::Error::source(status),
        ),
        Error::TransportError(transport) => {
            (transport.to_string(), std::error::Error::source(transport))
        }
        other => (other.to_string(), None),
    };
    let mut text = first;
    let mut source = source;
    while let Some(it) = source {
        text = it.to_string();
        source = it.source();
    }
    text
}
