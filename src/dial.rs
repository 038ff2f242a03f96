//! A connection to a server that is not ours: by name and port, through a proxy where the environment names
//! one, behind TLS where the address says so (rule E10).

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::untrusted;

/// What the kernel takes and the link has not: bytes there move unseen, and by default these are
/// megabytes, which take minutes on a slow link and look like a stall. So little keeps a link of
/// 4 KB/s alive, and still fills one of 1 MB/s that takes 100 ms for the way and back.
const SEND_BUFFER_BYTES: u32 = 128 * 1024;
const PROXY_ANSWER_MAX: usize = 8 * 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The file of CAs cannot be used.
    #[error("{} cannot be used: {why}", path.display())]
    CaFile {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// There is no CA to check a server with.
    #[error("this machine has no CA certificates to check servers with: install ca-certificates")]
    NoAuthorities,
    /// The proxy of the environment cannot be used.
    #[error("the proxy of HTTPS_PROXY cannot be used: write http://HOST:PORT")]
    Proxy,
    /// Nobody answers there.
    #[error("{server} cannot be reached: {why}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The system's reason.
        why: String,
    },
    /// No CA that is known here signed its certificate.
    #[error(
        "no CA that this machine trusts signed the certificate of {server}: add its CA to the machine's (update-ca-certificates)"
    )]
    Issuer {
        /// Host and port.
        server: String,
    },
    /// The server, or what sits before it, is not who it should be.
    #[error("no trusted connection to {server}: {why}")]
    Tls {
        /// Host and port.
        server: String,
        /// The reason and the next step.
        why: String,
    },
}

/// What a connection is made of.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Where to connect, and how.
#[derive(Clone)]
pub struct Target {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    proxy: Option<Url>,
}

impl Target {
    /// The server of an address, checked with the system's CAs and those of the file.
    ///
    /// # Errors
    /// The file cannot be used, or there is no CA at all.
    pub fn new(url: &Url, ca_file: Option<&Path>) -> Result<Target, DialError> {
        let host = host_of(url);
        let tls = match url.scheme() {
            "https" => Some(TlsConnector::from(Arc::new(trust(ca_file)?))),
            _ => None,
        };
        let proxy = match tls {
            Some(_) => proxy_for(&host)?,
            None => None,
        };
        Ok(Target {
            port: url.port_or_known_default().unwrap_or(443),
            host,
            tls,
            proxy,
        })
    }

    /// Host and port, for messages.
    pub fn server(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn unreachable(&self, why: &impl ToString) -> DialError {
        DialError::Unreachable {
            server: self.server(),
            why: why.to_string(),
        }
    }

    /// Connects within the deadline.
    ///
    /// # Errors
    /// Nobody answers, or who answers is not trusted.
    pub async fn connect(&self, deadline: Duration) -> Result<Box<dyn Stream>, DialError> {
        timeout(deadline, self.open()).await.unwrap_or_else(|_| {
            Err(self.unreachable(&format!("no connection within {} s", deadline.as_secs())))
        })
    }

    async fn open(&self) -> Result<Box<dyn Stream>, DialError> {
        let stream = match &self.proxy {
            None => dial(&self.host, self.port)
                .await
                .map_err(|it| self.unreachable(&it))?,
            Some(proxy) => self
                .through(proxy)
                .await
                .map_err(|it| self.unreachable(&format!("by the proxy of HTTPS_PROXY, {it}")))?,
        };
        let _ = stream.set_nodelay(true);
        let Some(connector) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone()).map_err(|it| self.unreachable(&it))?;
        let stream = connector.connect(name, stream).await;
        Ok(Box::new(stream.map_err(|it| self.untrusted(&it))?))
    }

    /// CONNECT, and nothing else: a proxy sees names and ports only.
    async fn through(&self, proxy: &Url) -> io::Result<TcpStream> {
        let mut stream = dial(
            &host_of(proxy),
            proxy.port_or_known_default().unwrap_or(3128),
        )
        .await?;
        let target = self.server();
        let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if !proxy.username().is_empty() {
            let user = decoded(proxy.username());
            let password = decoded(proxy.password().unwrap_or_default());
            let word = BASE64_STANDARD.encode(format!("{user}:{password}"));
            head.push_str("Proxy-Authorization: Basic ");
            head.push_str(&word);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        // Byte by byte: what follows the head belongs to TLS.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= PROXY_ANSWER_MAX {
                return Err(io::Error::other("which answers without an end"));
            }
            answer.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&answer);
        let status = line.split_whitespace().nth(1).unwrap_or_default();
        if status.starts_with('2') {
            return Ok(stream);
        }
        Err(io::Error::other(format!(
            "which refuses with status {status}"
        )))
    }

    fn untrusted(&self, error: &io::Error) -> DialError {
        let inner = error
            .get_ref()
            .and_then(|it| it.downcast_ref::<rustls::Error>());
        let server = self.server();
        let why = match inner {
            None => return self.unreachable(&format!("it ended the TLS handshake ({error})")),
            Some(rustls::Error::InvalidCertificate(reason)) => match reason {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    return DialError::Issuer { server };
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => {
                    format!(
                        "its certificate is not for the name {}: use a name that it contains",
                        self.host
                    )
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "its certificate has expired: renew it there, or correct the clock here"
                        .to_owned()
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    "its certificate is not valid yet: correct the clock here".to_owned()
                }
                other => format!("its certificate is refused ({other})"),
            },
            Some(rustls::Error::InvalidMessage(_)) => {
                "it does not speak TLS: write http:// if that is meant".to_owned()
            }
            Some(other) => other.to_string(),
        };
        DialError::Tls { server, why }
    }
}

