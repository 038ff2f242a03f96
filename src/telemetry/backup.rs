//! Metrics of snapshots.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::observed::Backups;

type Whole = Gauge<i64, AtomicI64>;

/// What Prometheus is told of snapshots; 0 where nothing is known.
#[derive(Default)]
pub(super) struct BackupMetrics {
    last: Whole,
    verified: Whole,
    level: Whole,
    revision: Whole,
    next: Whole,
    duration: Gauge<f64, AtomicU64>,
    kept: Whole,
    kept_bytes: Whole,
    queued: Whole,
    queued_bytes: Whole,
}

impl BackupMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let it = BackupMetrics::default();
        let seconds = [
            (
                "backup_last_timestamp",
                "When the newest snapshot was taken, since 1970",
                &it.last,
            ),
            (
                "backup_last_verified_timestamp",
                "When the newest verified snapshot was taken, since 1970",
                &it.verified,
            ),
            (
                "backup_next",
                "Until the document asks for the next snapshot",
                &it.next,
            ),
        ];
        for (name, help, gauge) in seconds {
            registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
        }
        registry.register_with_unit(
            "backup_duration",
            "How long the last snapshot took, verification included",
            Unit::Seconds,
            it.duration.clone(),
        );
        let numbers = [
            (
                "backup_last_verified_level",
                "The level that the newest verified snapshot reached",
                &it.level,
            ),
            (
                "backup_last_verified_revision",
                "etcd's revision in the newest verified snapshot",
                &it.revision,
            ),
            (
                "backup_snapshots",
                "Snapshots in the first destination",
                &it.kept,
            ),
            (
                "backup_queue_snapshots",
                "Snapshots that wait to be copied elsewhere",
                &it.queued,
            ),
        ];
        for (name, help, gauge) in numbers {
            registry.register(name, help, gauge.clone());
        }
        let bytes = [
            (
                "backup_snapshots_size",
                "Snapshots in the first destination",
                &it.kept_bytes,
            ),
            (
                "backup_queue_size",
                "Snapshots that wait to be copied elsewhere",
                &it.queued_bytes,
            ),
        ];
        for (name, help, gauge) in bytes {
            registry.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        }
        it
    }

    pub(super) fn record(&self, backups: &Backups) {
        let whole = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        let at = |it: &Option<crate::observed::SnapshotSeen>| {
            it.and_then(|it| it.created).map_or(0, |it| it.0)
        };
        self.last.set(at(&backups.last));
        self.verified.set(at(&backups.verified));
        self.level
            .set(backups.verified.map_or(0, |it| i64::from(it.level)));
        self.revision
            .set(backups.verified.map_or(0, |it| it.revision));
        self.next.set(backups.due_in.map_or(0, whole));
        self.duration
            .set(backups.took_milliseconds.unwrap_or(0) as f64 / 1000.0);
        self.kept.set(i64::from(backups.kept.0));
        self.kept_bytes.set(whole(backups.kept.1));
        self.queued.set(i64::from(backups.queued.0));
        self.queued_bytes.set(whole(backups.queued.1));
    }
}
