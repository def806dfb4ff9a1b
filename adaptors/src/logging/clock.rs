//! Reads the wall clock and converts it to the local time of day.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::time_of_day::TimeOfDay;

/// Every time zone's offset changes on a multiple of this many seconds, so it is looked up no more often.
const OFFSET_VALID_SECONDS: i64 = 15 * 60;

const NANOSECONDS: u64 = 1_000_000_000;

/// Returns the nanoseconds since 1970 by the system's clock, until the year 2554.
#[cfg(target_os = "linux")]
#[inline]
pub(super) fn now() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Realtime);
    // Before 1970 the clock is wrong anyway.
    u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(NANOSECONDS).saturating_add(now.tv_nsec as u64)
}

#[cfg(not(target_os = "linux"))]
#[inline]
pub(super) fn now() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_secs().saturating_mul(NANOSECONDS).saturating_add(since_1970.subsec_nanos().into())
}

/// Converts times to the local time of day.
#[derive(Debug)]
pub(super) struct Clock {
    zone: TimeZone,
    /// The last converted second: since 1970, and since midnight of the local day.
    second: (u64, u64),
    /// The multiple of [`OFFSET_VALID_SECONDS`] for which the offset holds.
    period: i64,
    offset_seconds: i64,
}

impl Clock {
    pub(super) fn new(zone: TimeZone) -> Self {
        let mut clock = Self { zone, second: (0, 0), period: i64::MIN, offset_seconds: 0 };
        clock.second.1 = clock.second_of_day(0);
        clock
    }

    #[inline]
    pub(super) fn time_of_day(&mut self, nanoseconds_since_1970: u64) -> TimeOfDay {
        let (second, rest) = (nanoseconds_since_1970 / NANOSECONDS, nanoseconds_since_1970 % NANOSECONDS);
        if second != self.second.0 {
            self.second = (second, self.second_of_day(second));
        }
        TimeOfDay { micros: self.second.1 * 1_000_000 + rest / 1000 }
    }

    fn second_of_day(&mut self, since_1970: u64) -> u64 {
        let seconds = i64::try_from(since_1970).unwrap_or(i64::MAX / 2);
        let period = seconds.div_euclid(OFFSET_VALID_SECONDS);
        if period != self.period {
            let now = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
            self.offset_seconds = self.zone.to_offset(now).seconds().into();
            self.period = period;
        }
        (seconds + self.offset_seconds).rem_euclid(24 * 60 * 60).unsigned_abs()
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
            let time = clock.time_of_day(seconds * NANOSECONDS + 42_999);
            assert_eq!(time.to_string(), expected, "{seconds}");
        }
    }

    #[test]
    fn zones_behind_and_ahead_of_utc_wrap_at_midnight() {
        for (zone, expected) in [("<-1130>11:30", "13:30:00.000000"), ("<+1245>-12:45", "13:45:00.000000")] {
            let mut clock = Clock::new(TimeZone::posix(zone).unwrap());
            assert_eq!(clock.time_of_day(3600 * NANOSECONDS).to_string(), expected);
        }
    }

    #[test]
    fn the_first_and_the_last_time_that_fit_do_not_panic() {
        let mut clock = Clock::new(TimeZone::UTC);
        assert_eq!(clock.time_of_day(0).to_string(), "00:00:00.000000");
        assert_eq!(clock.time_of_day(u64::MAX).to_string(), "23:34:33.709551");
    }
}
