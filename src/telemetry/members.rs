//! Metrics of members.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::api::status::role_name;
use crate::status::MemberStatus;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    member: String,
    role: &'static str,
    /// Empty where none is known.
    node: String,
}

/// What Prometheus is told of the members that etcd lists.
#[derive(Default)]
pub(super) struct MemberMetrics {
    serving: Family<Labels, Gauge<i64, AtomicI64>>,
}

impl MemberMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let it = MemberMetrics::default();
        registry.register(
            "member_serving",
            "1 for a member that etcd lists and that answers, 0 for one that does not",
            it.serving.clone(),
        );
        it
    }

    pub(super) fn record(&self, members: &[MemberStatus]) {
        self.serving.clear();
        for it in members {
            let labels = Labels {
                member: it.member.name.to_string(),
                role: role_name(it.member.role),
                node: it
                    .placement
                    .node
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
            };
            self.serving
                .get_or_create(&labels)
                .set(i64::from(it.serves()));
        }
    }
}
