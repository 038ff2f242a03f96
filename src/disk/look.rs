//! A look at a place that may never answer: a share whose server is gone, a disk that hangs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

use crate::clock;

/// So long somebody waits for the first look of all: a disk may have to spin up.
const FIRST: Duration = Duration::from_secs(5);
/// So long somebody waits for each later one, when it begins.
const LATER: Duration = Duration::from_secs(1);

/// Looks at a place `K`, each in a thread of its own, and remembers what was seen last.
///
/// Nobody can end a thread that waits for a file system. So no further look begins before this one comes back,
/// unless it is at another place.
pub struct Look<K, T> {
    place: Option<K>,
    last: Option<T>,
    under_way: Option<UnderWay<T>>,
    outdated: bool,
}

struct UnderWay<T> {
    answer: Receiver<T>,
    /// When it began, since boot.
    begun: Duration,
    /// Something has changed there since.
    outdated: bool,
}

/// What is known of a place.
pub struct Seen<T> {
    /// What was seen at the last look that came back.
    pub what: Option<T>,
    /// For how long the present look has not come back.
    pub silent: Option<Duration>,
    /// Something has changed there since that was seen.
    pub outdated: bool,
}

impl<K, T> Default for Look<K, T> {
    fn default() -> Self {
        Look {
            place: None,
            last: None,
            under_way: None,
            outdated: false,
        }
    }
}

impl<K: PartialEq, T: Clone + Send + 'static> Look<K, T> {
    /// Something has changed there: what was seen, or is being seen, no longer holds.
    pub fn changed(&mut self) {
        self.outdated = true;
        if let Some(it) = &mut self.under_way {
            it.outdated = true;
        }
    }

    /// What is seen at this place. `look` gets what was seen before.
    pub fn at(&mut self, place: K, look: impl FnOnce(Option<T>) -> T + Send + 'static) -> Seen<T> {
        if self.place.as_ref() != Some(&place) {
            *self = Look {
                place: Some(place),
                ..Look::default()
            };
        }
        // One that began before the change tells nothing; the next one begins once it is back.
        self.under_way
            .take_if(|it| it.outdated && !matches!(it.answer.try_recv(), Err(TryRecvError::Empty)));
        let begins = self.under_way.is_none();
        let under_way = self.under_way.take().unwrap_or_else(|| {
            let (tell, answer) = sync_channel(1);
            let before = self.last.clone();
            // Where the system has no room for a thread, nothing answers, and the next look begins another.
            let _ = std::thread::Builder::new().spawn(move || tell.send(look(before)));
            UnderWay {
                answer,
                begun: clock::since_boot(),
                outdated: false,
            }
        });
        let wait = match &self.last {
            _ if !begins => Duration::ZERO,
            None => FIRST,
            Some(_) => LATER,
        };
        match under_way.answer.recv_timeout(wait) {
            Ok(seen) if !under_way.outdated => (self.last, self.outdated) = (Some(seen), false),
            Err(RecvTimeoutError::Timeout) => self.under_way = Some(under_way),
            // It came back this instant; or a panic, which ends the process.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {}
        }
        let begun = self.under_way.as_ref().map(|it| it.begun);
        Seen {
            what: self.last.clone(),
            silent: begun.map(|it| clock::since_boot().saturating_sub(it)),
            outdated: self.outdated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(then: Duration) -> Duration {
        clock::since_boot().saturating_sub(then)
    }

    #[test]
    fn a_look_that_does_not_come_back_is_waited_for_once_and_begun_once() {
        let mut look = Look::default();
        let see = |number: u8| move |_: Option<u8>| number;
        assert_eq!(look.at("here", see(1)).what, Some(1));
        let (go_on, hangs) = sync_channel::<()>(0);
        let started = clock::since_boot();
        let seen = look.at("here", move |before| {
            hangs.recv().map_or(0, |()| before.unwrap_or(0) + 1)
        });
        assert_eq!(seen.what, Some(1));
        assert!(seen.silent.is_some_and(|it| it >= LATER));
        assert!(since(started) < 2 * LATER);
        let waited = clock::since_boot();
        look.changed();
        for _ in 0..3 {
            let seen = look.at("here", |_| panic!("a second thread"));
            assert!(seen.what == Some(1) && seen.outdated && seen.silent.is_some());
        }
        assert!(since(waited) < LATER, "waited again");
        // What was seen elsewhere is not taken for this place.
        let there = look.at("there", see(7));
        assert!(there.what == Some(7) && there.silent.is_none() && !there.outdated);
        drop(go_on);
    }

    #[test]
    fn what_comes_back_late_is_taken_by_the_next_look() {
        let mut look = Look::default();
        assert_eq!(look.at((), |_| 1).what, Some(1));
        let (go_on, hangs) = sync_channel::<()>(0);
        let late = look.at((), move |_| hangs.recv().map_or(0, |()| 2));
        assert!(late.silent.is_some() && late.what == Some(1));
        go_on.send(()).unwrap();
        let end = clock::since_boot() + FIRST;
        while look.at((), |before| before.unwrap_or(9)).what != Some(2) {
            assert!(clock::since_boot() < end);
        }
    }

    #[test]
    fn what_began_before_a_change_is_not_taken() {
        let mut look = Look::default();
        assert_eq!(look.at((), |_| 1).what, Some(1));
        let (go_on, hangs) = sync_channel::<()>(0);
        look.at((), move |_| hangs.recv().map_or(0, |()| 2));
        look.changed();
        go_on.send(()).unwrap();
        let end = clock::since_boot() + FIRST;
        loop {
            let seen = look.at((), |_| 3);
            assert_ne!(seen.what, Some(2), "of before the change");
            if seen.what == Some(3) {
                assert!(!seen.outdated);
                return;
            }
            assert!(seen.outdated && clock::since_boot() < end);
        }
    }
}
