//! Observations built by hand, for the tests of the core.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test")]

pub mod raft;
pub mod random;

use etcd_operator::cluster::{
    ClusterId, ClusterName, Health, Member, MemberId, MemberName, MemberSet, PeerUrl, Role,
    Timestamp,
};
use etcd_operator::diagnosis;
use etcd_operator::observed::{
    Alarms, Authority, Backups, CaState, Certificates, Claim, Clock, Details, DocumentSeen,
    Instance, ListFrom, Looker, Membership, Observed, Pairs, Predecessor, Predecessors, Process,
    Proposals, Reading, Service, SnapshotSeen, Tries, Upgrade, Writing,
};
use etcd_operator::spec::backup::{Backup, Destination, Keep, Place, Trigger};
use etcd_operator::spec::{
    AutoCompaction, ClusterSpec, MemberSpec, Network, Options, Profile, Settings,
};
use etcd_operator::start::damage::{Damage, LOG_DAMAGED, Lost};
use etcd_operator::start::{
    Binary, CertificatesUsable, DataDir, Database, Ending, Facts, Filesystem, Identity, Refusal,
    Room, StartHistory, Writable,
};
use etcd_operator::version::Version;

pub const NOW: Timestamp = Timestamp(1_800_000_000);
pub const CLUSTER: ClusterId = ClusterId(0xc1);
pub const MEMBER: MemberId = MemberId(1);
pub const VERSION: Version = Version::new(3, 6, 16);
pub const SETTINGS: Settings = Settings(7);
pub const DAY: i64 = 86_400;
pub const QUOTA: u64 = 1 << 30;

pub fn name(text: &str) -> MemberName {
    MemberName::try_from(text).unwrap()
}

/// A member of the document, at an address of its own.
pub fn place(member: &str) -> MemberSpec {
    let url = format!("https://{member}:2380");
    MemberSpec {
        name: name(member),
        peer_url: PeerUrl::try_from(url.as_str()).unwrap(),
    }
}

/// A document that asks for these members.
pub fn spec(members: &[&str]) -> ClusterSpec {
    ClusterSpec {
        name: ClusterName::try_from("test").unwrap(),
        size: u8::try_from(members.len()).unwrap(),
        members: members.iter().map(|it| place(it)).collect(),
        former: heapless::Vec::new(),
        own: 0,
        version: Some(VERSION),
        paused: false,
        profile: Profile::Edge,
        quota: None,
        storage_path: None,
        unsafe_filesystem_allowed: false,
        network: Network {
            client_port: 2379,
            peer_port: 2380,
            metrics_port: 2381,
            listen: heapless::Vec::new(),
            advertised: heapless::Vec::new(),
        },
        leaf_seconds: 365 * DAY,
        clients: heapless::Vec::new(),
        options: Options {
            auto_compaction: AutoCompaction::Hours(1),
            heartbeat: None,
            election: None,
            snapshot_count: None,
            max_request_bytes: None,
            max_txn_ops: None,
            memory_limit: None,
            http_gateway: true,
            log_level: "info",
        },
        repair_no_space: true,
        backup: None,
        bootstrap: None,
        restore_when_damaged: false,
        replace_failed: true,
        grace_seconds: etcd_operator::cluster::FAILED_SECONDS,
        skip_rehearsal: None,
        settings: SETTINGS,
    }
}

pub fn identity(served: bool) -> Identity {
    Identity {
        cluster: ClusterName::try_from("test").unwrap(),
        member: name("test-0"),
        version: VERSION,
        other_version: None,
        goes_back: false,
        quota: QUOTA,
        joined: false,
        served: served.then_some((CLUSTER, MEMBER)),
    }
}

pub fn data(wal: bool, database: bool, owner: Option<ClusterId>) -> DataDir {
    DataDir {
        wal_segments: u32::from(wal),
        wal_from_start: wal,
        database: if database {
            Database::Present
        } else {
            Database::Absent
        },
        owner: owner.map(|it| (it, MEMBER)),
        ..DataDir::EMPTY
    }
}

/// What a reader of the log found.
pub fn damage() -> Damage {
    Damage {
        reason: LOG_DAMAGED,
        file: "member/wal/0.wal".try_into().unwrap(),
        offset: Some(4096),
        what: "a record fails its checksum",
        lost: Lost::Entries {
            from: 103,
            to: Some(208),
        },
    }
}

/// Starts that failed; the last one with these words.
pub fn failed(failed: u32, text: Option<&str>) -> StartHistory {
    let diagnosis = text.map(|it| diagnosis::by_text(it).unwrap());
    StartHistory {
        failed,
        window_left: 300,
        ending: Ending {
            diagnosis,
            ..Ending::UNKNOWN
        },
    }
}

/// What destinations may hold of a cluster that lived elsewhere before.
pub fn predecessors(word: &str) -> Predecessors {
    match word {
        "looking" => Predecessors::Looking,
        "unreadable" => Predecessors::Unreadable("/mnt/usb is not there".try_into().unwrap()),
        "none" => Predecessors::None,
        count => Predecessors::Found(Predecessor {
            signer: None,
            count: count.parse().unwrap(),
            newest: SnapshotSeen {
                revision: 67,
                created: Some(Timestamp(NOW.0 - DAY)),
                level: 3,
                bytes: 1 << 20,
                seconds: Some(86_400),
                version: None,
            },
            place: "/mnt/usb".try_into().unwrap(),
        }),
    }
}

