//! Decides which snapshots stay: a fold over the listing of one destination, newest first, of any
//! length.
//!
//! The fold reads no file and no clock. It keeps a few numbers, whatever the length. Rules A1-A3,
//! B6, G5.

use crate::cluster::Timestamp;
use crate::observed::Clock;
use crate::spec::backup::Keep;
use crate::version::Line;

/// A jump of the clock by more than this many seconds freezes retention until a person confirms
/// (rule G5).
pub const JUMP_SECONDS: i64 = 86_400;
/// The level from which on a snapshot counts as verified.
pub const VERIFIED: u8 = 3;

/// What retention sees of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// It is of this cluster, by the id in its manifest.
    pub ours: bool,
    /// A person asked for it: it stays until a person removes it (rule A2), or its own time has passed.
    pub on_demand: bool,
    /// It has outlived the time that a person set for it. A snapshot of unknown age never has (rule G5).
    pub outlived: bool,
    /// The level that it is known to have reached. 0: damaged, incomplete or unknown.
    pub level: u8,
    /// When it was taken, by a trusted clock.
    pub created: Option<Timestamp>,
    /// Of its file.
    pub bytes: u64,
    /// The line of the etcd that it was taken from, where that is known.
    pub line: Option<Line>,
}

/// What happens to a snapshot, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It belongs to another cluster, or nothing is known of it. Never touched.
    NotOurs,
    /// Asked for by a person.
    OnDemand,
    /// Asked for by a person for a time that has passed.
    Outlived,
    /// The newest one that is verified.
    NewestVerified,
    /// The newest verified one of the line of etcd that ran before: nothing else leads back to that line.
    LineBefore,
    /// Among the newest ones.
    Last,
    /// The newest of an hour, a day or a week.
    Period,
    /// Its hour, day and week are unknown, and the clock that would date newer ones is not trusted.
    /// As many stay as the rules for hours, days and weeks could keep.
    AgeUnknown,
    /// Neither among the newest nor the newest of a period that is kept.
    Expired,
    /// Newer snapshots take up the allowed bytes.
    OverBytes,
    /// It does not verify, and newer ones do.
    Damaged,
}

impl Fate {
    /// Whether the snapshot is removed.
    pub fn removes(self) -> bool {
        matches!(
            self,
            Fate::Outlived | Fate::Expired | Fate::OverBytes | Fate::Damaged
        )
    }
}

/// Why nothing is removed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// The newest snapshot could not be saved (rule A3).
    LastSaveFailed,
    /// The clock jumped by more than a day since the newest snapshot.
    ClockJumped,
}

/// Why retention may not run, if it may not. Without a trusted clock, retention uses revisions
/// (rule G5), and no jump can be seen. `newest`: when the newest snapshot of this cluster was
/// taken; `since`: seconds since then by a clock that does not jump, if they are known.
pub fn frozen(
    clock: Clock,
    now: Timestamp,
    newest: Option<Timestamp>,
    since: Option<u64>,
    last_save_failed: bool,
) -> Option<Frozen> {
    if last_save_failed {
        return Some(Frozen::LastSaveFailed);
    }
    if clock != Clock::Trusted {
        return None;
    }
    let newest = newest?;
    let passed = now.seconds_since(newest);
    let jumped = match since {
        Some(since) => {
            let since = i64::try_from(since).unwrap_or(i64::MAX);
            passed.saturating_sub(since).saturating_abs() > JUMP_SECONDS
        }
        None => passed < -JUMP_SECONDS,
    };
    jumped.then_some(Frozen::ClockJumped)
}

/// The state of the fold.
#[derive(Clone, Debug)]
pub struct Retention {
    keep: Keep,
    last: u32,
    periods: [Period; 3],
    /// How many more snapshots of unknown age stay.
    undated: u32,
    bytes: u64,
    verified: bool,
    /// The line of the newest verified one.
    line: Option<Line>,
    /// One of the line before stays.
    leads_back: bool,
}

#[derive(Clone, Debug)]
struct Period {
    seconds: i64,
    left: u32,
    newest: Option<i64>,
}

impl Period {
    /// Whether this is the newest of a further period.
    fn begins(&mut self, created: Timestamp) -> bool {
        let number = created.0.div_euclid(self.seconds);
        if self.left == 0 || self.newest.is_some_and(|it| number >= it) {
            return false;
        }
        self.left -= 1;
        self.newest = Some(number);
        true
    }
}

