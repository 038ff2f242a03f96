//! Retention of a bucket.

use super::{Class, CopyError, Destination, MANIFEST, RemoteEntry, RemoteStore, load_known};
use crate::backup::prune;
use crate::retention::{Fate, Kept, Retention};
use crate::s3::Deletion;
use crate::spec::backup::Keep;
use crate::state;

/// The fate of each snapshot of a bucket's listing, newest first. `clusters`: the ids that this cluster
/// has and had.
pub fn fates(keep: Keep, entries: &[RemoteEntry], clusters: &[String]) -> Vec<Fate> {
    let mut fold = Retention::new(keep);
    let kept = |it: &RemoteEntry| Kept {
        ours: it
            .cluster_id()
            .is_some_and(|id| clusters.iter().any(|it| it == id)),
        on_demand: it.class() == Some(Class::OnDemand),
        level: it.level(),
        created: it.created(),
        bytes: it.size.unwrap_or(0),
    };
    entries.iter().map(|it| fold.next(&kept(it))).collect()
}

impl RemoteStore {
    /// Removes what the document no longer keeps there; exact keys, never the newest verified one.
    /// What there was, and what became of each.
    pub async fn prune(
        &mut self,
        destination: &Destination,
        clusters: &[String],
    ) -> Result<Vec<(RemoteEntry, Fate)>, CopyError> {
        let entries = self.look().await?;
        let fates = fates(destination.keep, &entries, clusters);
        self.remember(&entries)?;
        for (entry, fate) in entries.iter().zip(&fates) {
            if fate.removes() {
                self.remove(entry, *fate).await?;
                let mut file = load_known(&self.known_path);
                file.remove(entry.name.to_string());
                state::save(&self.known_path, &file)?;
            }
        }
        Ok(entries.into_iter().zip(fates).collect())
    }

    /// The snapshot first: one that only its manifest is left of is seen, and goes the next time; bytes
    /// without a manifest would stay for good.
    async fn remove(&mut self, entry: &RemoteEntry, fate: Fate) -> Result<(), CopyError> {
        let name = entry.name.to_string();
        let manifest = format!("{}/{name}{MANIFEST}", self.cluster);
        for key in [self.key(&name, entry.encrypted), manifest] {
            match self.bucket.delete(&key).await? {
                Deletion::Deleted => {}
                Deletion::Kept(why) => {
                    tracing::info!(
                        key,
                        "the store keeps a snapshot that retention gives up: {why}"
                    );
                    return Ok(());
                }
            }
        }
        let why = prune::fate_words(fate);
        tracing::info!(name, why, "snapshot removed from the bucket");
        Ok(())
    }
}
