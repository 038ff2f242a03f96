//! etcd's metrics, read line by line: a page of them is never held in memory.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cluster::{Answer, MemberId};

const DEADLINE: Duration = Duration::from_secs(3);

/// The numbers that tell whether writes get through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    /// Proposals that wait.
    pub pending: f64,
    /// Proposals applied since the start.
    pub applied: f64,
    /// What it tells of itself before it serves clients, once it follows a leader.
    pub following: Option<Answer>,
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
    let mut left = PAGE_MAX;
    while let Some(frame) = response.frame().await {
        if let Some(data) = frame.ok()?.data_ref() {
            left = left.checked_sub(data.len())?;
            lines.feed(data);
        }
    }
    driver.abort();
    Some(Numbers {
        pending: lines.pending?,
        applied: lines.applied?,
        following: lines.following(),
    })
}

/// etcd's page has some 200 KiB.
const PAGE_MAX: usize = 4 << 20;
/// No line that counts has a hundred bytes.
const LINE_MAX: usize = 4096;

#[derive(Default)]
struct Lines {
    /// The beginning of a line whose end has not come; of a longer one no more than [`LINE_MAX`].
    rest: Vec<u8>,
    pending: Option<f64>,
    applied: Option<f64>,
    committed: Option<f64>,
    has_leader: Option<f64>,
    member: Option<MemberId>,
}

impl Lines {
    fn following(&self) -> Option<Answer> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "etcd writes an index as a float; a cast saturates"
        )]
        let raft_index = self.committed? as u64;
        let member = self.member.filter(|_| self.has_leader == Some(1.0))?;
        Some(Answer { member, raft_index })
    }

    fn feed(&mut self, data: &[u8]) {
        for piece in data.split_inclusive(|it| *it == b'\n') {
            if self.rest.is_empty() && piece.ends_with(b"\n") {
                self.line(piece);
            } else {
                let room = LINE_MAX.saturating_sub(self.rest.len());
                self.rest.extend_from_slice(&piece[..piece.len().min(room)]);
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
        self.committed = value("etcd_server_proposals_committed_total").or(self.committed);
        self.has_leader = value("etcd_server_has_leader").or(self.has_leader);
        self.member = member(line).or(self.member);
    }
}

/// `etcd_server_id{server_id="8e9e05c52164694d"} 1`
fn member(line: &[u8]) -> Option<MemberId> {
    let rest = line.strip_prefix(br#"etcd_server_id{server_id=""#)?;
    let id = std::str::from_utf8(rest).ok()?.split('"').next()?;
    u64::from_str_radix(id, 16).ok().map(MemberId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_however_the_page_is_cut() {
        let page = b"# HELP x\netcd_server_proposals_pending 2\nother{a=\"b\"} 1\netcd_server_proposals_applied_total 1.5e+06\n\
            etcd_server_proposals_committed_total 7\netcd_server_has_leader 1\netcd_server_id{server_id=\"1f\"} 1\n";
        for cut in 0..page.len() {
            let mut lines = Lines::default();
            lines.feed(&page[..cut]);
            lines.feed(&page[cut..]);
            assert_eq!(
                (lines.pending, lines.applied),
                (Some(2.0), Some(1.5e6)),
                "cut at {cut}"
            );
            let following = Answer {
                member: MemberId(0x1f),
                raft_index: 7,
            };
            assert_eq!(lines.following(), Some(following), "cut at {cut}");
        }
    }

    #[test]
    fn a_line_without_an_end_costs_no_memory() {
        let mut lines = Lines::default();
        for _ in 0..1000 {
            lines.feed(&[b'a'; 10_000]);
        }
        assert!(lines.rest.len() <= LINE_MAX && lines.rest.capacity() <= 2 * LINE_MAX);
        lines.feed(b"\netcd_server_proposals_pending 2\n");
        assert_eq!(lines.pending, Some(2.0));
    }
}