impl Retention {
    /// Starts the fold, before the newest snapshot.
    pub fn new(keep: Keep, clock: Clock) -> Self {
        let period = |seconds, left| Period {
            seconds,
            left,
            newest: None,
        };
        Retention {
            keep,
            last: 0,
            periods: [
                period(3600, keep.hourly),
                period(86_400, keep.daily),
                period(7 * 86_400, keep.weekly),
            ],
            undated: match clock {
                Clock::Trusted => 0,
                _ => keep.by_age(),
            },
            bytes: 0,
            verified: false,
            line: None,
            leads_back: false,
        }
    }

    /// The fate of the next older snapshot.
    pub fn next(&mut self, it: &Kept) -> Fate {
        if !it.ours {
            return Fate::NotOurs;
        }
        let verified = it.level >= VERIFIED;
        let newest_verified = verified && !self.verified;
        self.verified |= verified;
        if newest_verified {
            self.line = it.line;
        }
        let fate = self.judge(it, verified, newest_verified);
        if !fate.removes() {
            self.leads_back |= verified && self.is_of_another_line(it);
            self.bytes = self.bytes.saturating_add(it.bytes);
        }
        fate
    }

    fn is_of_another_line(&self, it: &Kept) -> bool {
        let lines = self.line.zip(it.line);
        lines.is_some_and(|(newest, own)| newest != own)
    }

