//! One connection to the server: by name and port, through a proxy where the environment names one,
//! behind TLS where the endpoint says so, and watched for bytes (rules E3, E10).

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use url::Url;

use super::S3Error;
use super::body::Outgoing;
use super::pace::CHUNK;
use crate::untrusted;

/// What the kernel takes and the link has not: bytes there move unseen, and by default these are
/// megabytes, which take minutes on a slow link and look like a stall. So little keeps a link of
/// 4 KB/s alive, and still fills one of 1 MB/s that takes 100 ms for the way and back.
const SEND_BUFFER_BYTES: u32 = 128 * 1024;
const PROXY_ANSWER_MAX: usize = 8 * 1024;

/// Where to connect, and how.
#[derive(Clone)]
pub(super) struct Target {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    proxy: Option<Url>,
}

impl Target {
    pub(super) fn new(url: &Url, ca_file: Option<&Path>) -> Result<Target, S3Error> {
        let host = url.host_str().unwrap_or_default();
        // Of an IPv6 address, what is between the brackets.
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let tls = match url.scheme() {
            "https" => Some(TlsConnector::from(Arc::new(trust(ca_file)?))),
            _ => None,
        };
        let proxy = tls.is_some().then(|| proxy_for(&host)).flatten();
        Ok(Target {
            port: url.port_or_known_default().unwrap_or(443),
            host,
            tls,
            proxy,
        })
    }

    /// For messages.
    pub(super) fn server(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn unreachable(&self, why: &impl ToString) -> S3Error {
        S3Error::Unreachable {
            server: self.server(),
            why: why.to_string(),
        }
    }

    /// Connects within the deadline.
    pub(super) async fn connect(&self, deadline: Duration) -> Result<Connection, S3Error> {
        timeout(deadline, self.open()).await.unwrap_or_else(|_| {
            Err(self.unreachable(&format!("no connection within {} s", deadline.as_secs())))
        })
    }

    async fn open(&self) -> Result<Connection, S3Error> {
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
        let activity = Arc::new(Activity::new());
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some(connector) => {
                let name =
                    ServerName::try_from(self.host.clone()).map_err(|it| self.unreachable(&it))?;
                let stream = connector
                    .connect(name, stream)
                    .await
                    .map_err(|it| self.untrusted(&it))?;
                Box::new(stream)
            }
        };
        let watched = Watched {
            stream,
            activity: Arc::clone(&activity),
            refused: None,
        };
        let (sender, connection) = Builder::new()
            .max_buf_size(CHUNK)
            .handshake(TokioIo::new(watched))
            .await
            .map_err(|it| self.unreachable(&it))?;
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Connection {
            sender,
            activity,
            driver: Some(driver),
        })
    }

    /// CONNECT, and nothing else: a proxy sees names and ports only.
    async fn through(&self, proxy: &Url) -> io::Result<TcpStream> {
        let host = proxy.host_str().unwrap_or_default();
        let mut stream = dial(host, proxy.port_or_known_default().unwrap_or(3128)).await?;
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        let target = format!("{host}:{}", self.port);
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

    fn untrusted(&self, error: &io::Error) -> S3Error {
        let inner = error
            .get_ref()
            .and_then(|it| it.downcast_ref::<rustls::Error>());
        let why = match inner {
            None => return self.unreachable(&format!("it ended the TLS handshake ({error})")),
            Some(rustls::Error::InvalidCertificate(reason)) => match reason {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    "no CA that this machine trusts signed its certificate: name the server's CA in caFile".to_owned()
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    format!("its certificate is not for the name {}: use a name that it contains", self.host)
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "its certificate has expired: renew it there, or correct the clock here".to_owned()
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
        S3Error::Tls {
            server: self.server(),
            why,
        }
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
fn trust(ca_file: Option<&Path>) -> Result<ClientConfig, S3Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let bad = |why: String| S3Error::CaFile {
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
        return Err(S3Error::NoAuthorities);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| S3Error::NoAuthorities)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

fn proxy_for(host: &str) -> Option<Url> {
    let read = |names: [&str; 2]| {
        let found = names.into_iter().find_map(|it| std::env::var(it).ok());
        found.filter(|it| !it.is_empty())
    };
    let exempt = read(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    proxy_from(&read(["HTTPS_PROXY", "https_proxy"])?, &exempt, host)
}

/// The proxy for a host: none for loopback, for names in NO_PROXY (`*`, names, domains with or
/// without their dot), and where the proxy is called `none`.
fn proxy_from(proxy: &str, exempt: &str, host: &str) -> Option<Url> {
    let loopback = host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|it| it.is_loopback());
    let direct = exempt
        .split(',')
        .map(|it| it.trim().trim_start_matches('.'))
        .filter(|it| !it.is_empty())
        .any(|it| {
            it == "*" || it == host || host.strip_suffix(it).is_some_and(|it| it.ends_with('.'))
        });
    if proxy == "none" || loopback || direct {
        return None;
    }
    let text = if proxy.contains("://") {
        proxy.to_owned()
    } else {
        format!("http://{proxy}")
    };
    Url::parse(&text).ok().filter(|it| it.host_str().is_some())
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

/// A connection that can be used again.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Outgoing>,
    pub(super) activity: Arc<Activity>,
    driver: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.abort();
        }
    }
}

/// When the last byte went, either way.
#[derive(Debug)]
pub(super) struct Activity {
    base: Instant,
    last_milliseconds: AtomicU64,
}

impl Activity {
    fn new() -> Activity {
        Activity {
            base: Instant::now(),
            last_milliseconds: AtomicU64::new(0),
        }
    }

    pub(super) fn touch(&self) {
        let now = u64::try_from(self.base.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_milliseconds.store(now, Ordering::Relaxed);
    }

    /// Ends when no byte has gone for this long.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last_milliseconds.load(Ordering::Relaxed));
            let idle = self.base.elapsed().saturating_sub(last);
            let Some(left) = limit.checked_sub(idle).filter(|it| !it.is_zero()) else {
                return;
            };
            sleep(left).await;
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

struct Watched {
    stream: Box<dyn Stream>,
    activity: Arc<Activity>,
    /// What writing met. A server may answer, and close, while the body is still on its way: its
    /// answer waits to be read, so that writing waits, and reading tells.
    refused: Option<io::Error>,
}

impl Watched {
    fn written<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match polled {
            Poll::Ready(Err(error)) => {
                self.refused = Some(error);
                Poll::Pending
            }
            other => other,
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.touch();
        } else if polled.is_ready()
            && let Some(error) = self.refused.take()
        {
            return Poll::Ready(Err(error));
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.refused.is_some() {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.activity.touch();
        }
        self.written(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refused.is_some() {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_taken_unless_the_host_is_exempt() {
        let with = |proxy: &str, exempt: &str, host: &str| {
            proxy_from(proxy, exempt, host).map(|it| it.to_string())
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
        assert_eq!(with("proxy:3128", "", "127.0.0.1"), None);
        assert_eq!(decoded("a%40b%3Ac%"), "a@b:c%");
    }
}
