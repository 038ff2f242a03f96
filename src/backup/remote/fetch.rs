//! What comes back from a bucket, and no more of it than its manifest says.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use super::{
    AUTHORITIES, AUTHORITIES_MAX, CopyError, LocalStore, RemoteStore, SnapshotName, TOO_LONG, most,
};
use crate::backup::local::room_for;
use crate::backup::manifest::Manifest;
use crate::backup::{Phase, Progress, encrypt, verify};
use crate::retention::VERIFIED;
use crate::tls::SignedBundle;

impl RemoteStore {
    /// The CAs and the clients' certificates, if they lie there.
    pub async fn fetch_authorities(
        &mut self,
        identity: &Path,
    ) -> Result<Option<SignedBundle>, CopyError> {
        let key = format!("{}/{AUTHORITIES}", self.cluster);
        if self.bucket.head(&key).await?.is_none() {
            return Ok(None);
        }
        let sealed = self.bucket.get(&key, AUTHORITIES_MAX).await?;
        let mut bundle = Vec::new();
        encrypt::decrypt_bytes(&sealed, identity, &mut bundle)?;
        let bundle = serde_json::from_slice(&bundle);
        Ok(Some(bundle.map_err(|_| CopyError::AuthoritiesDamaged)?))
    }

    /// Brings a snapshot here, encrypted or not: into `into`, proven by this manifest of it. `identity`: the file of
    /// secret keys for one that is encrypted.
    pub async fn fetch(
        &mut self,
        (name, encrypted): (&SnapshotName, bool),
        manifest: &Manifest,
        identity: Option<&Path>,
        into: &LocalStore,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), CopyError> {
        let text = name.to_string();
        let most = most(manifest.file.size, encrypted);
        let part = into.part();
        room_for(
            into.path(),
            most.saturating_mul(if encrypted { 2 } else { 1 }),
        )?;
        let fetched = self.fetch_into(
            &text,
            (encrypted, most),
            identity,
            manifest,
            (&part, progress),
        );
        if let Err(error) = fetched.await {
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        into.commit(&part, name, manifest)?;
        Ok(())
    }

    async fn fetch_into(
        &mut self,
        text: &str,
        (encrypted, most): (bool, u64),
        identity: Option<&Path>,
        manifest: &Manifest,
        (part, progress): (&Path, &mut (dyn FnMut(Progress) + Send)),
    ) -> Result<(), CopyError> {
        let failed = |source| CopyError::Io {
            path: part.to_owned(),
            source,
        };
        let mut file = crate::backup::new_file(part).map_err(failed)?;
        let (mut done, total) = (0, manifest.file.size);
        self.bucket
            .download(&self.key(text, encrypted), 0, &mut |bytes| {
                done += bytes.len() as u64;
                // What the server sends beyond it is no part of the snapshot, and has no bound.
                if done > most {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG));
                }
                file.write_all(bytes)?;
                progress(Progress {
                    phase: Phase::Copying,
                    done,
                    total,
                });
                Ok(())
            })
            .await?;
        file.sync_all().map_err(failed)?;
        if encrypted {
            let sealed = part.with_extension("age");
            fs::rename(part, &sealed).map_err(failed)?;
            let mut file = crate::backup::new_file(part).map_err(failed)?;
            let opened = encrypt::decrypt(&sealed, identity, &mut file);
            let _ = fs::remove_file(&sealed);
            opened?;
            file.sync_all().map_err(failed)?;
        }
        Ok(verify::verify(part, manifest, VERIFIED, progress)?)
    }
}
