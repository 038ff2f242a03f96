//! A release of etcd from where the project publishes it, or from a mirror with the same folders.
//!
//! What came stays in a file when the link breaks, and the rest is fetched later. Nothing of it is used before somebody
//! compared its checksum.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::http::response::Parts;
use hyper::{Request, StatusCode, header};
use url::{Position, Url};

use crate::dial::{DialError, Target};
use crate::error::chain;
use crate::http::{Answer, AnswerError};
use crate::version::Version;

/// Where the project publishes its releases.
const RELEASES: &str = "https://github.com/etcd-io/etcd/releases/download";
/// Four times a release of 3.7, in bytes.
const ARCHIVE_MAX: u64 = 128 << 20;
/// A release lists a dozen files, in bytes.
const SUMS_MAX: u64 = 64 << 10;
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// So long without a byte, and the connection counts as broken (rule E3).
const STALL: Duration = Duration::from_secs(60);
/// A release of the project takes one.
const REDIRECTS_MAX: usize = 5;
/// So many connections in a row may break without a byte, once some came.
const BREAKS_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);

/// Why a release did not come.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// No address, or one that names more than a place.
    #[error(
        "'{0}' is no mirror: write https://HOST/PATH, the place of v3.6.16/etcd-v3.6.16-linux-arm64.tar.gz"
    )]
    Mirror(String),
    /// No connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It ended in the middle.
    #[error("the connection to {server} broke: {why}")]
    Broken {
        /// Host and port.
        server: String,
        /// The library's reason.
        why: String,
    },
    /// The server has something else.
    #[error("{server} has no {name} (status {status})")]
    Status {
        /// Host and port.
        server: String,
        /// What was asked for.
        name: String,
        /// What it answers.
        status: u16,
    },
    /// It leads elsewhere.
    #[error("{server} leads to another place without TLS, or in a circle")]
    Redirect {
        /// Host and port.
        server: String,
    },
    /// More than any release.
    #[error("{name} at {server} is larger than {most} bytes, so it is not a release of etcd")]
    TooLarge {
        /// Host and port.
        server: String,
        /// What was asked for.
        name: String,
        /// What was allowed.
        most: u64,
    },
    /// The list of checksums does not name the archive.
    #[error("SHA256SUMS at {server} does not name {name}")]
    Unlisted {
        /// Host and port.
        server: String,
        /// What was looked for.
        name: String,
    },
    /// The file could not be written.
    #[error("failed to write what was downloaded")]
    Io(#[from] io::Error),
}

/// One release for one architecture, at one place.
pub struct Release {
    folder: Url,
    /// As the project names the file.
    pub name: String,
    /// Its place is the project's own.
    pub is_official: bool,
}