    fn judge(&mut self, it: &Kept, verified: bool, newest_verified: bool) -> Fate {
        if it.on_demand {
            return match (it.outlived, newest_verified) {
                (false, _) => Fate::OnDemand,
                (true, true) => Fate::NewestVerified,
                // While no newer snapshot is verified, keep this one.
                (true, false) if self.verified => Fate::Outlived,
                (true, false) => Fate::OnDemand,
            };
        }
        if !verified {
            // While no newer snapshot is verified, keep this one.
            return if self.verified {
                Fate::Damaged
            } else {
                Fate::Last
            };
        }
        // Every rule sees every snapshot. The newest of a period uses the period up, whatever else
        // keeps it.
        let mut period = false;
        if let Some(created) = it.created {
            for it in &mut self.periods {
                period |= it.begins(created);
            }
        }
        self.last = self.last.saturating_add(1);
        if newest_verified {
            return Fate::NewestVerified;
        }
        if !self.leads_back && self.is_of_another_line(it) {
            return Fate::LineBefore;
        }
        let fate = if self.last <= self.keep.last {
            Fate::Last
        } else if period {
            Fate::Period
        } else if it.created.is_none() && self.undated > 0 {
            self.undated -= 1;
            Fate::AgeUnknown
        } else {
            return Fate::Expired;
        };
        if self.bytes.saturating_add(it.bytes) > self.keep.max_bytes {
            return Fate::OverBytes;
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Keep = Keep {
        last: 2,
        hourly: 0,
        daily: 3,
        weekly: 0,
        max_bytes: u64::MAX,
    };

    fn kept(hours_ago: i64) -> Kept {
        Kept {
            ours: true,
            on_demand: false,
            outlived: false,
            level: 3,
            created: Some(Timestamp(2_000_000_000 - hours_ago * 3600)),
            bytes: 10,
            line: Some(Line::V3_6),
        }
    }

    fn fates(keep: Keep, listing: &[Kept]) -> Vec<Fate> {
        fates_by(Clock::Trusted, keep, listing)
    }

    fn fates_by(clock: Clock, keep: Keep, listing: &[Kept]) -> Vec<Fate> {
        let mut fold = Retention::new(keep, clock);
        listing.iter().map(|it| fold.next(it)).collect()
    }

    /// Of 3.7 nothing but a snapshot of 3.6 leads back, however many of 3.7 there are, and however large.
    #[test]
    fn one_of_the_line_before_stays() {
        let keep = Keep {
            daily: 0,
            max_bytes: 25,
            ..KEEP
        };
        let of = |line, level, hours_ago| Kept {
            level,
            line,
            ..kept(hours_ago)
        };
        let [older, old, new] = [Line::V3_5, Line::V3_6, Line::V3_7].map(Some);
        let stay = |listing: &[Kept]| {
            let fates = fates(keep, listing);
            let stay = fates.iter().map(|it| !it.removes());
            stay.collect::<Vec<_>>()
        };
        let listing = [
            of(new, 3, 0),
            of(new, 3, 1),
            of(new, 3, 2),
            of(old, 0, 3),
            of(old, 3, 4),
            of(old, 3, 5),
            of(older, 3, 6),
        ];
        assert_eq!(
            stay(&listing),
            [true, true, false, false, true, false, false]
        );
        assert_eq!(fates(keep, &listing)[4], Fate::LineBefore);
        // The same after a way back, and not where a line is unknown.
        assert_eq!(
            stay(&[of(old, 3, 0), of(new, 3, 1), of(new, 3, 2), of(new, 3, 3)]),
            [true, true, false, false]
        );
        assert_eq!(
            stay(&[of(new, 3, 0), of(new, 3, 1), of(None, 3, 2), of(None, 3, 3)]),
            [true, true, false, false]
        );
        // What a person took leads back as well, until its time has passed.
        let by_person = |outlived| Kept {
            on_demand: true,
            outlived,
            ..of(old, 3, 2)
        };
        for outlived in [false, true] {
            let newer = [of(new, 3, 0), of(new, 3, 1)];
            let all = [newer[0], newer[1], by_person(outlived), of(old, 3, 3)];
            assert_eq!(stay(&all), [true, true, !outlived, outlived]);
        }
    }

    #[test]
    fn the_newest_ones_and_the_newest_of_each_day_stay() {
        // 2_000_000_000 is 03:33 in the morning.
        let listing: Vec<Kept> = [0, 1, 2, 4, 5, 30, 31, 60, 100].map(kept).to_vec();
        assert_eq!(
            fates(KEEP, &listing),
            [
                Fate::NewestVerified,
                Fate::Last,
                Fate::Expired,
                Fate::Period,
                Fate::Expired,
                Fate::Period,
                Fate::Expired,
                Fate::Expired,
                Fate::Expired,
            ]
        );
    }

    /// Listings of up to five snapshots of every kind, against every policy of small numbers.
    #[test]
    fn every_small_listing_keeps_what_must_stay() {
        let kinds: Vec<Kept> = [true, false]
            .into_iter()
            .flat_map(|ours| [(true, false), (true, true), (false, false)].map(|it| (ours, it)))
            .flat_map(|it| [0, 2, 3].map(|level| (it, level)))
            .flat_map(|(it, level)| [None, Some(Timestamp(0))].map(|at| (it, level, at)))
            .map(|((ours, (on_demand, outlived)), level, created)| Kept {
                ours,
                on_demand,
                outlived,
                level,
                created,
                bytes: 10,
                line: None,
            })
            .collect();
        let mut seen = 0_u64;
        let mut listings: Vec<Vec<usize>> = vec![vec![]];
        for _ in 0..3 {
            listings = listings
                .iter()
                .flat_map(|it| {
                    (0..kinds.len()).map(|kind| it.iter().copied().chain([kind]).collect())
                })
                .collect();
            for listing in &listings {
                for ((last, daily, max_bytes), clock) in
                    [(1, 0, u64::MAX), (0, 1, u64::MAX), (2, 1, 0), (9, 9, 25)]
                        .into_iter()
                        .flat_map(|it| [(it, Clock::Trusted), (it, Clock::Unsynchronised)])
                {
                    let keep = Keep {
                        last,
                        daily,
                        max_bytes,
                        ..KEEP
                    };
                    let all: Vec<Kept> = (0_i64..)
                        .zip(listing)
                        .map(|(age, it)| Kept {
                            created: kinds[*it].created.map(|_| kept(age * 20).created.unwrap()),
                            ..kinds[*it]
                        })
                        .collect();
                    let fates = fates_by(clock, keep, &all);
                    seen += 1;
                    // Whatever the clock: no more than the rules can keep, and the newest verified one.
                    let ordinary = |it: &Kept| it.ours && !it.on_demand && it.level >= VERIFIED;
                    let stay = all.iter().zip(&fates);
                    let stay = stay
                        .filter(|(it, fate)| ordinary(it) && !fate.removes())
                        .count();
                    let most = (last + 2 * daily + 1) as usize;
                    assert!(stay <= most, "{clock:?} {all:?} {fates:?}");
                    let newest = all.iter().position(|it| it.ours && it.level >= VERIFIED);
                    for (index, (it, fate)) in all.iter().zip(&fates).enumerate() {
                        let asked = it.on_demand && !it.outlived;
                        let stays = !it.ours || asked || Some(index) == newest;
                        assert!(!(stays && fate.removes()), "{all:?} {fates:?}");
                    }
                    let any = all.iter().any(|it| it.ours && it.level >= VERIFIED);
                    assert!(
                        any || !fates.iter().any(|it| it.removes()),
                        "none is proven: {all:?}"
                    );
                }
            }
        }
        println!("{seen} listings");
    }

    /// Rule G5: a box whose clock nobody vouches for takes snapshots for months.
    #[test]
    fn without_a_trusted_clock_counts_and_bytes_go_on_and_ages_wait() {
        use Fate::{AgeUnknown, Expired, Last, NewestVerified, OverBytes, Period};
        let undated = |age| Kept {
            created: None,
            ..kept(age)
        };
        let listing: Vec<Kept> = (0..7).map(undated).chain([7, 8, 40].map(kept)).collect();
        let untrusted = |keep| fates_by(Clock::Unsynchronised, keep, &listing);
        // Two by count and three of unknown age; what was dated once goes by its date.
        let head = [
            NewestVerified,
            Last,
            AgeUnknown,
            AgeUnknown,
            AgeUnknown,
            Expired,
            Expired,
        ];
        assert_eq!(
            untrusted(KEEP),
            [&head[..], &[Period, Expired, Period]].concat()
        );
        let counts = Keep { daily: 0, ..KEEP };
        assert_eq!(untrusted(counts), [&head[..2], &[Expired; 8]].concat());
        let bytes = Keep {
            max_bytes: 35,
            ..KEEP
        };
        assert_eq!(untrusted(bytes)[2..5], [AgeUnknown, OverBytes, OverBytes]);
        // Once it is trusted, what has no date goes by count alone.
        assert_eq!(fates(KEEP, &listing)[..3], [NewestVerified, Last, Expired]);
    }

    #[test]
    fn what_a_person_took_for_a_time_goes_after_it_but_for_the_newest_verified() {
        let on_demand = |hours_ago, outlived, level| Kept {
            on_demand: true,
            outlived,
            level,
            ..kept(hours_ago)
        };
        let listing = [
            on_demand(0, true, 2),
            on_demand(1, true, 3),
            on_demand(2, true, 3),
            on_demand(3, false, 3),
        ];
        let wanted = [
            Fate::OnDemand,
            Fate::NewestVerified,
            Fate::Outlived,
            Fate::OnDemand,
        ];
        assert_eq!(fates(KEEP, &listing), wanted);
    }

    #[test]
    fn no_more_bytes_than_asked_for_stay_but_for_the_newest_verified() {
        let keep = Keep {
            last: 9,
            max_bytes: 25,
            ..KEEP
        };
        let listing = [kept(0), kept(1), kept(2)];
        let expected = [Fate::NewestVerified, Fate::Last, Fate::OverBytes];
        assert_eq!(fates(keep, &listing), expected);
        let large = Kept {
            bytes: 99,
            ..kept(0)
        };
        let expected = [Fate::NewestVerified, Fate::OverBytes, Fate::OverBytes];
        assert_eq!(fates(keep, &[large, kept(1), kept(2)]), expected);
    }

    #[test]
    fn a_jump_or_a_failed_save_freezes() {
        let now = Timestamp(2_000_000_000);
        let day = JUMP_SECONDS;
        let at = |ago: i64| Some(Timestamp(now.0 - ago));
        let trusted = |newest, since| frozen(Clock::Trusted, now, newest, since, false);
        assert_eq!(trusted(at(0), None), None);
        assert_eq!(trusted(None, None), None);
        assert_eq!(trusted(at(100 * day), None), None, "the box was off");
        assert_eq!(trusted(at(-day - 1), None), Some(Frozen::ClockJumped));
        assert_eq!(trusted(at(day + 61), Some(60)), Some(Frozen::ClockJumped));
        assert_eq!(trusted(at(day), Some(60)), None);
        let untrusted = frozen(Clock::Unsynchronised, now, at(-day - 1), None, false);
        assert_eq!(untrusted, None, "revisions tell the order");
        let failed = frozen(Clock::Unsynchronised, now, at(0), None, true);
        assert_eq!(failed, Some(Frozen::LastSaveFailed));
        let failed = frozen(Clock::Trusted, now, at(0), None, true);
        assert_eq!(failed, Some(Frozen::LastSaveFailed));
    }
}
