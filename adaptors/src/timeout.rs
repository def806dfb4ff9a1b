//! The option that sets how long a request of a layer waits.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millpond_core::{Error, Result};

/// A time in a stack's text: `100ms`, `2s`, `50us`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timeout(pub(crate) Duration);

/// How long a request waits for a free by default.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a call waits by default for a call that does not end.
pub(crate) const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

const UNITS: [(&str, u64); 3] = [("us", 1), ("ms", 1000), ("s", 1_000_000)];

/// The longest allowed time: a request that waits longer counts as hanging.
const LONGEST: Duration = Duration::from_secs(3600);

impl Timeout {
    /// Rounds the time down to whole microseconds, which text can express.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for more than an hour.
    pub(crate) fn new(time: Duration) -> Result<Self> {
        if time > LONGEST {
            return Err(Error::invalid_argument(format!(
                "a request waits for an hour at most, not for {time:?}; write for example 100ms or 2s"
            )));
        }
        Ok(Self(Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))))
    }
}

impl FromStr for Timeout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let wrong = || {
            let example = "write for example 100ms, 2s or 50us";
            Error::invalid_argument(format!("`{text}` is not a time; {example}"))
        };
        let (unit, us) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
        let number: u64 = text[..text.len() - unit.len()].trim_end().parse().map_err(|_| wrong())?;
        Self::new(Duration::from_micros(number.saturating_mul(*us)))
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        let fits = |(_, size): &&(&str, u64)| us.is_multiple_of(u128::from(*size));
        let (unit, size) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", us / u128::from(*size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_written() {
        for (text, us, printed) in [
            ("100ms", 100_000, "100ms"),
            ("2s", 2_000_000, "2s"),
            (" 50 us ", 50, "50us"),
            ("1500ms", 1_500_000, "1500ms"),
            ("1000us", 1000, "1ms"),
            ("0ms", 0, "0s"),
            ("3600s", 3_600_000_000, "3600s"),
        ] {
            let timeout: Timeout = text.parse().unwrap();
            assert_eq!((timeout.0, &*timeout.to_string()), (Duration::from_micros(us), printed), "{text}");
            assert_eq!(printed.parse::<Timeout>().unwrap(), timeout);
        }
        for text in ["", "10", "s", "-1s", "1.5s", "2days", "ms", "1 0s"] {
            let error = text.parse::<Timeout>().unwrap_err();
            let trimmed = text.trim();
            let message = format!("`{trimmed}` is not a time; write for example 100ms, 2s or 50us");
            assert_eq!(error.message(), message);
        }
        for text in ["3601s", "99999999999999999s"] {
            let error = text.parse::<Timeout>().unwrap_err();
            assert!(error.message().starts_with("a request waits for an hour at most"), "{error}");
        }
        assert_eq!(Timeout::new(Duration::from_nanos(1999)).unwrap().to_string(), "1us");
    }
}
