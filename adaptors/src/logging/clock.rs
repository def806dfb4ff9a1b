use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::row::TimeOfDay;

/// Every time zone's offset changes on a multiple of this, so it need not be looked up more often.
const OFFSET_VALID_SECONDS: i64 = 15 * 60;

/// The local time of day, for the price of reading the clock.
#[derive(Debug)]
pub(super) struct Clock {
    zone: TimeZone,
    /// Which multiple of [`OFFSET_VALID_SECONDS`] the offset is for.
    period: i64,
    offset_seconds: i64,
}

impl Clock {
    pub(super) fn new(zone: TimeZone) -> Self {
        Self { zone, period: i64::MIN, offset_seconds: 0 }
    }

    pub(super) fn now(&mut self) -> TimeOfDay {
        // Before 1970 the clock is wrong anyway.
        self.time_of_day(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    fn time_of_day(&mut self, since_1970: Duration) -> TimeOfDay {
        let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX / 2);
        let period = seconds.div_euclid(OFFSET_VALID_SECONDS);
        if period != self.period {
            let now = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
            self.offset_seconds = self.zone.to_offset(now).seconds().into();
            self.period = period;
        }
        let of_day = (seconds + self.offset_seconds).rem_euclid(24 * 60 * 60);
        TimeOfDay { micros: of_day.unsigned_abs() * 1_000_000 + u64::from(since_1970.subsec_micros()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_follows_daylight_saving_time() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let mut clock = Clock::new(zone);
        // The seconds before and after 01:00 UTC on 2026-03-29 and on 2026-10-25, when clocks change, and a
        // midnight.
        for (seconds, expected) in [
            (1_774_745_999, "01:59:59.000042"),
            (1_774_746_000, "03:00:00.000042"),
            (1_792_889_999, "02:59:59.000042"),
            (1_792_890_000, "02:00:00.000042"),
            (1_792_969_200, "00:00:00.000042"),
        ] {
            let time = clock.time_of_day(Duration::new(seconds, 42_999));
            assert_eq!(time.to_string(), expected, "{seconds}");
        }
    }

    #[test]
    fn zones_behind_and_ahead_of_utc_wrap_at_midnight() {
        for (zone, expected) in [("<-1130>11:30", "13:30:00.000000"), ("<+1245>-12:45", "13:45:00.000000")] {
            let mut clock = Clock::new(TimeZone::posix(zone).unwrap());
            assert_eq!(clock.time_of_day(Duration::from_secs(3600)).to_string(), expected);
        }
    }

    #[test]
    fn a_time_beyond_all_calendars_does_not_panic() {
        let mut clock = Clock::new(TimeZone::UTC);
        clock.time_of_day(Duration::MAX);
        clock.time_of_day(Duration::ZERO);
    }
}
