//! Why something with a bucket failed: the cause in plain words, and the next step (rule E4).
//!
//! No message holds a key, a signature or an address with either.

use std::io;
use std::path::PathBuf;

use crate::dial::DialError;
use crate::error::shell_word;

/// A refusal without a reason.
pub(super) const NO_WORDS: &str = "no reason given";

/// Why something with a bucket failed.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// The endpoint of the document is no address.
    #[error("the S3 endpoint '{endpoint}' cannot be used: {why}")]
    Endpoint {
        /// As written.
        endpoint: String,
        /// What is wrong, and how it is written.
        why: &'static str,
    },
    /// The file of CAs cannot be used.
    #[error("caFile {} cannot be used: {why}", path.display())]
    CaFile {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// There is no CA to check a server with.
    #[error(
        "this machine has no CA certificates to check the S3 server with: install ca-certificates, or name the server's CA in caFile"
    )]
    NoAuthorities,
    /// The proxy of the environment cannot be used.
    #[error(
        "the proxy of HTTPS_PROXY cannot be used for the S3 server: write http://HOST:PORT, or none"
    )]
    Proxy,
    /// There are no credentials anywhere.
    #[error(
        "there are no S3 keys: write AWS_ACCESS_KEY_ID=... and AWS_SECRET_ACCESS_KEY=... to /etc/credstore/etcd-operator.s3 (root's, mode 600) and restart etcd-operator, or set credentials (Kubernetes: credentialsSecret)"
    )]
    NoCredentials,
    /// A command by hand does not get what systemd gives to the agent's unit.
    #[error("only the unit and root may read the S3 keys: run the command with sudo")]
    CredentialsOfTheUnit,
    /// The file of credentials cannot be read.
    #[error("failed to read the S3 credentials {}: {source}", path.display())]
    CredentialsUnreadable {
        /// Which one.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Others can read the file of credentials.
    #[error("the S3 credentials {} can be read by others (mode {mode:o}): chmod 600 {}, and change the keys if others have been on this machine", path.display(), shell_word(&path.to_string_lossy()))]
    CredentialsOpen {
        /// Which one.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file of credentials does not hold both keys.
    #[error("the S3 credentials {} lack aws_access_key_id or aws_secret_access_key", path.display())]
    CredentialsIncomplete {
        /// Which one.
        path: PathBuf,
    },
    /// A key that could leave the prefix, or that no store takes.
    #[error("'{0}' cannot name an object: no part may be empty, '.' or '..'")]
    Key(String),
    /// A file of ours could not be read or written on the way.
    #[error("failed to read or record the copy: {0}")]
    Local(#[source] io::Error),

    /// Nobody answers there.
    #[error(
        "the S3 server {server} cannot be reached: {why}; copies wait, and the operator retries them"
    )]
    Unreachable {
        /// Host and port.
        server: String,
        /// The system's reason.
        why: String,
    },
    /// The server, or what sits before it, is not who it should be.
    #[error("no trusted connection to the S3 server {server}: {why}")]
    Tls {
        /// Host and port.
        server: String,
        /// The reason and the next step.
        why: String,
    },
    /// The connection broke in the middle.
    #[error("the connection to the S3 server {server} broke: {why}; the operator retries")]
    Broken {
        /// Host and port.
        server: String,
        /// The library's reason.
        why: String,
    },
    /// No byte went either way for long.
    #[error("the S3 server {server} sent nothing for {seconds} s; the operator retries")]
    Stalled {
        /// Host and port.
        server: String,
        /// How long.
        seconds: u64,
    },

    /// The access key is unknown, or the secret is not its own.
    #[error(
        "the S3 server refuses the keys ({code}): check the access key and its secret, and that no proxy changes requests on the way"
    )]
    WrongKey {
        /// The server's word.
        code: String,
    },
    /// The key may not do this.
    #[error(
        "the S3 server denies access ({code}: {message}): the key needs to read, write, list and delete under this prefix of the bucket"
    )]
    Denied {
        /// The server's word.
        code: String,
        /// The server's explanation.
        message: String,
    },
    /// Signed for another region.
    #[error("the bucket is not in region '{ours}': set region to {}", theirs.as_deref().unwrap_or("the one where it was made"))]
    WrongRegion {
        /// The region in the document.
        ours: String,
        /// The region that the server names.
        theirs: Option<String>,
    },
    /// There is no such bucket; none is ever created.
    #[error(
        "there is no bucket '{0}': create it, or correct its name; the operator creates no bucket"
    )]
    NoBucket(String),
    /// The clocks are too far apart for signatures.
    #[error(
        "this machine's clock and the S3 server's are {seconds} s apart, and signatures with the server's time are refused too: set the clock"
    )]
    ClockSkew {
        /// The server's time less ours.
        seconds: i64,
    },
    /// What answers is no S3 server.
    #[error(
        "{server} does not answer like an S3 server ({what}): check the endpoint; a network's login page can cause this too"
    )]
    NotS3 {
        /// Host and port.
        server: String,
        /// What came instead.
        what: String,
    },
    /// The store has no space.
    #[error("the S3 server has no space ({code}): free space there; the operator retries")]
    Full {
        /// The server's word.
        code: String,
    },
    /// The server failed, or wants to be asked less.
    #[error("the S3 server failed ({status} {code}: {message}); the operator retries")]
    Server {
        /// HTTP status.
        status: u16,
        /// The server's word.
        code: String,
        /// The server's explanation.
        message: String,
    },
    /// The server refused for another reason.
    #[error("the S3 server refused ({status} {code}: {message})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The server's word.
        code: String,
        /// The server's explanation.
        message: String,
    },

    /// The object is not there.
    #[error("there is no object '{0}' in the bucket")]
    Missing(String),
    /// What is there is not what was sent.
    #[error(
        "the object '{key}' differs from the data that was sent: {what}; the operator sends it again"
    )]
    Differs {
        /// Its name.
        key: String,
        /// What differs.
        what: String,
    },
    /// An object that should be small is not.
    #[error("the object '{key}' is larger than {most} bytes, so the operator did not write it")]
    TooLarge {
        /// Its name.
        key: String,
        /// What was allowed.
        most: u64,
    },
}

