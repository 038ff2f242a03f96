//! What a server's answer means.

use hyper::header::{DATE, ETAG, HeaderMap};
use jiff::fmt::rfc2822;

use super::S3Error;
use super::error::NO_WORDS;

const MESSAGE_MAX: usize = 200;

/// An answer whose body was read, or its beginning.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// For whom an answer is judged.
pub(super) struct Call<'a> {
    pub(super) server: &'a str,
    pub(super) bucket: &'a str,
    pub(super) region: &'a str,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(super) fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// Whether this is about an object of the store: every make sends its ETag along. What calls itself success
    /// without one comes from something between here and there. A content type says nothing: some servers label
    /// every answer, also an empty one, as a page.
    pub(super) fn is_object(&self) -> bool {
        matches!(self.status, 200..=299) && self.headers.contains_key(ETAG)
    }

    /// Adds to the body, within a limit.
    pub(super) fn keep(&mut self, data: &[u8], most: usize, server: &str) -> Result<(), S3Error> {
        if self.body.len() + data.len() > most {
            return Err(S3Error::NotS3 {
                server: server.to_owned(),
                what: format!("an answer of more than {most} bytes"),
            });
        }
        self.body.extend_from_slice(data);
        Ok(())
    }

    /// The server's time.
    pub(super) fn date(&self) -> Option<i64> {
        http_date(self.headers.get(DATE)?.to_str().ok()?)
    }

    /// Whether it is refused for the time in the signature, in the words of several servers.
    pub(super) fn may_be_skew(&self) -> bool {
        matches!(self.status, 400 | 401 | 403)
    }

    /// A page for people.
    fn is_page(&self) -> bool {
        let start: String = self.text().trim_start().chars().take(14).collect();
        let start = start.to_ascii_lowercase();
        start.starts_with("<!doctype html") || start.starts_with("<html")
    }

    /// An error inside of what claims success counts (CompleteMultipartUpload begins to answer
    /// before it knows).
    pub(super) fn check(self, asked: &Call<'_>) -> Result<Answer, S3Error> {
        let success = matches!(self.status, 200..=299);
        if self.is_page() {
            return Err(S3Error::NotS3 {
                server: asked.server.to_owned(),
                what: format!("a web page, status {}", self.status),
            });
        }
        if success && !is_error(&self.text()) {
            return Ok(self);
        }
        Err(self.error(asked))
    }

    fn error(&self, asked: &Call<'_>) -> S3Error {
        let text = self.text();
        let in_error = is_error(&text);
        let word = |name: &str| {
            let found = in_error.then(|| element(&text, name)).flatten();
            found.map(|it| plain(&it)).filter(|it| !it.is_empty())
        };
        let code = word("Code");
        let message = word("Message").unwrap_or_else(|| NO_WORDS.to_owned());
        let theirs = word("Region")
            .or_else(|| self.header("x-amz-bucket-region").map(plain))
            .or_else(|| region_in(&message));
        match code {
            Some(code) => self.error_of(code, message, theirs, asked),
            None => self.wordless(theirs, asked),
        }
    }

    /// By the server's word for it.
    fn error_of(
        &self,
        code: String,
        message: String,
        theirs: Option<String>,
        asked: &Call<'_>,
    ) -> S3Error {
        let status = self.status;
        match code.as_str() {
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidToken"
            | "ExpiredToken"
            | "TokenRefreshRequired"
            | "NotSignedUp"
            | "XAdminUserNotFound" // versitygw's, with status 404
            | "InvalidSecurity" => S3Error::WrongKey { code },
            // garage's words for the same.
            "AccessDenied" if message.contains("No such key") || message.contains("signature") => {
                S3Error::WrongKey { code }
            }
            "AccessDenied" | "AllAccessDisabled" | "AccountProblem" => {
                S3Error::Denied { code, message }
            }
            "PermanentRedirect" | "IllegalLocationConstraintException" => {
                wrong_region(theirs, asked)
            }
            "AuthorizationHeaderMalformed" if theirs.is_some() => wrong_region(theirs, asked),
            "NoSuchBucket" => S3Error::NoBucket(asked.bucket.to_owned()),
            "RequestTimeTooSkewed" | "RequestExpired" => S3Error::ClockSkew { seconds: 0 },
            "InsufficientStorage" | "QuotaExceeded" | "XMinioStorageFull" => S3Error::Full { code },
            "SlowDown" | "RequestTimeout" | "InternalError" => S3Error::Server {
                status,
                code,
                message,
            },
            _ if status == 507 => S3Error::Full { code },
            // An error in an answer of success is a failure of the server's.
            _ if status != 501 && matches!(status, 200..=299 | 408 | 429 | 500..) => {
                S3Error::Server {
                    status,
                    code,
                    message,
                }
            }
            _ => S3Error::Refused {
                status,
                code,
                message,
            },
        }
    }

    /// By the status alone: of HEAD, which has no body, or of something between here and there.
    fn wordless(&self, theirs: Option<String>, asked: &Call<'_>) -> S3Error {
        let (status, code, message) = (self.status, String::new(), NO_WORDS.to_owned());
        match status {
            301 if theirs.is_some() => wrong_region(theirs, asked),
            403 => S3Error::Denied {
                code: status.to_string(),
                message,
            },
            507 => S3Error::Full {
                code: status.to_string(),
            },
            400 | 404 | 405 | 416 | 501 if self.body.is_empty() => S3Error::Refused {
                status,
                code,
                message,
            },
            408 | 429 | 500 | 502.. => S3Error::Server {
                status,
                code,
                message,
            },
            _ => S3Error::NotS3 {
                server: asked.server.to_owned(),
                what: format!("status {status} without an error of S3"),
            },
        }
    }
}

