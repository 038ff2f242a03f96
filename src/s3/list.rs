//! What is below our prefix, page by page, and uploads that nobody finished.

use std::time::Duration;

use rusty_s3::actions::ListObjectsV2;

use super::answer::{element, elements};
use super::request::Ask;
use super::{Bucket, Object, S3Error, Upload};
use crate::clock;
use crate::cluster::Timestamp;

/// Pages of a listing: a million keys at 500 a page. Retention keeps far fewer.
const PAGES_MAX: u32 = 2000;
/// A listing ends within so long, however slowly its pages come: each of a few may take a minute on a thin link.
const LISTED_WITHIN: Duration = Duration::from_secs(1800);

impl Bucket {
    /// Yields every object below the prefix whose key begins with `under`, in the server's order.
    pub async fn list(
        &mut self,
        under: &str,
        each: &mut (dyn FnMut(Object) + Send),
    ) -> Result<(), S3Error> {
        let below = format!("{}{under}", self.prefix);
        let mut token: Option<String> = None;
        let mut newest = String::new();
        let begun = clock::since_boot();
        for _ in 0..PAGES_MAX {
            if clock::since_boot() > begun + LISTED_WITHIN {
                return Err(self.not_s3("no end of its listing within half an hour"));
            }
            let mut ask = Ask::bucket()
                .with("list-type", "2")
                .with("max-keys", self.patience.page.to_string())
                .with("prefix", below.clone());
            if let Some(token) = &token {
                ask = ask.with("continuation-token", token.clone());
            }
            let answer = tokio::time::timeout(LISTED_WITHIN, self.ask(&ask)).await;
            let answer =
                answer.map_err(|_| self.not_s3("no end of its listing within half an hour"))??;
            let page = ListObjectsV2::parse_response(&answer.text())
                .map_err(|_| self.not_s3("no listing of a bucket"))?;
            let last = page.contents.iter().map(|it| it.key.as_str()).max();
            let goes_on = last.is_none_or(|it| it > newest.as_str());
            newest = last.unwrap_or(&newest).to_owned();
            for object in page.contents {
                // A server that does not heed the prefix is not believed.
                if !object.key.starts_with(&below) {
                    continue;
                }
                let Some(key) = object.key.strip_prefix(&self.prefix) else {
                    continue;
                };
                each(Object {
                    key: key.to_owned(),
                    len: object.size.unwrap_or(0),
                    sha256: None,
                    modified: object.last_modified.as_deref().and_then(iso_date),
                });
            }
            let next = page.next_continuation_token.filter(|it| !it.is_empty());
            token = next;
            if token.is_none() {
                return Ok(());
            }
            if !goes_on {
                break;
            }
        }
        Err(self.not_s3("a listing that does not end"))
    }

    /// Ends uploads of keys that begin with `under` and are `ours`, begun longer ago than this, but for
    /// those `kept` (by id), where the server can list them; gives how many.
    pub async fn sweep(
        &mut self,
        (under, ours): (&str, &(dyn Fn(&str) -> bool + Sync)),
        older: Duration,
        kept: &[String],
    ) -> Result<u64, S3Error> {
        let below = format!("{}{under}", self.prefix);
        let now = clock::now().0.saturating_add(self.offset_seconds);
        let newest = now.saturating_sub(i64::try_from(older.as_secs()).unwrap_or(i64::MAX));
        let mut marker: Option<(String, String)> = None;
        let mut ended = 0;
        for _ in 0..PAGES_MAX {
            let mut ask = Ask::bucket()
                .with("uploads", "")
                .with("max-uploads", self.patience.page.to_string())
                .with("prefix", below.clone());
            if let Some((key, id)) = &marker {
                ask = ask
                    .with("key-marker", key.clone())
                    .with("upload-id-marker", id.clone());
            }
            let answer = match self.ask(&ask).await {
                Err(error) if error.is_unsupported() => return Ok(ended),
                other => other?,
            };
            let text = answer.text();
            if !text.contains("ListMultipartUploadsResult") {
                return Err(self.not_s3("no listing of uploads"));
            }
            for upload in elements(&text, "Upload") {
                let (Some(key), Some(id)) = (element(upload, "Key"), element(upload, "UploadId"))
                else {
                    continue;
                };
                let begun = element(upload, "Initiated").as_deref().and_then(iso_date);
                // A server that does not heed the prefix is not believed.
                let Some(key) = key.strip_prefix(&self.prefix) else {
                    continue;
                };
                if !key.strip_prefix(under).is_some_and(ours) {
                    continue;
                }
                if begun.is_some_and(|it| it.0 <= newest) && !kept.contains(&id) {
                    self.abort(&Upload::named(key, &id)).await?;
                    ended += 1;
                }
            }
            let next = element(&text, "NextKeyMarker").zip(element(&text, "NextUploadIdMarker"));
            let more = element(&text, "IsTruncated").as_deref() == Some("true");
            if !more
                || next.is_none()
                || next == marker
                || backwards(marker.as_ref(), next.as_ref())
            {
                return Ok(ended);
            }
            marker = next;
        }
        Ok(ended)
    }

    pub(super) fn not_s3(&self, what: &str) -> S3Error {
        S3Error::NotS3 {
            server: self.target.server(),
            what: what.to_owned(),
        }
    }
}

/// Whether the next page begins before this one.
fn backwards(marker: Option<&(String, String)>, next: Option<&(String, String)>) -> bool {
    next.map(|it| &it.0) < marker.map(|it| &it.0)
}

fn iso_date(text: &str) -> Option<Timestamp> {
    let parsed: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp(parsed.as_second()))
}
