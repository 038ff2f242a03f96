//! S3: one bucket of any maker's, and what is ours in it.
//!
//! ```text
//! Bucket                    what can be done: put, upload, head, verify, get, download, list, delete
//!   -> upload, list         objects in parts; the listing, and uploads that nobody finished
//!   -> request              one request: signed, sent, tried again, judged
//!        sign, credentials    the right to ask
//!        body, pace           what goes out, and how fast
//!        connection           one to the server, watched for bytes
//!        answer, error        what came back, and what it means for a person
//! ```
//!
//! # What is relied on
//!
//! Only what every maker's server does: PUT, GET with Range, HEAD, DELETE, ListObjectsV2, multipart
//! uploads. No bucket is created or asked for (rule E4), no condition (`If-None-Match`) is relied on
//! (rule E7), no ETag says anything about content (rule E6), no checksum is sent in a trailer (rule E1).
//! Where a server cannot list parts or uploads, there is a way without.
//!
//! # Rules
//!
//! - One request at a time, over one connection that is kept; never more of an object in memory than
//!   a few chunks of 64 KiB, however long the object and its parts.
//! - No deadline for the whole: a minute without a byte ends a try (rule E3), three tries end a
//!   request, and whoever asked tries again later.
//! - Keys are below the prefix: none is written, yielded or deleted outside of it.
//! - Every payload's sha256 is signed, over TLS too; what a signature is made with is shown nowhere.

mod answer;
mod body;
mod connection;
mod credentials;
mod error;
mod list;
mod pace;
mod request;
mod sign;
mod upload;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use url::Url;

use crate::cluster::Timestamp;
use crate::dial::Target;

pub use body::Source;
pub use credentials::{Credentials, SYSTEMD_CREDENTIAL};
pub use error::S3Error;
pub use upload::{Save, Upload};

use answer::Answer;
use body::Payload;
use connection::Connection;
use pace::Pace;
use request::{Ask, Take};

const REGION: &str = "us-east-1";
/// Our own word for what an object holds (rule E6).
const META_SHA256: &str = "x-amz-meta-sha256";
const OCTETS: &str = "application/octet-stream";

/// Where objects go, as the document says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The bucket's name.
    pub bucket: String,
    /// All keys begin with it and a '/'; may be empty.
    pub prefix: String,
    /// `https://HOST[:PORT]`, or `http://` where that is meant; AWS where there is none.
    pub endpoint: Option<String>,
    /// Free text (`auto`, `garage`); `us-east-1` where there is none.
    pub region: Option<String>,
    /// The bucket in the path instead of the host name.
    pub path_style: bool,
    /// CAs in PEM, besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Bytes a second, each way; at least 1024.
    pub bandwidth: Option<u64>,
}

/// How long to wait, and for how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until there is a connection, with proxy and TLS.
    pub connect: Duration,
    /// Without a byte either way.
    pub stall: Duration,
    /// Before the second try; four times as long before each further one.
    pub back_off: Duration,
    /// Of one request.
    pub tries: u32,
    /// Keys in one answer of a listing.
    pub page: u16,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(20),
            stall: Duration::from_secs(60),
            back_off: Duration::from_secs(1),
            tries: 3,
            page: 500,
        }
    }
}

/// An object in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its key without the prefix.
    pub key: String,
    /// Its length in bytes.
    pub len: u64,
    /// What we said at upload; a listing does not tell.
    pub sha256: Option<String>,
    /// When it was stored, by the server's clock.
    pub modified: Option<Timestamp>,
}

/// What became of an object that was to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// It is not there any more.
    Deleted,
    /// The store does not let it go, as under object lock (rule E8); with the server's reason.
    Kept(String),
}

/// A bucket, and the connection to it.
pub struct Bucket {
    address: rusty_s3::Bucket,
    /// Empty, or ends in '/'.
    prefix: String,
    credentials: Credentials,
    target: Target,
    connection: Option<Connection>,
    pace: Pace,
    patience: Patience,
    offset_seconds: i64,
    skew_seconds: Option<i64>,
}

