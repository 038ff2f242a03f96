//! A bandwidth that is not exceeded: a bucket of tokens that holds a quarter of a second (rule B16).

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Bytes moved at once.
pub(super) const CHUNK: usize = 64 * 1024;
/// And at least: a rate below it would look like a stall.
const CHUNK_MIN: u64 = 1024;
const PARTS_OF_A_SECOND: u64 = 4;

#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: Option<u64>,
    /// When everything that was moved so far is paid for.
    paid: Instant,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Pace {
        Pace {
            bytes_per_second: bytes_per_second.map(|it| it.max(CHUNK_MIN)),
            paid: Instant::now(),
        }
    }

    /// How much to move at once, so that no wait is long.
    pub(super) fn chunk(&self) -> usize {
        let most = self
            .bytes_per_second
            .map_or(u64::MAX, |it| (it / PARTS_OF_A_SECOND).max(CHUNK_MIN));
        usize::try_from(most).unwrap_or(CHUNK).min(CHUNK)
    }

    /// Waits until this many bytes may be moved.
    pub(super) async fn wait(&mut self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else {
            return;
        };
        let now = Instant::now();
        let burst = Duration::from_secs(1) / u32::try_from(PARTS_OF_A_SECOND).unwrap_or(1);
        // What was not used is not saved up, but for the burst.
        self.paid = self.paid.max(now.checked_sub(burst).unwrap_or(now));
        self.paid += Duration::from_secs_f64(bytes as f64 / rate as f64);
        if self.paid > now {
            sleep(self.paid - now).await;
        }
    }
}
