//! Seeded random numbers and random specs.

use etcd_operator::api::{
    AutoCompaction, AutoCompactionMode, Backup, BackupDestination, BackupVerify, Bootstrap, Client,
    Defragment, DeletionPolicy, Encryption, EtcdClusterSpec, Host, LocalDestination, LogLevel,
    MemberRecovery, MemoryStorage, Network, OnNoSpace, Options, Pod, Profile, S3Destination,
    SecretRefs, Service, ServiceType, SingleMemberRecovery, Storage, Tls, TlsMode,
    UnsafeFilesystem, VolumeClaim, Window,
};

/// SplitMix64: the same numbers for the same seed on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A value once in `count` times.
    fn rarely<T>(&mut self, count: usize, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(count).then(|| make(self))
    }
}

const SIGNER: &str = "ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const PORTS: &[u16] = &[1, 2379, 2380, 2381, 2382, 65535];
const QUANTITIES: &[&str] = &[
    "1",
    "9",
    "16777216",
    "1Ki",
    "999999999999999Ki",
    "1Mi",
    "9Mi",
    "10Mi",
    "15Mi",
    "16Mi",
    "19Mi",
    "20Mi",
    "59Mi",
    "60Mi",
    "63Mi",
    "64Mi",
    "99Mi",
    "100Mi",
    "160Mi",
    "1Gi",
    "2Gi",
    "999999Ti",
];
const NAMES: &[&str] = &[
    "a",
    "b",
    "k3s",
    "admin",
    "etcd-operator",
    "etcd-operator2",
    "x-1",
];

/// A spec whose every field keeps to the schema, with values at the rules' edges. A clean one is
/// more likely to be accepted.
pub(crate) fn spec(random: &mut Random) -> EtcdClusterSpec {
    // How rare a field without effect is.
    let rare = random.pick(&[3, 30, 1000]);
    EtcdClusterSpec {
        size: random.pick(&[0, 1, 1, 1, 2, 3, 4, 5, 6, 7]),
        version: random.rarely(2, |it| {
            it.pick(&["3.6.14", "v3.5.0", "0.0.0", "9999.0.1"]).into()
        }),
        paused: random.one_in(2),
        profile: random.pick(&[Profile::Edge, Profile::Standard]),
        storage: storage(random, rare),
        network: network(random),
        tls: tls(random, rare),
        clients: clients(random, rare),
        options: options(random),
        backup: random.rarely(3, backup),
        bootstrap: random.rarely(6, |it| Bootstrap {
            from: it
                .pick(&[
                    "latest",
                    "empty",
                    "/mnt/s.db",
                    "edge-0-boot1-r1-00000000",
                    "till/latest",
                ])
                .to_owned(),
        }),
        maintenance: etcd_operator::api::Maintenance {
            on_no_space: random.pick(&[OnNoSpace::Repair, OnNoSpace::Hold]),
            defragment: random.rarely(rare, |_| Defragment {
                fragmentation_percent: 50,
                minimum_size: "1Mi".to_owned(),
            }),
            windows: random
                .rarely(rare, |_| Window {
                    schedule: "0 3 * * *".to_owned(),
                    minutes: 60,
                })
                .into_iter()
                .collect(),
        },
        recovery: etcd_operator::api::Recovery {
            single_member: random
                .rarely(4, |_| SingleMemberRecovery::RestoreLatestVerified)
                .unwrap_or_default(),
            member: random
                .rarely(rare, |_| MemberRecovery::Hold)
                .unwrap_or_default(),
            grace_minutes: random.rarely(rare, |_| 30),
        },
        upgrade: etcd_operator::api::Upgrade {
            skip_rehearsal: random.rarely(rare, |_| "3.6.14".to_owned()),
        },
        deletion_policy: random
            .rarely(rare, |_| DeletionPolicy::Delete)
            .unwrap_or_default(),
        pod: random.rarely(rare, |_| Pod::default()),
        service: random.rarely(3, service),
        image: random.rarely(rare, |_| "etcd:3.6".to_owned()),
        hosts: random
            .rarely(rare, |_| Host {
                name: "one".to_owned(),
                address: "10.0.0.1".to_owned(),
            })
            .into_iter()
            .collect(),
    }
}

fn service(random: &mut Random) -> Service {
    let kinds = [
        ServiceType::ClusterIP,
        ServiceType::NodePort,
        ServiceType::LoadBalancer,
    ];
    Service {
        kind: random.pick(&kinds),
        node_port: random.rarely(4, |_| 31_379),
        load_balancer_class: random.rarely(4, |_| "example.com/a".to_owned()),
        dns_domain: random.rarely(4, |_| "edge.internal".to_owned()),
        ..Service::default()
    }
}

