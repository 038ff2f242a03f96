//! For how long an etcd that is restarted may take to end.

use core::time::Duration;

use crate::observed::{Instance, Process};
use crate::spec::ClusterSpec;

/// After SIGTERM etcd closes its port at once and answers the requests that it has (1.5 to 1.9 s). Where a client
/// watches, it then waits for that client for [`ENDS_BY_ITSELF`], and nobody is served. So a restart kills it after this
/// time: every acknowledged write is in its log. k3s gives up where etcd is away for 10 s.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// etcd's own limit: 5 s and two elections (`ReqTimeout` in its `config.go`), which take 5 s each where several members run,
/// and what it closes after that.
pub(super) const ENDS_BY_ITSELF: Duration = Duration::from_secs(17);

/// After how long this member's etcd is killed in a restart; `None`: it ends by itself. It does where another line opens
/// the data next: a version of the data that it has lowered may not be in the database yet.
pub fn killed_after(spec: &ClusterSpec, instance: &Instance) -> Option<Duration> {
    let Process::Running { version, .. } = instance.process else {
        return None;
    };
    let born = instance.facts.born();
    let other = born.and_then(|it| it.other_version);
    let mut next = [spec.version, born.map(|it| it.version), other]
        .into_iter()
        .flatten();
    let stays = next.all(|it| it.line().is_some() && it.line() == version.line());
    stays.then_some(ENDS_WITHIN)
}
