//! One connection to the bucket's server, watched for bytes (rule E3).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};

use super::S3Error;
use super::body::Outgoing;
use super::pace::CHUNK;
use crate::dial::{Stream, Target};

/// A connection that can be used again.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Outgoing>,
    pub(super) activity: Arc<Activity>,
    driver: Option<tokio::task::JoinHandle<()>>,
}

impl Connection {
    /// To the target, within the deadline.
    pub(super) async fn open(target: &Target, deadline: Duration) -> Result<Self, S3Error> {
        let activity = Arc::new(Activity::new());
        let watched = Watched {
            stream: target.connect(deadline).await?,
            activity: Arc::clone(&activity),
            refused: None,
        };
        let (sender, connection) = Builder::new()
            .max_buf_size(CHUNK)
            .handshake(TokioIo::new(watched))
            .await
            .map_err(|it| S3Error::Unreachable {
                server: target.server(),
                why: it.to_string(),
            })?;
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Connection {
            sender,
            activity,
            driver: Some(driver),
        })
    }
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
