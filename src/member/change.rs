//! Changes etcd's member list, for both homes: one change, after a second look at all members.

use std::time::Duration;

use etcd_client::{Client, MemberAddOptions};
use tokio::task::JoinSet;

use super::contact::{self, CallError, Endpoint};
use crate::cluster::{Answer, Member, MemberSet, Role};
use crate::etcd::client::Look;
use crate::observed::{Membership, Reading, answer};
use crate::plan::Change;
use crate::plan::permit::{Lapsed, Permit};
use crate::spec::MemberSpec;

/// A change waits for a majority and for the disk of each of them.
const CHANGE_DEADLINE: Duration = Duration::from_secs(10);

/// Why the member list was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No member told the list.
    #[error("no member tells the member list")]
    NoList,
    /// What was read right before no longer allows the change.
    #[error("the operator checked again right before the change and did not make it: {0}")]
    NoPermit(Lapsed),
    /// etcd refused it, or did not answer. It may have been made.
    #[error(transparent)]
    Etcd(#[from] CallError),
}

/// Reads the list and every member's answer again, and makes the change if they still permit it. A change
/// that was made already, by a call whose answer was lost, counts as made.
///
/// # Errors
/// [`ChangeError`]. The next pass observes what came of it.
pub async fn make(
    endpoints: impl Iterator<Item = Endpoint>,
    permit: Permit<Change>,
) -> Result<(), ChangeError> {
    let (members, client) = look_at_all(endpoints).await.ok_or(ChangeError::NoList)?;
    if is_made(permit.step(), &members) {
        return Ok(());
    }
    let change = permit.exchange(&members).map_err(ChangeError::NoPermit)?;
    let asked = ask(client, &change);
    contact::call("change the member list", CHANGE_DEADLINE, asked).await?;
    tracing::info!(
        "changed the member list: {}",
        change.describe(Some(&members))
    );
    Ok(())
}

/// The list as a majority confirms it, with each member's own answer, and a connection to a voter. All are
/// asked at once.
async fn look_at_all(endpoints: impl Iterator<Item = Endpoint>) -> Option<(MemberSet, Client)> {
    let mut asked = JoinSet::new();
    for it in endpoints {
        asked.spawn(async move { contact::look(&it).await });
    }
    let mut looks = asked.join_all().await;
    let answers = looks.iter().filter_map(|it| answer(&it.read, it.details));
    let answers: Vec<Answer> = answers.collect();
    let mut clusters = looks
        .iter()
        .filter_map(|it| it.details)
        .map(|it| it.cluster);
    let first = clusters.next();
    if clusters.any(|it| Some(it) != first) {
        return None; // one of them serves another cluster
    }
    let voter = looks
        .iter()
        .position(|it| it.read == Reading::Answered && it.client.is_some())?;
    let Look {
        membership, client, ..
    } = looks.swap_remove(voter);
    match membership.with(&answers) {
        Membership::Known(members) => Some((members, client?)),
        _ => None,
    }
}

/// Whether the list is as the change would leave it.
fn is_made(change: &Change, members: &MemberSet) -> bool {
    match change {
        Change::AddLearner { name, peer_url } => members.entry(name, peer_url).is_some(),
        Change::Promote { member } => {
            let entry = members.by_id(*member);
            entry.is_some_and(|it| it.role == Role::Voter)
        }
        Change::Remove { member } => members.by_id(*member).is_none(),
        Change::Update { member, peer_url } => {
            let entry = members.by_id(*member);
            entry.is_some_and(|it| it.peer_url == *peer_url)
        }
    }
}

async fn ask(mut client: Client, change: &Change) -> Result<(), etcd_client::Error> {
    match change {
        Change::AddLearner { peer_url, .. } => {
            let learner = MemberAddOptions::new().with_is_learner();
            let urls = [peer_url.as_str()];
            client.member_add(urls, Some(learner)).await.map(drop)
        }
        Change::Promote { member } => client.member_promote(member.0).await.map(drop),
        Change::Remove { member } => client.member_remove(member.0).await.map(drop),
        Change::Update { member, peer_url } => {
            let urls = vec![peer_url.to_string()];
            client.member_update(member.0, urls).await.map(drop)
        }
    }
}

/// The `initial-cluster` of a member that joins: etcd starts it only with the list as it is. It compares URLs, so a member
/// without a name, which never started, may have any. `document`: the members that it asks for.
pub fn initial_cluster<'a>(
    document: &[MemberSpec],
    members: impl Iterator<Item = &'a Member>,
) -> String {
    let name = |it: &Member| match document.iter().find(|place| place.is_of(it)) {
        Some(place) => place.name.to_string(),
        None if it.name.is_empty() => it.id.to_string(),
        None => it.name.to_string(),
    };
    let entries = members.map(|it| format!("{}={}", name(it), it.peer_url));
    entries.collect::<Vec<_>>().join(",")
}
