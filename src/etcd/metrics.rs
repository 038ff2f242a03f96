//! etcd's metrics, read line by line: a page of them is never held in memory.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(3);

/// The numbers that tell whether writes get through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    /// Proposals that wait.
    pub pending: f64,
    /// Proposals applied since the start.
    pub applied: f64,
}

/// Reads them; `None` when etcd does not tell in time.
pub async fn read(address: SocketAddr) -> Option<Numbers> {
    timeout(DEADLINE, fetch(address)).await.ok()?
}

async fn fetch(address: SocketAddr) -> Option<Numbers> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    let driver = tokio::spawn(connection);
    let request = Request::get("/metrics")
        .header("host", address.to_string())
        .body(Empty::<Bytes>::new())
        .ok()?;
    let mut response = sender.send_request(request).await.ok()?;
    let mut lines = Lines::default();
    while let Some(frame) = response.frame().await {
        if let Some(data) = frame.ok()?.data_ref() {
            lines.feed(data);
        }
    }
    driver.abort();
    Some(Numbers {
        pending: lines.pending?,
        applied: lines.applied?,
    })
}

#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
    pending: Option<f64>,
    applied: Option<f64>,
}

impl Lines {
    fn feed(&mut self, data: &[u8]) {
        for piece in data.split_inclusive(|it| *it == b'\n') {
            if self.rest.is_empty() && piece.ends_with(b"\n") {
                self.line(piece);
            } else {
                self.rest.extend_from_slice(piece);
                if piece.ends_with(b"\n") {
                    let line = std::mem::take(&mut self.rest);
                    self.line(&line);
                }
            }
        }
    }

    fn line(&mut self, line: &[u8]) {
        let value = |name: &str| {
            let rest = line.strip_prefix(name.as_bytes())?.strip_prefix(b" ")?;
            std::str::from_utf8(rest).ok()?.trim().parse().ok()
        };
        self.pending = value("etcd_server_proposals_pending").or(self.pending);
        self.applied = value("etcd_server_proposals_applied_total").or(self.applied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_however_the_page_is_cut() {
        let page = b"# HELP x\netcd_server_proposals_pending 2\nother{a=\"b\"} 1\netcd_server_proposals_applied_total 1.5e+06\n";
        for cut in 0..page.len() {
            let mut lines = Lines::default();
            lines.feed(&page[..cut]);
            lines.feed(&page[cut..]);
            assert_eq!(
                (lines.pending, lines.applied),
                (Some(2.0), Some(1.5e6)),
                "cut at {cut}"
            );
        }
    }
}
