//! When the next snapshot is due.

use crate::cluster::Timestamp;

/// The first time after `after` that a schedule of cron names, in UTC; `None`: there is none.
pub fn next(schedule: &str, after: Timestamp) -> Option<Timestamp> {
    let cron: croner::Cron = schedule.parse().ok()?;
    let after = jiff::Timestamp::from_second(after.0).ok()?;
    let utc = after.to_zoned(jiff::tz::TimeZone::UTC);
    let next = cron.find_next_occurrence(&utc, false).ok()?;
    Some(Timestamp(next.timestamp().as_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_in_utc_and_after() {
        let midnight = Timestamp(1_795_219_200); // 2026-11-21, a Saturday
        let at = |schedule| next(schedule, midnight).map(|it| it.0 - midnight.0);
        assert_eq!(at("0 3 * * *"), Some(3 * 3600));
        assert_eq!(at("*/15 * * * *"), Some(15 * 60));
        assert_eq!(at("0 0 * * *"), Some(86_400), "not now");
        assert_eq!(at("0 0 * * 0"), Some(86_400), "Sunday");
        assert_eq!(at("0 0 31 2 *"), None);
        for (word, fields) in [
            ("@hourly", "0 * * * *"),
            ("@daily", "0 0 * * *"),
            ("@weekly", "0 0 * * 0"),
            ("@monthly", "0 0 1 * *"),
            ("0 3 * JAN,DEC MON-FRI", "0 3 * 1,12 1-5"),
        ] {
            assert!(at(word).is_some() && at(word) == at(fields), "{word}");
        }
        assert_eq!(at("@daily"), Some(86_400));
        assert_eq!(at("0 3 * * MON"), Some(2 * 86_400 + 3 * 3600));
    }
}
