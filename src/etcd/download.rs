//! A release of etcd from where the project publishes it, or from a mirror with the same folders.
//!
//! What came stays in a file when the link breaks, and the rest is fetched later. Nothing of it is used before somebody
//! compared its checksum.

mod part;

use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::http::response::Parts;
use hyper::{Request, StatusCode, header};
use tokio::time::Instant;
use url::{Position, Url};

pub use part::{Part, PartError};

use super::archive::architecture;
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
/// A modem dials again within this.
const PATIENCE: Duration = Duration::from_secs(600);
/// What has to come within it, in bytes.
const PROGRESS_MIN: u64 = 64 << 10;
const PAUSE: Duration = Duration::from_secs(2);
/// The small list is asked for so often.
const LIST_TRIES: u32 = 3;
/// Programs take three times their archive, and lie unpacked beside the store while they are copied into it.
const UNPACKED: u64 = 6;

/// Why a release did not come.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// No address, or one that names more than a place.
    #[error(
        "this is no mirror: write https://HOST/PATH, the place of v3.6.16/etcd-v3.6.16-linux-arm64.tar.gz, without a name and password"
    )]
    Mirror,
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
    #[error("{server} {} (status {status})", if matches!(status, 404 | 410) { format!("has no {name}") } else { format!("does not send {name}") })]
    Status {
        /// Host and port.
        server: String,
        /// What was asked for.
        name: String,
        /// What it answers.
        status: u16,
    },
    /// It sends another part than was asked for.
    #[error("{server} sends another part of {name} than it was asked for")]
    Elsewhere {
        /// Host and port.
        server: String,
        /// What was asked for.
        name: String,
    },
    /// It leads elsewhere.
    #[error("{server} leads {whither}")]
    Redirect {
        /// Host and port.
        server: String,
        /// What is wrong with that.
        whither: &'static str,
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
    /// Its file, or the room for it.
    #[error(transparent)]
    Part(#[from] PartError),
}

impl DownloadError {
    /// The same may work in a moment: for a server's own trouble, where it has sent something before.
    fn passes(&self, came: bool) -> bool {
        match self {
            DownloadError::Broken { .. } | DownloadError::Dial(DialError::Unreachable { .. }) => {
                true
            }
            DownloadError::Status { status, .. } => came && matches!(status, 429 | 500..),
            _ => false,
        }
    }
}

/// How a download goes.
pub enum Told<'a> {
    /// So much is there, and so much there will be; 0: not known.
    Came(u64, u64),
    /// The link broke; the rest is asked for again.
    Broke(&'a DownloadError, u64),
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
        let unfit = |_| DownloadError::Mirror;
        let url = Url::parse(text).map_err(unfit)?;
        let named = !url.username().is_empty() || url.password().is_some();
        if !is_web(&url) || named || url.query().is_some() || url.fragment().is_some() {
            return Err(DownloadError::Mirror);
        }
        let folder = format!("{}/v{version}/", url.as_str().trim_end_matches('/'));
        let arch = architecture(std::env::consts::ARCH);
        Ok(Release {
            folder: Url::parse(&folder).map_err(unfit)?,
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
        let mut tries = 1;
        loop {
            match self.list().await {
                Err(error) if tries < LIST_TRIES && error.passes(true) => tries += 1,
                other => return other,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn list(&self) -> Result<String, DownloadError> {
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

    /// The archive into its file, which may hold its beginning.
    ///
    /// # Errors
    /// Nobody answers, or nothing comes for ten minutes after the link broke. The file keeps what came, unless it is of no use.
    pub async fn fetch(
        &self,
        part: &mut Part,
        told: &mut dyn FnMut(Told<'_>),
    ) -> Result<(), DownloadError> {
        let mut came = false;
        let mut furthest = Furthest::begin(part.size()?);
        loop {
            let before = part.size()?;
            let error = match self.rest(part, before, told).await {
                Ok(()) => return Ok(()),
                // What lies here is of something else.
                Err(
                    DownloadError::Elsewhere { .. } | DownloadError::Status { status: 416, .. },
                ) if before > 0 => {
                    part.clear()?;
                    if !came {
                        furthest = Furthest::begin(0);
                    }
                    continue;
                }
                Err(error) => error,
            };
            if matches!(
                error,
                DownloadError::TooLarge { .. } | DownloadError::Part(PartError::Io { .. })
            ) {
                part.clear()?;
            }
            let now = part.size()?;
            came |= now > before;
            let is_stuck = furthest.is_stuck(now, Instant::now());
            if !came || !error.passes(came) || is_stuck {
                return Err(error);
            }
            told(Told::Broke(&error, now));
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What comes after the first `from` bytes; all of it from a server that does not send a part.
    async fn rest(
        &self,
        part: &mut Part,
        from: u64,
        told: &mut dyn FnMut(Told<'_>),
    ) -> Result<(), DownloadError> {
        let (mut answer, server) = self.ask(&self.name, from).await?;
        let mut done = from;
        if answer.head.status != StatusCode::PARTIAL_CONTENT {
            part.clear()?;
            done = 0;
        }
        let total = total_of(&answer.head, done);
        check_size(&self.name, &server, total, ARCHIVE_MAX)?;
        part.check_room((total - done.min(total)).saturating_add(total * UNPACKED))?;
        while let Some(bytes) = piece(&mut answer, &server).await? {
            done += bytes.len() as u64;
            check_size(&self.name, &server, done, ARCHIVE_MAX)?;
            part.append(&bytes)?;
            told(Told::Came(done, total));
        }
        if done < total {
            return Err(broken(&server, &"it sent a part alone".into()));
        }
        Ok(())
    }

    /// The answer to a GET, wherever redirects lead, and the server that gave it.
    async fn ask(&self, name: &str, from: u64) -> Result<(Answer, String), DownloadError> {
        let mut url = self.folder.join(name).map_err(|_| DownloadError::Mirror)?;
        let mut server = String::new();
        for _ in 0..=REDIRECTS_MAX {
            let target = Target::new(&url, None)?;
            server = target.server();
            let request = request(&url, from).map_err(|it| broken(&server, &it.into()))?;
            let stream = target.connect(CONNECT_WITHIN).await?;
            let answer = Answer::of(stream, request, STALL).await;
            let answer = answer.map_err(|it| broken(&server, &it))?;
            let status = answer.head.status;
            let place = header_of(&answer.head, &header::LOCATION);
            match (status, place) {
                (StatusCode::OK, _) => return Ok((answer, server)),
                (StatusCode::PARTIAL_CONTENT, _) if begins_at(&answer.head, from) => {
                    return Ok((answer, server));
                }
                (StatusCode::PARTIAL_CONTENT, _) => {
                    let name = name.to_owned();
                    return Err(DownloadError::Elsewhere { server, name });
                }
                (_, Some(place)) if status.is_redirection() => {
                    url = led(&url, place).map_err(|whither| {
                        let server = server.clone();
                        DownloadError::Redirect { server, whither }
                    })?;
                }
                _ => {
                    return Err(DownloadError::Status {
                        server,
                        name: name.to_owned(),
                        status: status.as_u16(),
                    });
                }
            }
        }
        let whither = "from place to place without an end";
        Err(DownloadError::Redirect { server, whither })
    }
}

/// How far a download has come at most, and when. One that begins anew after each break comes no further.
struct Furthest {
    bytes: u64,
    at: Instant,
}

impl Furthest {
    fn begin(bytes: u64) -> Self {
        let at = Instant::now();
        Furthest { bytes, at }
    }

    fn is_stuck(&mut self, bytes: u64, now: Instant) -> bool {
        if bytes >= self.bytes + PROGRESS_MIN {
            *self = Furthest { bytes, at: now };
        }
        now.duration_since(self.at) > PATIENCE
    }
}

/// An address of the web.
fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "https" | "http") && url.has_host()
}

/// Where a redirect leads. Who proved who it is hands over to nobody who does not.
fn led(from: &Url, place: &str) -> Result<Url, &'static str> {
    let to = from.join(place).ok().filter(is_web);
    let to = to.ok_or("to what is no address of the web")?;
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err("to a place without TLS");
    }
    Ok(to)
}

/// How much there will be: of the whole file, where the server says so; 0 where it does not.
fn total_of(head: &Parts, done: u64) -> u64 {
    let range = header_of(head, &header::CONTENT_RANGE).and_then(|it| it.rsplit_once('/'));
    let whole = range.and_then(|(_, it)| it.parse().ok());
    let rest = header_of(head, &header::CONTENT_LENGTH).and_then(|it| it.parse().ok());
    let with_rest = rest.map(|it: u64| done.saturating_add(it));
    whole
        .filter(|_| head.status == StatusCode::PARTIAL_CONTENT)
        .or(with_rest)
        .unwrap_or(0)
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
    fn a_link_that_breaks_is_given_up_where_nothing_more_comes() {
        let stuck_at = |bytes: fn(u64) -> u64| {
            let mut furthest = Furthest::begin(0);
            let begin = furthest.at;
            (1..60).find(|it| furthest.is_stuck(bytes(*it), begin + Duration::from_secs(it * 60)))
        };
        // A little more each time; then the server begins anew each time, and breaks off at another place.
        assert_eq!(stuck_at(|minute| minute * PROGRESS_MIN), None);
        assert_eq!(stuck_at(|minute| (5 + minute % 2 * 5) << 20), Some(12));
    }

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
    fn a_redirect_leads_to_the_web_alone_and_from_tls_to_tls() {
        let led = |from: &str, place: &str| {
            led(&Url::parse(from).unwrap(), place).map(|it| it.to_string())
        };
        let on = "https://b/c?sig=a%2Fb".to_owned();
        assert_eq!(led("https://a/x", &on), Ok(on.clone()));
        assert_eq!(led("http://a/x", &on), Ok(on));
        assert_eq!(led("https://a/x/y", "../z"), Ok("https://a/z".to_owned()));
        assert_eq!(led("http://a/x", "/z"), Ok("http://a/z".to_owned()));
        for place in ["ftp://a/b", "file:///etc/passwd", "http://[", "mailto:me"] {
            assert!(led("http://a/x", place).is_err(), "{place}");
        }
        assert_eq!(
            led("https://a/x", "http://a/x"),
            Err("to a place without TLS")
        );
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