impl From<DialError> for S3Error {
    fn from(error: DialError) -> Self {
        match error {
            DialError::CaFile { path, why } => S3Error::CaFile { path, why },
            DialError::NoAuthorities => S3Error::NoAuthorities,
            DialError::Proxy => S3Error::Proxy,
            DialError::Unreachable { server, why } => S3Error::Unreachable { server, why },
            DialError::Issuer { server } => S3Error::Tls {
                server,
                why: "no CA that this machine trusts signed its certificate: name the server's CA in caFile".to_owned(),
            },
            DialError::Tls { server, why } => S3Error::Tls { server, why },
        }
    }
}

impl S3Error {
    /// Whether the same may work later with nothing changed here.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            S3Error::Unreachable { .. }
                | S3Error::Broken { .. }
                | S3Error::Stalled { .. }
                | S3Error::NotS3 { .. }
                | S3Error::Full { .. }
                | S3Error::Server { .. }
                | S3Error::Differs { .. }
        )
    }

    /// Whether it goes when the link or the server comes back. A page in the server's place may be a
    /// network's login page, or a wrong endpoint: that is told at once.
    pub fn is_of_the_link(&self) -> bool {
        self.passes()
    }

    /// Whether trying again at once, a few times, can help.
    pub(super) fn passes(&self) -> bool {
        matches!(
            self,
            S3Error::Unreachable { .. }
                | S3Error::Broken { .. }
                | S3Error::Stalled { .. }
                | S3Error::Server { .. }
        )
    }

    /// The server does not know how to do this (501, or 405 of an older one).
    pub(super) fn is_unsupported(&self) -> bool {
        match self {
            S3Error::Server { status, code, .. } | S3Error::Refused { status, code, .. } => {
                matches!(status, 501 | 405)
                    || matches!(code.as_str(), "NotImplemented" | "MethodNotAllowed")
            }
            _ => false,
        }
    }

    /// The object, or the upload, is not there.
    pub(super) fn is_missing(&self) -> bool {
        match self {
            S3Error::Missing(_) => true,
            S3Error::Refused { status, .. } => *status == 404,
            _ => false,
        }
    }

    /// A refusal in an answer that has no room for words.
    pub(super) fn is_wordless(&self) -> bool {
        match self {
            S3Error::Refused { status, code, .. } => code.is_empty() && *status != 416,
            S3Error::Denied { code, .. } => code == "403",
            _ => false,
        }
    }

    /// The server's word, where it refused with one.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            S3Error::Server { code, .. } | S3Error::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}