impl Release {
    /// The release of a version for this machine, at the project's place or at a mirror.
    ///
    /// # Errors
    /// The mirror is no address.
    pub fn new(version: Version, mirror: Option<&str>) -> Result<Release, DownloadError> {
        let text = mirror.unwrap_or(RELEASES);
        let unfit = || DownloadError::Mirror(text.to_owned());
        let url = Url::parse(text).map_err(|_| unfit())?;
        let plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
        if !matches!(url.scheme(), "https" | "http") || !url.has_host() || !plain {
            return Err(unfit());
        }
        let folder = format!("{}/v{version}/", url.as_str().trim_end_matches('/'));
        let arch = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "amd64",
        };
        Ok(Release {
            folder: Url::parse(&folder).map_err(|_| unfit())?,
            name: format!("etcd-v{version}-linux-{arch}.tar.gz"),
            is_official: mirror.is_none(),
        })
    }

    /// Whether the server proves who it is.
    pub fn is_proven(&self) -> bool {
        self.folder.scheme() == "https"
    }

    /// For a person, or a browser.
    pub fn address(&self) -> String {
        format!("{}{}", self.folder, self.name)
    }

    /// The sha256 that the release itself lists for the archive.
    ///
    /// # Errors
    /// It cannot be fetched, or does not name the archive.
    pub async fn listed(&self) -> Result<String, DownloadError> {
        let (mut answer, server) = self.ask("SHA256SUMS", 0).await?;
        let mut text = Vec::new();
        while let Some(bytes) = piece(&mut answer, &server).await? {
            text.extend_from_slice(&bytes);
            check_size("SHA256SUMS", &server, text.len() as u64, SUMS_MAX)?;
        }
        let found = sum_of(&String::from_utf8_lossy(&text), &self.name);
        found.ok_or_else(|| DownloadError::Unlisted {
            server,
            name: self.name.clone(),
        })
    }

    /// The archive into a file, which may hold its beginning. `told` gets how much came, and of how much.
    ///
    /// # Errors
    /// Nobody answers, or the link breaks again and again. The file keeps what came.
    pub async fn fetch(
        &self,
        file: &mut File,
        told: &mut dyn FnMut(u64, u64),
    ) -> Result<(), DownloadError> {
        let (mut came, mut breaks) = (false, 0);
        loop {
            let before = file.seek(SeekFrom::End(0))?;
            let error = match self.rest(file, before, told).await {
                Ok(()) => return Ok(()),
                // It is longer than what is there now.
                Err(DownloadError::Status { status: 416, .. }) if before > 0 => {
                    file.set_len(0)?;
                    continue;
                }
                Err(error) => error,
            };
            let is_of_the_link = matches!(
                error,
                DownloadError::Broken { .. } | DownloadError::Dial(DialError::Unreachable { .. })
            );
            let more = file.metadata()?.len() > before;
            came |= more;
            breaks = if more { 0 } else { breaks + 1 };
            if !is_of_the_link || !came || breaks > BREAKS_MAX {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What comes after the first `from` bytes; all of it from a server that does not send a part.
    async fn rest(
        &self,
        file: &mut File,
        from: u64,
        told: &mut dyn FnMut(u64, u64),
    ) -> Result<(), DownloadError> {
        let (mut answer, server) = self.ask(&self.name, from).await?;
        let mut done = from;
        if answer.head.status != StatusCode::PARTIAL_CONTENT {
            file.set_len(0)?;
            done = file.seek(SeekFrom::Start(0))?;
        }
        let length =
            header_of(&answer.head, &header::CONTENT_LENGTH).and_then(|it| it.parse().ok());
        let total = length.map_or(0, |it: u64| done.saturating_add(it));
        check_size(&self.name, &server, total, ARCHIVE_MAX)?;
        while let Some(bytes) = piece(&mut answer, &server).await? {
            done += bytes.len() as u64;
            check_size(&self.name, &server, done, ARCHIVE_MAX)?;
            file.write_all(&bytes)?;
            told(done, total);
        }
        Ok(())
    }

    /// The answer to a GET, wherever redirects lead, and the server that gave it.
    async fn ask(&self, name: &str, from: u64) -> Result<(Answer, String), DownloadError> {
        let unfit = |_| DownloadError::Mirror(self.folder.to_string());
        let mut url = self.folder.join(name).map_err(unfit)?;
        let mut server = String::new();
        for _ in 0..=REDIRECTS_MAX {
            let target = Target::new(&url, None)?;
            server = target.server();
            let request = request(&url, from).map_err(|it| broken(&server, &it.into()))?;
            let stream = target.connect(CONNECT_WITHIN).await?;
            let answer = Answer::of(stream, request, STALL).await;
            let answer = answer.map_err(|it| broken(&server, &it))?;
            match answer.head.status {
                StatusCode::OK => return Ok((answer, server)),
                StatusCode::PARTIAL_CONTENT if begins_at(&answer.head, from) => {
                    return Ok((answer, server));
                }
                status if status.is_redirection() => {
                    let place = header_of(&answer.head, &header::LOCATION);
                    match place.and_then(|it| url.join(it).ok()) {
                        Some(next) if next.scheme() == "https" || url.scheme() == "http" => {
                            url = next;
                        }
                        _ => break,
                    }
                }
                status => {
                    return Err(DownloadError::Status {
                        server,
                        name: name.to_owned(),
                        status: status.as_u16(),
                    });
                }
            }
        }
        Err(DownloadError::Redirect { server })
    }
}

fn check_size(name: &str, server: &str, size: u64, most: u64) -> Result<(), DownloadError> {
    if size <= most {
        return Ok(());
    }
    Err(DownloadError::TooLarge {
        server: server.to_owned(),
        name: name.to_owned(),
        most,
    })
}

fn request(url: &Url, from: u64) -> Result<Request<Empty<Bytes>>, hyper::http::Error> {
    let mut request = Request::get(&url[Position::BeforePath..Position::AfterQuery])
        .header(
            header::HOST,
            &url[Position::BeforeHost..Position::AfterPort],
        )
        .header(
            header::USER_AGENT,
            concat!("etcd-operator/", env!("CARGO_PKG_VERSION")),
        )
        .header(header::CONNECTION, "close");
    if from > 0 {
        request = request.header(header::RANGE, format!("bytes={from}-"));
    }
    request.body(Empty::new())
}

/// `bytes 1000-4999/5000` begins at 1000.
fn begins_at(head: &Parts, from: u64) -> bool {
    let range = header_of(head, &header::CONTENT_RANGE);
    let first = range.and_then(|it| it.strip_prefix("bytes ")?.split_once('-'));
    first.is_some_and(|(first, _)| first.parse() == Ok(from))
}

fn header_of<'a>(head: &'a Parts, name: &header::HeaderName) -> Option<&'a str> {
    head.headers.get(name)?.to_str().ok()
}