fn backup(random: &mut Random) -> Backup {
    let local = |random: &mut Random| {
        let rare = random.pick(&[2, 1000]);
        LocalDestination {
            path: (!random.one_in(6)).then(|| random.pick(&["/mnt", "/mnt/b"]).to_owned()),
            claim: random.rarely(6, |_| VolumeClaim {
                storage_class_name: None,
                size: "1Gi".to_owned(),
            }),
            claim_name: random.rarely(6, |_| "snapshots".to_owned()),
            keep: random.rarely(rare, |_| 3),
            keep_hourly: random.rarely(rare, |_| 24),
            keep_daily: random.rarely(rare, |_| 7),
            keep_weekly: random.rarely(rare, |_| 4),
            max_bytes: random.rarely(rare, |it| it.pick(QUANTITIES).into()),
        }
    };
    let s3 = |random: &mut Random| S3Destination {
        bucket: random.pick(&["backup", "backup.1"]).to_owned(),
        prefix: random.rarely(2, |_| "shops/berlin".to_owned()),
        endpoint: random.rarely(2, |_| "https://s3.local:9000".to_owned()),
        region: random.rarely(2, |_| "auto".to_owned()),
        path_style: random.one_in(2),
        ca_file: random.rarely(2, |_| "/etc/ca.pem".to_owned()),
        credentials: random.rarely(2, |_| "/etc/s3".to_owned()),
        credentials_secret: random.rarely(2, |_| "s3".to_owned()),
        keep: random.rarely(2, |_| 3),
        keep_hourly: random.rarely(2, |_| 24),
        keep_daily: random.rarely(2, |_| 7),
        keep_weekly: random.rarely(2, |_| 4),
        max_bytes: random.rarely(2, |it| it.pick(QUANTITIES).into()),
        bandwidth: random.rarely(2, |it| it.pick(QUANTITIES).into()),
        encryption: random.rarely(2, |_| Encryption {
            recipients: vec![
                "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p".to_owned(),
            ],
        }),
    };
    let count = random.pick(&[1, 1, 2, 3, 4]);
    let destinations = (0..count).map(|index| {
        let which = if index == 0 {
            random.pick(&[1, 1, 1, 1, 1, 1, 2])
        } else {
            random.pick(&[1, 1, 2, 2, 2, 0, 3])
        };
        BackupDestination {
            local: (which & 1 == 1).then(|| local(random)),
            s3: (which & 2 == 2).then(|| s3(random)),
        }
    });
    let destinations = destinations.collect();
    Backup {
        schedule: random.rarely(3, |_| "*/15 3 * * 1-5".to_owned()),
        interval: random.rarely(2, |_| "6h".to_owned()),
        destinations,
        verify: random.rarely(2, |it| BackupVerify {
            level: it.pick(&[3, 4]),
            every: it.rarely(2, |_| "7d".to_owned()),
        }),
        copy_grace: random.rarely(2, |it| it.pick(&["72h", "1m"]).into()),
        trusted_signers: random
            .rarely(2, |_| vec![SIGNER.to_owned()])
            .unwrap_or_default(),
    }
}

fn storage(random: &mut Random, rare: usize) -> Storage {
    Storage {
        path: random.rarely(3, |it| it.pick(&["/a", "/mnt/disk.1/etcd"]).into()),
        volume_claim: random.rarely(rare, |it| VolumeClaim {
            storage_class_name: it.rarely(2, |_| "fast".to_owned()),
            size: "1Gi".to_owned(),
        }),
        memory: random.rarely(rare, |_| MemoryStorage {
            size_limit: "1Gi".to_owned(),
        }),
        quota: random.rarely(2, |it| it.pick(QUANTITIES).into()),
        unsafe_filesystem: random.pick(&[UnsafeFilesystem::Refuse, UnsafeFilesystem::Allow]),
    }
}

fn network(random: &mut Random) -> Network {
    let list = |random: &mut Random, from: &[&str]| {
        random.rarely(2, |it| {
            (0..=it.below(4))
                .map(|_| it.pick(from).to_owned())
                .collect()
        })
    };
    Network {
        client_port: random.pick(PORTS),
        peer_port: random.pick(PORTS),
        metrics_port: random.pick(PORTS),
        listen_addresses: list(random, &["127.0.0.1", "::1", "10.0.0.1", "fd00::1:2"]),
        advertised_addresses: list(
            random,
            &["edge", "edge.local", "10.0.0.1", "Edge-1.example"],
        ),
    }
}

fn tls(random: &mut Random, rare: usize) -> Tls {
    Tls {
        mode: random
            .rarely(rare, |it| {
                it.pick(&[TlsMode::SecretRefs, TlsMode::DisabledInsecure])
            })
            .unwrap_or_default(),
        leaf_days: random.pick(&[2, 30, 365, 3650]),
        secret_refs: random.rarely(rare, |_| SecretRefs {
            server: "a".to_owned(),
            peer: "b".to_owned(),
            operator: "c".to_owned(),
        }),
    }
}

fn clients(random: &mut Random, rare: usize) -> Vec<Client> {
    let count = random.pick(&[0, 1, 1, 2, 3, 16]);
    let distinct = random.one_in(2);
    (0..count)
        .map(|index| Client {
            name: if distinct {
                format!("c{index}")
            } else {
                random.pick(NAMES).to_owned()
            },
            namespace: random.rarely(rare * 4, |_| "default".to_owned()),
        })
        .collect()
}

fn options(random: &mut Random) -> Options {
    let timing = random.one_in(2);
    Options {
        auto_compaction: AutoCompaction {
            mode: random.pick(&[
                AutoCompactionMode::Periodic,
                AutoCompactionMode::Revision,
                AutoCompactionMode::Disabled,
            ]),
            retention: random.pick(&[1, 24, 1_000_000]),
        },
        heartbeat_milliseconds: (timing || random.one_in(9))
            .then(|| random.pick(&[10, 11, 100, 200, 201, 5000])),
        election_milliseconds: (timing || random.one_in(9))
            .then(|| random.pick(&[50, 54, 55, 500, 1000, 1004, 1005, 25000, 50000])),
        snapshot_count: random.rarely(2, |it| it.pick(&[100, 5000, 1_000_000])),
        max_request_size: random.rarely(2, |it| it.pick(QUANTITIES).into()),
        max_transaction_operations: random.rarely(2, |it| it.pick(&[1, 128, 100_000])),
        memory_limit: random.rarely(2, |it| it.pick(QUANTITIES).into()),
        http_gateway: random.one_in(2),
        log_level: random.pick(&[
            LogLevel::Debug,
            LogLevel::Info,
            LogLevel::Warn,
            LogLevel::Error,
        ]),
    }
}
