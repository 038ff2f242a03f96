//! `plan()`: what it allocates and how long it takes.

use std::hint::black_box;
use std::time::Instant;

use etcd_operator::cluster::{
    ClusterId, ClusterName, Health, Member, MemberId, MemberName, MemberSet, PeerUrl, Role,
    Timestamp,
};
use etcd_operator::document;
use etcd_operator::observed::{
    Alarms, Authority, Backups, CaState, Certificates, Claim, Clock, Details, DocumentSeen,
    INSTANCES_MAX, Instance, ListFrom, Looker, Membership, Observed, Pairs, Placement, Process,
    Proposals, Reading, Service, Writing,
};
use etcd_operator::plan::plan;
use etcd_operator::spec::{ClusterSpec, MemberSpec};
use etcd_operator::start::{
    Binary, CertificatesUsable, DataDir, Database, Facts, Filesystem, Identity, Room, StartHistory,
    Writable,
};
use etcd_operator::version::Version;

use crate::table::Row;

const VERSION: Version = Version::new(3, 6, 15);
const NOW: Timestamp = Timestamp(1_800_000_000);
const CALLS: u32 = 200_000;
const ROUNDS: usize = 7;

const DOCUMENT: &str = "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata:\n  name: bench\nspec: {}\n";

fn name(number: usize) -> MemberName {
    MemberName::try_from(format!("bench-{number}").as_str()).unwrap()
}

#[expect(clippy::too_many_lines, reason = "one value, field by field")]
fn instance(spec: &ClusterSpec, number: usize) -> Instance {
    let id = MemberId(number as u64 + 1);
    let identity = Identity {
        cluster: ClusterName::try_from("bench").unwrap(),
        member: name(number),
        version: VERSION,
        other_version: None,
        goes_back: false,
        quota: 2 << 30,
        joined: false,
        served: Some((ClusterId(7), id)),
    };
    Instance {
        member: name(number),
        process: Process::Running {
            pid: 4242,
            settings: spec.settings,
            version: VERSION,
            quota: identity.quota,
            seconds: 3600,
        },
        terminating: 0,
        unheard: None,
        no_place: None,
        placement: Placement::default(),
        claim: Claim::Stays,
        alone: false,
        last_served: None,
        writable: Writable::Yes,
        facts: Facts {
            cluster: identity.cluster.clone(),
            hibernates: false,
            restoring: false,
            unreadable: None,
            version: VERSION,
            unsafe_filesystem_allowed: false,
            identity: Some(identity.clone()),
            marker: Some(identity),
            data: DataDir {
                wal_segments: 1,
                wal_from_start: true,
                database: Database::Present,
                owner: Some((ClusterId(7), id)),
                ..DataDir::EMPTY
            },
            strange_etcd: None,
            room: Room::AMPLE,
            filesystem: Filesystem::Disk,
            writable: Writable::Yes,
            binary: Binary::Ready,
            certificates: CertificatesUsable::Yes,
            conflict: None,
            seen: None,
            history: StartHistory::NONE,
        },
        newest_installed: Some(VERSION),
        tries: etcd_operator::observed::Tries::default(),
        quota_at_birth: 2 << 30,
        certificates: Certificates {
            pairs: Pairs::Usable,
            provisional: false,
            not_before: Timestamp(NOW.0 - 86_400),
            not_after: Timestamp(NOW.0 + 300 * 86_400),
            authority_not_after: Timestamp(NOW.0 + 7000 * 86_400),
            authorities: CaState::Usable,
            clients_due: false,
            issued_earliest: None,
        },
        service: Service {
            read: Reading::Answered,
            write: Writing::Acknowledged,
            alarms: Alarms::default(),
            proposals: Proposals::Moving,
            details: Some(Details {
                cluster: ClusterId(7),
                member: id,
                leader: Some(MemberId(1)),
                revision: 1000,
                raft_index: 1000,
                db_size: 1 << 24,
                db_in_use: 1 << 23,
                downgrade_to: None,
                storage: None,
            }),
        },
        restart_in: 0,
        made_for: None,
        refused: None,
        machine_changed: false,
        kept_elsewhere: false,
        unserved: None,
        list_from: ListFrom::Operator,
        regain: None,
    }
}

fn observed(spec: &ClusterSpec, members: usize) -> Observed {
    let mut set = MemberSet::default();
    let mut instances = heapless::Vec::new();
    for number in 0..members {
        let member = Member {
            id: MemberId(number as u64 + 1),
            name: name(number),
            // The eighth is the learner: there are at most seven voters.
            peer_url: PeerUrl::new(),
            role: if number + 1 == INSTANCES_MAX {
                Role::Learner { caught_up: false }
            } else {
                Role::Voter
            },
            health: Health::Serving,
        };
        set.insert(member).unwrap();
        instances.push(instance(spec, number)).unwrap();
    }
    Observed {
        paused: None,
        unreached: None,
        now: NOW,
        clock: Clock::Trusted,
        authority: Authority::Cluster,
        membership: Membership::Known(set),
        failed: None,
        host: None,
        backups: Backups::default(),
        predecessors: etcd_operator::observed::Predecessors::None,
        upgrade: etcd_operator::observed::Upgrade::None,
        restoring: None,
        document: DocumentSeen::Accepted,
        looker: Looker::Operator,
        instances,
    }
}

fn row(members: usize, stopped: bool) -> Row {
    let mut spec = document::parse(DOCUMENT.as_bytes()).unwrap();
    spec.size = u8::try_from(members).unwrap();
    spec.members = (0..members.min(spec.members.capacity()))
        .map(|it| MemberSpec {
            name: name(it),
            peer_url: PeerUrl::new(),
        })
        .collect();
    let mut observed = observed(&spec, members);
    if stopped {
        for it in &mut observed.instances {
            it.process = Process::Stopped;
            it.service = Service::UNKNOWN;
        }
        observed.membership = Membership::Unreachable;
    }
    let allocations = allocation_counter::measure(|| {
        black_box(plan(black_box(&spec), black_box(&observed)));
    });
    let mut nanoseconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..CALLS {
                black_box(plan(black_box(&spec), black_box(&observed)));
            }
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    nanoseconds.sort_by(f64::total_cmp);
    let what = if stopped { "all stopped" } else { "all well" };
    let plural = if members == 1 { "member" } else { "members" };
    Row::new(
        format!("plan(), {members} {plural}, {what}"),
        format!(
            "{} allocations, {:.0} ns",
            allocations.count_total,
            nanoseconds[ROUNDS / 2]
        ),
    )
    .promised("0 allocations", allocations.count_total == 0)
}

/// One and eight members, well and stopped.
pub fn rows() -> Vec<Row> {
    [
        (1, false),
        (1, true),
        (INSTANCES_MAX, false),
        (INSTANCES_MAX, true),
    ]
    .map(|(members, stopped)| row(members, stopped))
    .into()
}
