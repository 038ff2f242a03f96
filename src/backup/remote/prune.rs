//! Retention of a bucket.

use super::{Class, CopyError, Destination, MANIFEST, RemoteEntry, RemoteStore, load_known};
use crate::backup::age::Ages;
use crate::backup::prune::{self, Ours};
use crate::retention::{Fate, Kept, Retention};
use crate::s3::Deletion;
use crate::spec::backup::Keep;
use crate::state;

/// The fate of each snapshot of a bucket's listing, newest first.
pub fn fates(keep: Keep, entries: &[RemoteEntry], ours: &Ours, ages: &Ages) -> Vec<Fate> {
    let mut fold = Retention::new(keep, ages.clock());
    let kept = |it: &RemoteEntry| Kept {
        ours: ours.has(it.cluster_id(), it.signer()),
        on_demand: it.class() == Some(Class::OnDemand),
        outlived: matches!((it.ttl(), ages.since(it.created())), (Some(ttl), Some(age)) if age >= ttl),
        level: it.level(),
        created: it.created(),
        bytes: it.size.unwrap_or(0),
        line: it.line(),
    };
    entries.iter().map(|it| fold.next(&kept(it))).collect()
}

impl RemoteStore {
    /// Removes what the document no longer keeps there; exact keys, never the newest verified one.
    /// What there was, and what became of each.
    pub async fn prune(
        &mut self,
        destination: &Destination,
        ours: &Ours,
        ages: &Ages,
    ) -> Result<Vec<(RemoteEntry, Fate)>, CopyError> {
        let entries = self.look().await?;
        let fates = fates(destination.keep, &entries, ours, ages);
        self.remember(&entries)?;
        for (entry, fate) in entries.iter().zip(&fates) {
            if fate.removes() {
                let name = entry.name.to_string();
                if let Some(why) = self.remove(entry).await? {
                    tracing::info!(
                        name,
                        "the store does not let retention remove a snapshot: {why}"
                    );
                } else {
                    let why = prune::fate_words(*fate);
                    tracing::info!(name, why, "snapshot removed from the bucket");
                }
                self.forget(entry)?;
            }
        }
        Ok(entries.into_iter().zip(fates).collect())
    }

    /// Removes one because a person says so; why the store keeps it, where it does.
    pub async fn delete(&mut self, entry: &RemoteEntry) -> Result<Option<String>, CopyError> {
        let kept = self.remove(entry).await?;
        if kept.is_none() {
            self.forget(entry)?;
        }
        Ok(kept)
    }

    /// It is not copied again, though the first destination keeps it.
    fn forget(&self, entry: &RemoteEntry) -> Result<(), CopyError> {
        let mut file = load_known(&self.known_path);
        file.remove(entry.name.to_string());
        Ok(state::save(&self.known_path, &file)?)
    }

    /// Why the store keeps it, where it does. The snapshot first: one that only its manifest is left of is seen, and goes the next time; bytes
    /// without a manifest would stay for good.
    async fn remove(&mut self, entry: &RemoteEntry) -> Result<Option<String>, CopyError> {
        let name = entry.name.to_string();
        let manifest = format!("{}/{name}{MANIFEST}", self.cluster);
        for key in [self.key(&name, entry.encrypted), manifest] {
            match self.bucket.delete(&key).await? {
                Deletion::Deleted => {}
                Deletion::Kept(why) => return Ok(Some(why)),
            }
        }
        Ok(None)
    }
}