impl Bucket {
    /// Connects to nothing yet.
    pub fn new(location: &Location, credentials: Credentials) -> Result<Bucket, S3Error> {
        let region = location.region.clone();
        let region = region
            .filter(|it| !it.is_empty())
            .unwrap_or_else(|| REGION.to_owned());
        let endpoint = location
            .endpoint
            .clone()
            .unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let bad = |why| S3Error::Endpoint {
            endpoint: endpoint.clone(),
            why,
        };
        let url = Url::parse(&endpoint)
            .ok()
            .filter(|it| matches!(it.scheme(), "http" | "https"))
            .ok_or_else(|| bad("write https://HOST or https://HOST:PORT"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(S3Error::Endpoint {
                endpoint: url.host_str().unwrap_or_default().to_owned(),
                why: "keys belong in the credentials, not in the address",
            });
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("leave out what follows '?' or '#'"));
        }
        let style = if location.path_style {
            rusty_s3::UrlStyle::Path
        } else {
            rusty_s3::UrlStyle::VirtualHost
        };
        let address = rusty_s3::Bucket::new(url, style, location.bucket.clone(), region)
            .map_err(|_| bad("the bucket's name cannot precede this host's name: set pathStyle, or correct the bucket's name"))?;
        let prefix = location.prefix.trim_matches('/');
        let prefix = match prefix {
            "" => String::new(),
            some => format!("{}/", checked(some)?),
        };
        Ok(Bucket {
            target: Target::new(address.base_url(), location.ca_file.as_deref())?,
            address,
            prefix,
            credentials,
            connection: None,
            pace: Pace::new(location.bandwidth),
            patience: Patience::default(),
            offset_seconds: 0,
            skew_seconds: None,
        })
    }

