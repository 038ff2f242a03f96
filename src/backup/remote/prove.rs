//! A copy in a bucket is read back: its bytes are those that were sent, or it is sent again.

use std::io;

use ring::digest::{Context, SHA256};

use super::{CopyError, RemoteStore, TOO_LONG, load_known};
use crate::backup::{Phase, Progress};
use crate::s3::S3Error;
use crate::state::{self, hex};

impl RemoteStore {
    /// Level 1, or 2 by reading every byte, in constant memory; what is wrong with it. One that is
    /// damaged is known as such from then on, and waits to be copied again.
    pub async fn prove(
        &mut self,
        name: &str,
        level: u8,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Option<String>, CopyError> {
        let problem = self.problem(name, level, progress).await?;
        if problem.is_some() {
            let mut file = load_known(&self.known_path);
            if let Some(known) = file.snapshots.get_mut(name) {
                known.level = 0;
                state::save(&self.known_path, &file)?;
            }
        }
        Ok(problem)
    }

    async fn problem(
        &mut self,
        name: &str,
        level: u8,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Option<String>, CopyError> {
        let manifest = match self.manifest(name).await {
            Ok(Some(manifest)) => manifest,
            Ok(None) => return Ok(Some("its manifest is damaged".to_owned())),
            Err(CopyError::S3(S3Error::Missing(_))) => {
                return Ok(Some("it has no manifest".to_owned()));
            }
            Err(error) => return Err(error),
        };
        let mut found = None;
        for encrypted in [false, true] {
            let key = self.key(name, encrypted);
            if let Some(object) = self.bucket.head(&key).await? {
                found = Some((key, encrypted, object));
                break;
            }
        }
        let Some((key, encrypted, object)) = found else {
            return Ok(Some("it is missing (level 1)".to_owned()));
        };
        let (said, total) = (manifest.file, object.len);
        if !encrypted && total != said.size {
            let size = said.size;
            return Ok(Some(format!(
                "level 1: it has {total} bytes, written were {size}"
            )));
        }
        if level < 2 {
            return Ok(None);
        }
        // Of what is encrypted only the object itself says what was sent.
        let expected = if encrypted {
            object.sha256
        } else {
            Some(said.sha256)
        };
        let Some(expected) = expected else {
            return Ok(Some(
                "level 2: the object does not carry the sha256 of the data that was sent"
                    .to_owned(),
            ));
        };
        let (mut sum, mut done) = (Context::new(&SHA256), 0);
        self.bucket
            .download(&key, 0, &mut |bytes| {
                sum.update(bytes);
                done += bytes.len() as u64;
                if done > total {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG));
                }
                progress(Progress {
                    phase: Phase::Hashing,
                    done,
                    total,
                });
                Ok(())
            })
            .await?;
        let differs = hex(sum.finish().as_ref()) != expected;
        Ok(differs.then(|| "level 2: it is not what was sent: its sha256 differs".to_owned()))
    }
}
