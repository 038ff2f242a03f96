//! Objects of any length: whole where they are short, else in parts that survive a broken link, a
//! restart and a power cut (rules E2, E3).

use std::collections::BTreeMap;
use std::io;

use hyper::Method;
use hyper::body::Bytes;
use rusty_s3::actions::{CompleteMultipartUpload, CreateMultipartUpload};
use serde::{Deserialize, Serialize};

use super::answer::{element, elements};
use super::body::Payload;
use super::request::Ask;
use super::{Bucket, META_SHA256, OCTETS, S3Error, Source};

const MIB: u64 = 1024 * 1024;
/// From here on in parts.
const SINGLE_MAX: u64 = 16 * MIB;
const PART: u64 = 8 * MIB;
/// S3 takes 10,000.
const PARTS_MAX: u64 = 9_999;

/// An upload in parts that is under way. The caller keeps it on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The object's key, without the prefix.
    pub key: String,
    /// The server's name for it.
    pub upload_id: String,
    /// Of the whole object.
    pub len: u64,
    /// Of the whole object.
    pub sha256: String,
    /// Of each part but the last.
    pub part_size: u64,
    /// What the server called each part that it has confirmed, in order.
    pub parts: Vec<String>,
}

/// Keeps the state of an upload, so that power may go.
pub type Save<'a> = &'a mut (dyn FnMut(&Upload) -> io::Result<()> + Send);

impl Upload {
    /// One of which no more is known.
    pub(super) fn named(key: &str, upload_id: &str) -> Upload {
        Upload {
            key: key.to_owned(),
            upload_id: upload_id.to_owned(),
            len: 0,
            sha256: String::new(),
            part_size: PART,
            parts: Vec::new(),
        }
    }

    /// Bytes that the server has confirmed.
    pub fn confirmed(&self) -> u64 {
        (self.parts.len() as u64 * self.part_size).min(self.len)
    }

    fn count(&self) -> u64 {
        self.len.div_ceil(self.part_size)
    }
}

/// Equal parts, as few as need be.
fn part_size(len: u64) -> u64 {
    PART.max(len.div_ceil(PARTS_MAX).next_multiple_of(MIB))
}

impl Bucket {
    /// Stores an object of any length. With `resume`, what the server has confirmed of it is not
    /// sent again. `save` is told before and after each part; `progress` gets the bytes of the object
    /// that are sent. [`Bucket::verify`] comes after.
    pub async fn upload(
        &mut self,
        key: &str,
        source: &mut dyn Source,
        sha256: &str,
        resume: Option<Upload>,
        save: Save<'_>,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), S3Error> {
        let length = source.len();
        let fits = |it: &Upload| {
            it.key == key && it.len == length && it.sha256 == sha256 && it.part_size >= PART
        };
        let resumed = match resume {
            Some(upload) if fits(&upload) && length >= SINGLE_MAX => self.confirm(upload).await?,
            Some(stale) => {
                // What cannot be given up now is swept later.
                if let Err(error) = self.abort(&stale).await {
                    tracing::debug!("S3: {error}");
                }
                None
            }
            None => None,
        };
        if length < SINGLE_MAX {
            let mut payload = Payload::Stretch {
                source,
                offset: 0,
                length,
            };
            return self.put_payload(key, &mut payload, sha256, progress).await;
        }
        let fresh = resumed.is_none();
        let upload = match resumed {
            Some(upload) => upload,
            None => self.create(key, length, sha256).await?,
        };
        match self.parts(upload, source, save, progress).await {
            // From the beginning, once.
            Err(error) if !fresh && may_be_gone(&error) => {
                let upload = self.create(key, length, sha256).await?;
                self.parts(upload, source, save, progress).await
            }
            other => other,
        }
    }

    async fn create(&mut self, key: &str, len: u64, sha256: &str) -> Result<Upload, S3Error> {
        let full = self.full(key)?;
        let ask = Ask::new(Method::POST, &full)
            .with("uploads", "")
            .header("content-type", OCTETS)
            .header(META_SHA256, sha256);
        let answer = self.ask(&ask).await?;
        let created = CreateMultipartUpload::parse_response(&answer.text())
            .map_err(|_| self.not_s3("no beginning of an upload"))?;
        Ok(Upload {
            len,
            sha256: sha256.to_owned(),
            part_size: part_size(len),
            ..Upload::named(key, created.upload_id())
        })
    }

