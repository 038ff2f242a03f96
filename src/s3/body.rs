//! What goes out in a request: nothing, a few bytes, or a stretch of something longer.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use md5::{Digest as _, Md5};
use tokio::sync::mpsc;

use super::S3Error;
use super::pace::CHUNK;
use crate::state::hex;

/// Something long that can be read at any place, and twice: a snapshot's file.
pub trait Source: Send {
    /// Reads from this place; 0 at the end only.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Its length in bytes, which stays.
    fn len(&self) -> u64;
    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The payload of one request, read anew for each try.
pub(super) enum Payload<'a> {
    None,
    Whole(Bytes),
    Stretch {
        source: &'a mut dyn Source,
        offset: u64,
        length: u64,
    },
}

/// Hashes of a payload: for the signature, and for stores under object lock (rule E8).
pub(super) struct Hashes {
    pub(super) sha256: String,
    pub(super) md5: String,
}

impl Payload<'_> {
    pub(super) fn len(&self) -> u64 {
        match self {
            Payload::None => 0,
            Payload::Whole(bytes) => bytes.len() as u64,
            Payload::Stretch { length, .. } => *length,
        }
    }

    /// Reads it once, in chunks.
    pub(super) fn hashes(&mut self) -> Result<Hashes, S3Error> {
        let mut sha = ring::digest::Context::new(&ring::digest::SHA256);
        let mut md5 = Md5::new();
        let mut at = 0;
        while at < self.len() {
            let chunk = self.read(at, CHUNK)?;
            at += chunk.len() as u64;
            sha.update(&chunk);
            md5.update(&chunk);
        }
        Ok(Hashes {
            sha256: hex(sha.finish().as_ref()),
            md5: BASE64_STANDARD.encode(md5.finalize()),
        })
    }

    /// A chunk of it, at this place.
    pub(super) fn read(&mut self, at: u64, most: usize) -> Result<Bytes, S3Error> {
        let want = usize::try_from(self.len() - at).unwrap_or(most).min(most);
        match self {
            Payload::None => Ok(Bytes::new()),
            Payload::Whole(bytes) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                Ok(bytes.slice(at..at + want))
            }
            Payload::Stretch { source, offset, .. } => {
                let mut chunk = vec![0; want];
                let read = source
                    .read_at(*offset + at, &mut chunk)
                    .map_err(S3Error::Local)?;
                if read == 0 {
                    return Err(S3Error::Local(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "it became shorter while it was copied",
                    )));
                }
                chunk.truncate(read);
                Ok(Bytes::from(chunk))
            }
        }
    }
}

/// A body as hyper wants it: chunks that are fed while it is sent.
pub(super) struct Outgoing {
    chunks: Option<mpsc::Receiver<Bytes>>,
    left: u64,
}

impl Outgoing {
    /// The body, and where its chunks go in: one waits at most.
    pub(super) fn new(length: u64) -> (mpsc::Sender<Bytes>, Outgoing) {
        let (feed, chunks) = mpsc::channel(1);
        let body = Outgoing {
            chunks: (length > 0).then_some(chunks),
            left: length,
        };
        (feed, body)
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(chunks) = &mut self.chunks else {
            return Poll::Ready(None);
        };
        match chunks.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(chunk)) => {
                self.left = self.left.saturating_sub(chunk.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
