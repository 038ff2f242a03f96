//! How this operator serves HTTP: to anybody who can connect, within bounds. And how it asks one of its own processes, or
//! a server elsewhere.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::http::response::Parts;
use hyper::server::conn::http1;
use hyper::{Method, Request, Response, StatusCode, client};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::chain;
use crate::tls::ClientFiles;

/// So many connections are open at once: a few kilobytes each, and few of the descriptors of a process.
pub const CONNECTIONS_MAX: usize = 64;
/// The head of a request. Those of kubelet, Prometheus and curl have a tenth.
const HEAD_MAX: usize = 16 * 1024;
/// A request's head arrives within so long; so long a connection may lie idle, too.
pub const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Where no connection can be accepted, no descriptor is free: it is tried again after so long.
const PAUSE: Duration = Duration::from_millis(500);

/// What serves one connection.
pub fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_MAX);
    builder
}

/// One question over a connection of its own: the status and the whole answer, of at most so many bytes.
///
/// # Errors
/// The connection ends, or the answer is larger.
pub async fn ask<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    most: usize,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let answer = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), most).collect().await?;
        Ok((status, body.to_bytes()))
    }
    .await;
    driver.abort();
    answer
}

/// A connection to one of our own: its address, a name that its certificate carries, and what is shown to it.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// Of its Pod, or its Service.
    pub address: SocketAddr,
    /// A name of its Service.
    pub server_name: &'a str,
    /// The operator's, or the member's own.
    pub files: &'a ClientFiles,
}

impl Way<'_> {
    /// Connects.
    ///
    /// # Errors
    /// No connection, or no certificate of this cluster.
    pub async fn connect(&self) -> Result<TlsStream<TcpStream>, String> {
        let config = self.files.to_dial().map_err(|it| chain(&it))?;
        let name = ServerName::try_from(self.server_name.to_owned()).map_err(|it| chain(&it))?;
        let stream = TcpStream::connect(self.address).await;
        let stream = stream.map_err(|it| chain(&it))?;
        let connector = TlsConnector::from(Arc::new(config));
        let connected = connector.connect(name, stream).await;
        connected.map_err(|it| chain(&it))
    }

    /// What is asked.
    ///
    /// # Errors
    /// The path is none.
    pub fn request(&self, method: Method, path: &str) -> Result<Request<Empty<Bytes>>, String> {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.server_name)
            .header("connection", "close")
            .body(Empty::new())
            .map_err(|it| chain(&it))
    }

    /// One question, over a connection of its own: the status, and an answer of at most so many bytes.
    ///
    /// # Errors
    /// No connection, or an answer that is larger.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        most: usize,
    ) -> Result<(StatusCode, Bytes), String> {
        let request = self.request(method, path)?;
        let answer = ask(self.connect().await?, request, most).await;
        answer.map_err(|it| chain(&*it))
    }
}

/// Why an answer ended early.
pub type AnswerError = Box<dyn std::error::Error + Send + Sync>;

/// An answer whose body is taken piece by piece, as it comes, over a connection of its own.
pub struct Answer {
    /// Its status and headers.
    pub head: Parts,
    body: Incoming,
    stall: Duration,
    driver: AbortHandle,
}

impl Answer {
    /// Asks. `stall`: the longest time until it begins, and between two of its pieces.
    ///
    /// # Errors
    /// The connection ends or stands still.
    pub async fn of<S>(
        stream: S,
        request: Request<Empty<Bytes>>,
        stall: Duration,
    ) -> Result<Answer, AnswerError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(connection).abort_handle();
        let answer: Result<Response<Incoming>, AnswerError> = async {
            let answer = timeout(stall, sender.send_request(request)).await;
            Ok(answer.map_err(|_| silent(stall))??)
        }
        .await;
        let (head, body) = answer.inspect_err(|_| driver.abort())?.into_parts();
        Ok(Answer {
            head,
            body,
            stall,
            driver,
        })
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// The connection ends before, or stands still.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, AnswerError> {
        loop {
            let frame = timeout(self.stall, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| silent(self.stall))? else {
                return Ok(None);
            };
            if let Ok(bytes) = frame?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }
}

fn silent(stall: Duration) -> AnswerError {
    format!("nothing came for {} s", stall.as_secs()).into()
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The next connection, as `accept` gives it. One that fails ends nothing.
pub async fn accept<C, F>(mut accept: impl FnMut() -> F) -> C
where
    F: Future<Output = io::Result<C>>,
{
    loop {
        match accept().await {
            Ok(connection) => return connection,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Connections that are open, the oldest first.
#[derive(Default)]
pub struct Connections(VecDeque<AbortHandle>);

impl Connections {
    /// Another one. If there are too many, the oldest ends: who asks is answered within milliseconds, so it is one of
    /// those that only hold on.
    pub fn admit(&mut self, served: AbortHandle) {
        self.0.retain(|it| !it.is_finished());
        if self.0.len() >= CONNECTIONS_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(served);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_process_without_free_descriptors_accepts_again_once_there_are_some() {
        let mut refused = 0;
        let connection = accept(|| {
            refused += 1;
            let free = refused > 2;
            async move {
                let full = rustix::io::Errno::MFILE;
                if free {
                    Ok("connection")
                } else {
                    Err(full.into())
                }
            }
        });
        assert_eq!(connection.await, "connection");
        assert_eq!(refused, 3);
    }

    #[tokio::test]
    async fn who_holds_connections_open_keeps_nobody_from_an_answer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut open = Connections::default();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = service_fn(|_: Request<Incoming>| async {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("ok"))))
                });
                let served = builder().serve_connection(TokioIo::new(stream), service);
                open.admit(tokio::spawn(served).abort_handle());
            }
        });
        let mut half = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream
                .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n")
                .await
                .unwrap();
            half.push(stream);
        }
        let mut asked = TcpStream::connect(address).await.unwrap();
        asked
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        let read = asked.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(2), read)
            .await
            .unwrap()
            .unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // The first ones were ended to make room.
        let mut rest = Vec::new();
        let ended = half[0].read_to_end(&mut rest);
        let ended = tokio::time::timeout(Duration::from_secs(2), ended).await;
        assert!(ended.is_ok());
        // A head that is larger than any of ours is refused, whole as it is.
        let mut large = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nhost: {}\r\n\r\n",
            "a".repeat(2 * HEAD_MAX)
        );
        let _ = large.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = large.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
}