/// All is well and the cluster has served.
pub fn facts() -> Facts {
    Facts {
        cluster: ClusterName::try_from("test").unwrap(),
        hibernates: false,
        restoring: false,
        unreadable: None,
        version: VERSION,
        unsafe_filesystem_allowed: false,
        identity: Some(identity(true)),
        marker: Some(identity(true)),
        data: data(true, true, Some(CLUSTER)),
        strange_etcd: None,
        room: Room::AMPLE,
        filesystem: Filesystem::Disk,
        writable: Writable::Yes,
        binary: Binary::Ready,
        certificates: CertificatesUsable::Yes,
        conflict: None,
        seen: None,
        history: StartHistory::NONE,
    }
}

pub fn certificates() -> Certificates {
    Certificates {
        pairs: Pairs::Usable,
        provisional: false,
        not_before: Timestamp(NOW.0 - DAY),
        not_after: Timestamp(NOW.0 + 300 * DAY),
        authority_not_after: Timestamp(NOW.0 + 7000 * DAY),
        authorities: CaState::Usable,
        clients_due: false,
        issued_earliest: None,
    }
}

pub fn details() -> Details {
    Details {
        cluster: CLUSTER,
        member: MEMBER,
        leader: Some(MEMBER),
        revision: 10,
        raft_index: 10,
        db_size: 900 << 20,
        db_in_use: 1,
        downgrade_to: None,
        storage: None,
    }
}

pub fn serving() -> Service {
    Service {
        read: Reading::Answered,
        write: Writing::Acknowledged,
        alarms: Alarms::default(),
        proposals: Proposals::Moving,
        details: Some(details()),
    }
}

/// The single member, stopped, with nothing in the way.
pub fn stopped() -> Instance {
    Instance {
        member: name("test-0"),
        process: Process::Stopped,
        terminating: 0,
        claim: Claim::Stays,
        alone: true,
        facts: facts(),
        last_served: None,
        writable: Writable::Yes,
        tries: Tries {
            answered: 1000,
            ..Tries::default()
        },
        newest_installed: Some(VERSION),
        quota_at_birth: 1 << 30,
        certificates: certificates(),
        service: Service::UNKNOWN,
        restart_in: 0,
        made_for: None,
        refused: None,
        machine_changed: false,
        kept_elsewhere: false,
        unserved: None,
        list_from: ListFrom::Operator,
        regain: None,
        unheard: None,
        no_place: None,
        placement: etcd_operator::observed::Placement::default(),
    }
}

pub fn running(settings: Settings, seconds: u64) -> Process {
    Process::Running {
        pid: 100,
        settings,
        version: VERSION,
        quota: QUOTA,
        seconds,
    }
}

/// The single member, serving.
pub fn running_instance() -> Instance {
    Instance {
        process: running(SETTINGS, 1000),
        service: serving(),
        ..stopped()
    }
}

pub fn member(id: u64, member_name: &str, role: Role, health: Health) -> Member {
    Member {
        id: MemberId(id),
        name: name(member_name),
        peer_url: match member_name {
            "" => "http://192.0.2.9:2380".try_into().unwrap(),
            name => place(name).peer_url,
        },
        role,
        health,
    }
}

pub fn single() -> Membership {
    let mut members = MemberSet::of(CLUSTER);
    members
        .insert(member(MEMBER.0, "test-0", Role::Voter, Health::Serving))
        .unwrap();
    Membership::Known(members)
}

pub fn observed(instance: Instance, membership: Membership) -> Observed {
    let mut instances = heapless::Vec::new();
    let _ = instances.push(instance);
    Observed {
        now: NOW,
        clock: Clock::Trusted,
        authority: Authority::Cluster,
        membership,
        failed: None,
        host: None,
        backups: Backups::default(),
        predecessors: Predecessors::None,
        restoring: None,
        upgrade: Upgrade::None,
        paused: None,
        unreached: None,
        document: DocumentSeen::Accepted,
        looker: Looker::Operator,
        instances,
    }
}

/// A backup: `schedule`, or anything else for one by interval.
pub fn backup(trigger: &str) -> Backup {
    let mut destinations = heapless::Vec::new();
    let place = Destination {
        place: Place::Local("/mnt/backup".try_into().unwrap()),
        keep: Keep::DEFAULT,
    };
    assert!(destinations.push(place).is_ok());
    Backup {
        trigger: Some(match trigger {
            "schedule" => Trigger::Schedule("0 3 * * *".try_into().unwrap()),
            _ => Trigger::Every(3600),
        }),
        destinations,
        verify_level: 3,
        verify_every: None,
        copy_grace: 86_400,
        trusted_signers: heapless::Vec::new(),
    }
}

pub fn snapshot(revision: i64, level: u8) -> SnapshotSeen {
    SnapshotSeen {
        revision,
        created: None,
        level,
        bytes: 1 << 20,
        seconds: None,
        version: Some(Version::new(3, 6, 14)),
    }
}

/// No node that there is reaches the volume.
pub fn elsewhere() -> Refusal {
    Refusal::Unplaceable {
        reason: "VolumeElsewhere",
        why: "the claim lies on another node".try_into().unwrap(),
        next: "",
    }
}
