//! Metrics of the disk under the data.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::observed::Observed;

/// What Prometheus is told of the disk; -1 where nothing is known.
#[derive(Default)]
pub(super) struct DiskMetrics {
    free: Gauge<i64, AtomicI64>,
    full_in: Gauge<i64, AtomicI64>,
}

impl DiskMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let it = DiskMetrics::default();
        registry.register_with_unit(
            "disk_free",
            "Free space for etcd on the disk that holds its data; -1 if unknown",
            Unit::Bytes,
            it.free.clone(),
        );
        registry.register_with_unit(
            "disk_full_in",
            "Until that space is used up at the rate of the last hour; -1 if it does not shrink",
            Unit::Seconds,
            it.full_in.clone(),
        );
        it
    }

    pub(super) fn record(&self, observed: &Observed) {
        let space = observed.host.as_ref().map(|it| it.disk.space);
        let told = |it: Option<u64>| it.map_or(-1, |it| i64::try_from(it).unwrap_or(i64::MAX));
        self.free.set(told(space.and_then(|it| it.free)));
        self.full_in.set(told(space.and_then(|it| it.full_in())));
    }
}