    /// With other limits of time.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Bucket {
        self.patience = patience;
        self
    }

    /// The server's time less ours, where they are more than five minutes apart (rule E5): one of
    /// them is wrong. Requests that were refused for it are signed with the server's time; this
    /// machine's clock is never set.
    pub fn clock_skew(&self) -> Option<i64> {
        self.skew_seconds
    }

    /// A key with the prefix.
    fn full(&self, key: &str) -> Result<String, S3Error> {
        Ok(format!("{}{}", self.prefix, checked(key)?))
    }

    /// Stores a few bytes.
    pub async fn put(&mut self, key: &str, body: Bytes, sha256: &str) -> Result<(), S3Error> {
        let mut payload = Payload::Whole(body);
        self.put_payload(key, &mut payload, sha256, &mut |_| {})
            .await
    }

    async fn put_payload(
        &mut self,
        key: &str,
        payload: &mut Payload<'_>,
        sha256: &str,
        progress: request::Progress<'_>,
    ) -> Result<(), S3Error> {
        let full = self.full(key)?;
        let ask = Ask::new(Method::PUT, &full)
            .header("content-type", OCTETS)
            .header(META_SHA256, sha256);
        let answer = self.send(&ask, payload, progress).await?;
        self.of_an_object(&answer)
    }

    /// Whether the store itself has answered.
    fn of_an_object(&self, answer: &Answer) -> Result<(), S3Error> {
        if answer.is_object() {
            return Ok(());
        }
        Err(self.not_s3("an object without an ETag"))
    }

    /// What is known of an object, if there is one.
    pub async fn head(&mut self, key: &str) -> Result<Option<Object>, S3Error> {
        let full = self.full(key)?;
        match self.ask(&Ask::new(Method::HEAD, &full)).await {
            Ok(answer) => {
                self.of_an_object(&answer)?;
                Ok(Some(object(key, &answer)))
            }
            // HEAD has no words: the same question as GET says whether it is the bucket that is
            // missing, or a right, or the object.
            Err(error) if error.is_wordless() => self.explain(&full).await.map(|()| None),
            Err(error) => Err(error),
        }
    }

    /// Asks for the first byte, for the words of a refusal.
    async fn explain(&mut self, full: &str) -> Result<(), S3Error> {
        let ask = Ask::new(Method::GET, full).header("range", "bytes=0-0");
        match self.ask(&ask).await {
            Ok(answer) => self.of_an_object(&answer),
            Err(error) if error.is_missing() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Holds the object against what was sent: its length, and our own word for its content. A
    /// server's ETag says nothing.
    pub async fn verify(&mut self, key: &str, len: u64, sha256: &str) -> Result<(), S3Error> {
        let found = self.head(key).await?;
        let found = found.ok_or_else(|| S3Error::Missing(key.to_owned()))?;
        let what = if found.len != len {
            format!("{} bytes of {len}", found.len)
        } else if found.sha256.as_deref() != Some(sha256) {
            let theirs = found.sha256.as_deref().unwrap_or("none");
            format!("its sha256 is {theirs}, not {sha256}")
        } else {
            return Ok(());
        };
        Err(S3Error::Differs {
            key: key.to_owned(),
            what,
        })
    }

    /// Reads a small object.
    pub async fn get(&mut self, key: &str, max_bytes: u64) -> Result<Bytes, S3Error> {
        let mut read = Vec::new();
        let mut too_large = false;
        let outcome = self
            .download(key, 0, &mut |data| {
                too_large = (read.len() + data.len()) as u64 > max_bytes;
                if too_large {
                    return Err(io::Error::from(io::ErrorKind::FileTooLarge));
                }
                read.extend_from_slice(data);
                Ok(())
            })
            .await;
        if too_large {
            return Err(S3Error::TooLarge {
                key: key.to_owned(),
                most: max_bytes,
            });
        }
        outcome?;
        Ok(Bytes::from(read))
    }

    /// Passes on an object's bytes from this place on, and goes on where a connection broke; gives
    /// how many there were. Whether they are the right ones is the caller's to check.
    pub async fn download(
        &mut self,
        key: &str,
        from: u64,
        sink: request::Sink<'_>,
    ) -> Result<u64, S3Error> {
        let full = self.full(key)?;
        let hashes = Payload::None.hashes()?;
        let (mut at, mut tried) = (from, 0);
        loop {
            let ask = match at {
                0 => Ask::new(Method::GET, &full),
                _ => Ask::new(Method::GET, &full).header("range", format!("bytes={at}-")),
            };
            let before = at;
            let mut counted = |data: &[u8]| {
                sink(data)?;
                at += data.len() as u64;
                Ok(())
            };
            let take = &mut Take::Pass(&mut counted);
            let outcome = self
                .once(&ask, &mut Payload::None, &hashes, &mut |_| {}, take)
                .await;
            if at > before {
                tried = 0;
            }
            match outcome {
                Ok(answer) => {
                    self.of_an_object(&answer)?;
                    return Ok(at - from);
                }
                // Nothing is left from there on.
                Err(S3Error::Refused { status: 416, .. }) if at > 0 => return Ok(at - from),
                Err(error) if error.is_missing() => return Err(S3Error::Missing(key.to_owned())),
                Err(error) if error.passes() && tried + 1 < self.patience.tries => {
                    tracing::debug!("S3: {error}");
                    self.back_off(tried).await;
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes an object; one that is not there is deleted. Where the bucket keeps versions, ours is
    /// deleted, and not only hidden behind a marker.
    pub async fn delete(&mut self, key: &str) -> Result<Deletion, S3Error> {
        let full = self.full(key)?;
        let version = match self.ask(&Ask::new(Method::HEAD, &full)).await {
            Ok(answer) => {
                self.of_an_object(&answer)?;
                answer.header("x-amz-version-id").map(str::to_owned)
            }
            // DELETE has words for what HEAD cannot say.
            Err(error) if error.is_wordless() || error.is_missing() => None,
            Err(error) => return Err(error),
        };
        let mut ask = Ask::new(Method::DELETE, &full);
        if let Some(version) = version.filter(|it| it != "null") {
            ask = ask.with("versionId", version);
        }
        match self.ask(&ask).await {
            Ok(_) => Ok(Deletion::Deleted),
            Err(error) if error.is_missing() => Ok(Deletion::Deleted),
            Err(S3Error::Denied { code, message }) => {
                Ok(Deletion::Kept(format!("{code}: {message}")))
            }
            Err(error) => Err(error),
        }
    }
}

/// A key that stays where it is put: no part of it is empty, '.' or '..'.
fn checked(key: &str) -> Result<&str, S3Error> {
    let bad = |it: &str| matches!(it, "" | "." | "..");
    let unfit = key.len() > 900 || key.chars().any(char::is_control) || key.split('/').any(bad);
    if unfit {
        return Err(S3Error::Key(key.escape_default().to_string()));
    }
    Ok(key)
}

fn object(key: &str, answer: &Answer) -> Object {
    let number = |name| answer.header(name)?.parse().ok();
    let date = answer.header("last-modified");
    Object {
        key: key.to_owned(),
        len: number("content-length").unwrap_or(0),
        sha256: answer.header(META_SHA256).map(str::to_owned),
        modified: date.and_then(answer::http_date).map(Timestamp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Source for Nothing {
        fn read_at(&mut self, _: u64, _: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }
        fn len(&self) -> u64 {
            0
        }
    }

    /// Whoever calls may do so in a task of its own.
    #[test]
    fn everything_can_be_spawned() {
        fn spawnable<T: Send>(_: &T) {}
        let location = Location {
            endpoint: Some("http://127.0.0.1:9".to_owned()),
            bucket: "b".to_owned(),
            path_style: true,
            ..Location::default()
        };
        let mut bucket = Bucket::new(&location, Credentials::new("a", "b", None)).unwrap();
        let (mut source, mut save, mut progress) = (Nothing, |_: &Upload| Ok(()), |_| {});
        spawnable(&bucket.upload("a", &mut source, "", None, &mut save, &mut progress));
        spawnable(&bucket.download("a", 0, &mut |_| Ok(())));
        spawnable(&bucket.verify("a", 0, ""));
        spawnable(&bucket.list("", &mut |_| {}));
        spawnable(&bucket.sweep(("", &|_| true), Duration::ZERO, &[]));
        spawnable(&bucket.delete("a"));
    }
}
