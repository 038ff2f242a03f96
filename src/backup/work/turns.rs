//! How many jobs of one operator run at a time, whatever the number of its clusters.

use std::sync::{Condvar, Mutex, PoisonError};

/// Jobs on a first destination. One with its runtime, TLS and zstd takes some 3.5 MiB, a thread that waits for its turn
/// a few pages. Clusters that share a schedule all begin in one second: 70 of them would take the 256 MiB that the
/// operator's Pod may use, and again after its restart.
pub(super) static LOCAL: Turns = Turns::of(8);

/// Copies. They wait for links, and one slow bucket should keep few others back: so more of them.
pub(super) static COPIES: Turns = Turns::of(16);

/// A limit on the jobs that run at a time.
pub(super) struct Turns {
    free: Mutex<usize>,
    freed: Condvar,
}

/// The right to run, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    const fn of(most: usize) -> Self {
        Turns {
            free: Mutex::new(most),
            freed: Condvar::new(),
        }
    }

    /// Waits until one ends, where too many run.
    pub(super) fn wait(&self) -> Turn<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.freed.wait_while(free, |it| *it == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let turns = self.0;
        *turns.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        turns.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn of_many_jobs_no_more_run_than_may_and_all_have_their_turn() {
        let turns = Turns::of(3);
        let (running, most, ended) = (
            AtomicUsize::new(0),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        );
        std::thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    let _turn = turns.wait();
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    running.fetch_sub(1, Ordering::SeqCst);
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), 3);
        assert_eq!(ended.into_inner(), 30);
    }
}