    /// Holds our list of parts against the server's; `None` where it knows nothing of the upload.
    ///
    /// A server that cannot list parts has confirmed each of ours when it took it, and says at the
    /// end if it lost one.
    async fn confirm(&mut self, mut upload: Upload) -> Result<Option<Upload>, S3Error> {
        let full = self.full(&upload.key)?;
        let mut theirs: BTreeMap<u64, (Option<String>, u64)> = BTreeMap::new();
        let mut marker: Option<u64> = None;
        loop {
            let mut ask = Ask::new(Method::GET, &full).with("uploadId", upload.upload_id.clone());
            if let Some(marker) = marker {
                ask = ask.with("part-number-marker", marker.to_string());
            }
            let answer = match self.ask(&ask).await {
                // To list parts is a right of its own.
                Err(S3Error::Denied { .. }) => return Ok(Some(upload)),
                Err(error) if error.is_unsupported() => return Ok(Some(upload)),
                Err(error) if error.is_missing() || is_gone(&error) => return Ok(None),
                other => other?,
            };
            let text = answer.text();
            if !text.contains("ListPartsResult") {
                return Err(self.not_s3("no listing of parts"));
            }
            // Not by rusty-s3, which takes no listing that leaves out what it need not say.
            let number = |xml: &str, name: &str| element(xml, name)?.parse::<u64>().ok();
            for part in elements(&text, "Part") {
                if let Some((at, size)) = number(part, "PartNumber").zip(number(part, "Size")) {
                    theirs.insert(at, (element(part, "ETag"), size));
                }
            }
            let more = element(&text, "IsTruncated").as_deref() == Some("true");
            let next = number(&text, "NextPartNumberMarker");
            if !more || next.is_none() || next <= marker {
                break;
            }
            marker = next;
        }
        let bare = |it: &str| it.trim_matches('"').to_owned();
        let good = (1_u64..)
            .zip(&upload.parts)
            .take_while(|(at, ours)| {
                let from = (at - 1) * upload.part_size;
                let size = upload.part_size.min(upload.len.saturating_sub(from));
                theirs.get(at).is_some_and(|(etag, len)| {
                    let same = etag.as_ref().is_none_or(|it| bare(it) == bare(ours));
                    same && *len == size
                })
            })
            .count();
        upload.parts.truncate(good);
        Ok(Some(upload))
    }

    /// Sends what is missing, and puts it together.
    async fn parts(
        &mut self,
        mut upload: Upload,
        source: &mut dyn Source,
        save: Save<'_>,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), S3Error> {
        save(&upload).map_err(S3Error::Local)?;
        let full = self.full(&upload.key)?;
        progress(upload.confirmed());
        while (upload.parts.len() as u64) < upload.count() {
            let offset = upload.confirmed();
            let mut payload = Payload::Stretch {
                source,
                offset,
                length: upload.part_size.min(upload.len - offset),
            };
            let number = upload.parts.len() + 1;
            let ask = Ask::new(Method::PUT, &full)
                .with("partNumber", number.to_string())
                .with("uploadId", upload.upload_id.clone());
            let answer = self
                .send(&ask, &mut payload, &mut |sent| progress(offset + sent))
                .await?;
            let etag = answer
                .header("etag")
                .ok_or_else(|| self.not_s3("a part without an ETag"))?;
            upload.parts.push(etag.to_owned());
            save(&upload).map_err(S3Error::Local)?;
        }
        self.complete(&upload, &full).await
    }

    async fn complete(&mut self, upload: &Upload, full: &str) -> Result<(), S3Error> {
        let etags = upload.parts.iter().map(String::as_str);
        let body =
            CompleteMultipartUpload::new(&self.address, None, full, &upload.upload_id, etags)
                .body();
        let ask = Ask::new(Method::POST, full)
            .with("uploadId", upload.upload_id.clone())
            .header("content-type", "application/xml");
        let mut payload = Payload::Whole(Bytes::from(body));
        match self.send(&ask, &mut payload, &mut |_| {}).await {
            Ok(_) => Ok(()),
            // The answer to an earlier try may have been lost: then it is all there.
            Err(error) if may_be_gone(&error) => {
                let whole = self.verify(&upload.key, upload.len, &upload.sha256).await;
                whole.map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives up an upload, so that the server frees its parts. One that it does not know is given up,
    /// unless it calls that a lack of rights.
    pub async fn abort(&mut self, upload: &Upload) -> Result<(), S3Error> {
        let full = self.full(&upload.key)?;
        let ask = Ask::new(Method::DELETE, &full).with("uploadId", upload.upload_id.clone());
        match self.ask(&ask).await {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) || error.is_missing() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The server no longer knows the upload, or not all of its parts.
fn is_gone(error: &S3Error) -> bool {
    matches!(
        error.code(),
        Some("NoSuchUpload" | "InvalidPart" | "InvalidPartOrder")
    )
}

/// The same, for servers that call it a lack of rights.
fn may_be_gone(error: &S3Error) -> bool {
    is_gone(error) || error.is_missing() || matches!(error, S3Error::Denied { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_never_too_many() {
        let tib = 1024 * 1024 * MIB;
        for len in [
            SINGLE_MAX,
            40 * MIB,
            PART * PARTS_MAX,
            PART * PARTS_MAX + 1,
            tib,
            5 * tib,
        ] {
            let size = part_size(len);
            assert!(
                len.div_ceil(size) <= PARTS_MAX && size >= PART && size.is_multiple_of(MIB),
                "{len}"
            );
        }
        assert_eq!(part_size(PART * PARTS_MAX), PART);
    }
}