async fn piece(answer: &mut Answer, server: &str) -> Result<Option<Bytes>, DownloadError> {
    answer.piece().await.map_err(|it| broken(server, &it))
}

fn broken(server: &str, error: &AnswerError) -> DownloadError {
    DownloadError::Broken {
        server: server.to_owned(),
        why: chain(&**error),
    }
}

/// Of a line such as `SUM  NAME`.
fn sum_of(text: &str, name: &str) -> Option<String> {
    let mut words = text.lines().map(str::split_ascii_whitespace);
    words.find_map(|mut it| {
        let (sum, of) = (it.next()?, it.next()?.trim_start_matches('*'));
        let is_sum = sum.len() == 64 && sum.bytes().all(|it| it.is_ascii_hexdigit());
        (of == name && is_sum).then(|| sum.to_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_a_place_and_nothing_more() {
        let version: Version = "3.6.16".parse().unwrap();
        let release = Release::new(version, None).unwrap();
        let start = "https://github.com/etcd-io/etcd/releases/download/v3.6.16/etcd-v3.6.16-linux-";
        assert!(
            release.address().starts_with(start),
            "{}",
            release.address()
        );
        let mirror = Release::new(version, Some("http://mirror.example:8080/etcd/")).unwrap();
        let start = "http://mirror.example:8080/etcd/v3.6.16/etcd-v3.6.16-linux-";
        assert!(mirror.address().starts_with(start), "{}", mirror.address());
        assert!(release.is_proven() && release.is_official);
        assert!(!mirror.is_proven() && !mirror.is_official);
        for unfit in [
            "mirror.example",
            "ftp://a/b",
            "https://",
            "https://me:word@a/b",
            "https://a/?b",
            "https://a/#b",
        ] {
            assert!(Release::new(version, Some(unfit)).is_err(), "{unfit}");
        }
    }

    #[test]
    fn a_list_of_checksums_names_one_file_each_line() {
        let sum = "ab".repeat(32);
        let text = format!(
            "{sum}  etcd-v3.6.16-linux-arm64.tar.gz.asc\n{sum} *etcd-v3.6.16-linux-arm64.tar.gz\n"
        );
        let found = sum_of(&text, "etcd-v3.6.16-linux-arm64.tar.gz");
        assert_eq!(found, Some(sum));
        assert_eq!(sum_of("<html>etcd</html>", "etcd"), None);
        assert_eq!(sum_of("abcd  etcd", "etcd"), None);
    }
}
