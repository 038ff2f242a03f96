//! What a snapshot is of: the cluster, the member, the version and the revision, as etcd says right before.

use etcd_client::Client;
use tokio::time::timeout;

use super::{ANSWER, CreateError, etcd, late};
use crate::etcd::client;
use crate::version::Version;

/// What etcd says of itself before and after.
pub(super) struct Origin {
    pub(super) cluster_id: String,
    pub(super) member_id: String,
    pub(super) version: String,
    /// The version of its storage, if etcd has lowered it for an older line.
    pub(super) lowered: Option<Version>,
    pub(super) revision: i64,
    pub(super) size: u64,
    pub(super) in_use: u64,
}

impl Origin {
    /// Which etcd reads the data: that of a lowered storage, once the cluster has agreed on it, too.
    pub(super) fn data_version(&self, agreed: Option<&str>) -> String {
        let agreed = agreed.and_then(|it| it.parse::<Version>().ok());
        let lowered = self.lowered.zip(agreed);
        let lowered = lowered.filter(|(lowered, agreed)| !agreed.is_newer_line_than(*lowered));
        lowered.map_or_else(|| self.version.clone(), |(lowered, _)| lowered.to_string())
    }
}

/// Asks etcd.
pub(super) async fn origin(client: &mut Client) -> Result<Origin, CreateError> {
    const WHAT: &str = "read etcd's status";
    let status = timeout(ANSWER, client.status()).await;
    let status = status.map_err(|_| late(WHAT))?.map_err(etcd(WHAT))?;
    if status.is_learner() {
        return Err(CreateError::Learner);
    }
    let revision = timeout(ANSWER, client::revision(client)).await;
    let revision = revision.map_err(|_| late(WHAT))?.map_err(etcd(WHAT))?;
    let header = status.header();
    let id = |it: Option<u64>| format!("{:016x}", it.unwrap_or(0));
    let bytes = |it: i64| u64::try_from(it).unwrap_or(0);
    Ok(Origin {
        cluster_id: id(header.map(etcd_client::ResponseHeader::cluster_id)),
        member_id: id(header.map(etcd_client::ResponseHeader::member_id)),
        version: status.version().to_owned(),
        lowered: lowered(&status),
        revision,
        size: bytes(status.db_size()),
        in_use: bytes(status.raft_used_db_size()),
    })
}

fn lowered(status: &etcd_client::StatusResponse) -> Option<Version> {
    client::downgrade_of(status)?;
    let etcd: Version = status.version().parse().ok()?;
    let storage: Version = status.storage_version().parse().ok()?;
    etcd.is_newer_line_than(storage).then_some(storage)
}