fn wrong_region(theirs: Option<String>, asked: &Call<'_>) -> S3Error {
    S3Error::WrongRegion {
        ours: asked.region.to_owned(),
        theirs: theirs.filter(|it| it != asked.region),
    }
}

/// A date as HTTP writes it. It says GMT where RFC 2822 says +0000, and means the same.
pub(super) fn http_date(text: &str) -> Option<i64> {
    Some(rfc2822::parse(text).ok()?.timestamp().as_second())
}

/// Whether the document's root is S3's `Error`.
fn is_error(text: &str) -> bool {
    let mut rest = text.trim_start();
    if let Some(after) = rest.strip_prefix("<?xml") {
        rest = after.split_once("?>").map_or("", |it| it.1).trim_start();
    }
    rest.starts_with("<Error>") || rest.starts_with("<Error ")
}

/// The text of the first element of this name. Servers differ in namespaces and in what else they
/// say; in what is looked for here they agree.
pub(super) fn element(xml: &str, name: &str) -> Option<String> {
    let open = format!("<{name}>");
    let from = xml.find(&open)? + open.len();
    let rest = &xml[from..];
    let text = &rest[..rest.find('<')?];
    Some(
        text.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#34;", "\"")
            .replace("&apos;", "'")
            .replace("&#39;", "'")
            .replace("&amp;", "&"),
    )
}

/// The insides of all elements of this name.
pub(super) fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(open.as_str())
        .skip(1)
        .filter_map(|it| it.split(close.as_str()).next())
        .collect()
}

/// A stranger's words, fit for a line of ours.
fn plain(text: &str) -> String {
    text.chars()
        .map(|it| if it.is_control() { ' ' } else { it })
        .take(MESSAGE_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// "... expecting 'eu-west-1'" (AWS); "... expected: 20261121/garage/s3/aws4_request" (garage).
fn region_in(message: &str) -> Option<String> {
    let after = message.split_once("expect")?.1;
    if let Some((before, _)) = after.split_once("/s3/aws4_request") {
        let region = before.rsplit('/').next()?;
        return (!region.is_empty()).then(|| region.to_owned());
    }
    let quoted = after.split(['\'', '`', '"']).nth(1)?;
    (!quoted.is_empty()).then(|| quoted.to_owned())
}