async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("its name has no address");
    let addresses = tokio::net::lookup_host((host, port))
        .await
        .map_err(|it| io::Error::other(format!("its name is not known here ({it})")))?;
    for address in addresses {
        match open_socket(address)?.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::other(format!("{address}: {error}")),
        }
    }
    Err(last)
}

fn open_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    Ok(socket)
}

/// All CAs of a system have a quarter of this.
const CA_FILE_MAX: u64 = 1 << 20;

/// The system's CAs, and those of the file besides.
fn trust(ca_file: Option<&Path>) -> Result<ClientConfig, DialError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let bad = |why: String| DialError::CaFile {
            path: path.to_owned(),
            why,
        };
        let bytes = untrusted::read(path, CA_FILE_MAX).map_err(|it| bad(it.to_string()))?;
        let mut any = false;
        for certificate in CertificateDer::pem_slice_iter(&bytes) {
            let certificate = certificate.map_err(|it| bad(it.to_string()))?;
            roots.add(certificate).map_err(|it| bad(it.to_string()))?;
            any = true;
        }
        if !any {
            return Err(bad("it holds no certificate in PEM".to_owned()));
        }
    }
    if roots.is_empty() {
        return Err(DialError::NoAuthorities);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| DialError::NoAuthorities)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// Of an IPv6 address, what is between the brackets.
fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned()
}

fn proxy_for(host: &str) -> Result<Option<Url>, DialError> {
    let read = |names: [&str; 2]| {
        let found = names.into_iter().find_map(|it| std::env::var(it).ok());
        found.filter(|it| !it.is_empty())
    };
    let exempt = read(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    match read(["HTTPS_PROXY", "https_proxy"]) {
        Some(proxy) => proxy_from(&proxy, &exempt, host),
        None => Ok(None),
    }
}

/// The proxy for a host: none for loopback, for names in NO_PROXY (`*`, names, domains with or
/// without their dot), and where the proxy is called `none`.
fn proxy_from(proxy: &str, exempt: &str, host: &str) -> Result<Option<Url>, DialError> {
    let host = host.to_lowercase();
    let loopback = host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|it| it.is_loopback());
    let exempt = exempt.to_lowercase();
    let direct = exempt
        .split(',')
        .map(|it| it.trim().trim_start_matches('.'))
        .filter(|it| !it.is_empty())
        .any(|it| {
            it == "*" || it == host || host.strip_suffix(it).is_some_and(|it| it.ends_with('.'))
        });
    if proxy == "none" || loopback || direct {
        return Ok(None);
    }
    let text = if proxy.contains("://") {
        proxy.to_owned()
    } else {
        format!("http://{proxy}")
    };
    let url = Url::parse(&text).ok();
    // What is said to it would go bare to one of another kind.
    let url = url.filter(|it| it.scheme() == "http" && it.host_str().is_some());
    url.map(Some).ok_or(DialError::Proxy)
}

/// Without the percents of a URL.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let pair = after.get(..2).and_then(|it| std::str::from_utf8(it).ok());
        match pair.and_then(|it| u8::from_str_radix(it, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_taken_unless_the_host_is_exempt() {
        let with = |proxy: &str, exempt: &str, host: &str| {
            proxy_from(proxy, exempt, host)
                .unwrap()
                .map(|it| it.to_string())
        };
        let proxy = Some("http://proxy:3128/".to_owned());
        assert_eq!(with("proxy:3128", "", "s3.example.com"), proxy);
        assert_eq!(
            with("http://proxy:3128", "other.com", "s3.example.com"),
            proxy
        );
        assert_eq!(with("proxy:3128", "ample.com", "s3.example.com"), proxy);
        for exempt in ["*", "example.com", ".example.com", "a, s3.example.com"] {
            assert_eq!(
                with("proxy:3128", exempt, "s3.example.com"),
                None,
                "{exempt}"
            );
        }
        assert_eq!(with("none", "", "s3.example.com"), None);
        assert_eq!(with("proxy:3128", "S3.Example.com", "s3.example.com"), None);
        let bracketed = with("http://[::1]:3128", "", "s3.example.com").unwrap();
        assert_eq!(host_of(&Url::parse(&bracketed).unwrap()), "::1");
        for unfit in [
            "http://proxy:312800",
            "https://proxy",
            "socks5://proxy",
            "pro xy",
        ] {
            assert!(proxy_from(unfit, "", "s3.example.com").is_err(), "{unfit}");
        }
        assert_eq!(with("proxy:3128", "", "127.0.0.1"), None);
        assert_eq!(decoded("a%40b%3Ac%"), "a@b:c%");
    }
}
