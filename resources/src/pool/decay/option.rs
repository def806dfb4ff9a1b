//! The option `decay`: how fast a pool returns idle memory.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millpond_core::{Error, Result};

/// The decay of a pool: the time over which the pool returns unneeded memory to the driver.
///
/// Only a pool that maps [pages](crate::pool::PagesMode) has a decay. The pool computes a weighted maximum of
/// the memory that it needed during this time. Recent needs count more than older needs.
///
/// A pool that allocates regions does not decay, because `cuMemFree` waits for all work of the device. Such a
/// pool returns memory in three cases: on `trim`, before the pool grows to a new peak, and before a request
/// fails.
///
/// In the text of a stack: `decay=10s` (the default), `decay=500ms`, `decay=2min`, `decay=off`.
///
/// ```
/// use std::time::Duration;
///
/// use millpond_resources::Decay;
///
/// assert_eq!("500ms".parse::<Decay>()?, Decay::Over(Duration::from_millis(500)));
/// assert_eq!(Decay::default().to_string(), "10s");
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Decay {
    /// The pool returns unneeded memory over this time. The time must be from a millisecond to a day, and is
    /// rounded down to whole milliseconds.
    Over(Duration),
    /// The pool does not return memory in the background.
    Off,
}

/// Returns ten seconds, like jemalloc's default for pages.
impl Default for Decay {
    fn default() -> Self {
        Self::Over(Duration::from_secs(10))
    }
}

impl Decay {
    const UNITS: [(&'static str, u64); 3] = [("ms", 1), ("min", 60_000), ("s", 1000)];
    const LONGEST_MS: u64 = 24 * 60 * 60 * 1000;

    /// Rounds the time down to whole milliseconds, since text cannot express less.
    pub(crate) fn in_milliseconds(self) -> Self {
        match self {
            Self::Over(time) => {
                Self::Over(time - Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000)))
            }
            Self::Off => Self::Off,
        }
    }

    /// Returns the time, if it is valid.
    pub(crate) fn time(self) -> Result<Option<Duration>> {
        let Self::Over(time) = self else { return Ok(None) };
        if (1..=u128::from(Self::LONGEST_MS)).contains(&time.as_millis()) {
            return Ok(Some(time));
        }
        Err(Error::invalid_argument(format!(
            "a pool's decay must be from 1 ms to 1 day, not {time:?}; write `off` to turn it off"
        )))
    }
}

impl FromStr for Decay {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text == "off" {
            return Ok(Self::Off);
        }
        let wrong = || {
            let what = "`decay` must be off, or a time such as 500ms, 10s or 2min";
            Error::invalid_argument(format!("{what}, not `{text}`"))
        };
        let unit = Self::UNITS.iter().find(|(unit, _)| text.ends_with(unit));
        let (unit, ms) = unit.ok_or_else(wrong)?;
        let number: u64 = text[..text.len() - unit.len()].trim_end().parse().map_err(|_| wrong())?;
        let decay = Self::Over(Duration::from_millis(number.checked_mul(*ms).ok_or_else(wrong)?));
        decay.time().map(|_| decay)
    }
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Over(time) if time.subsec_millis() == 0 => write!(f, "{}s", time.as_secs()),
            Self::Over(time) => write!(f, "{}ms", time.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_written() {
        for (text, ms) in
            [("1ms", 1), ("1500ms", 1500), ("10s", 10_000), (" 90 s ", 90_000), ("2min", 120_000)]
        {
            let decay = Decay::Over(Duration::from_millis(ms));
            assert_eq!(text.parse::<Decay>().unwrap(), decay, "{text}");
            assert_eq!(decay.to_string().parse::<Decay>().unwrap(), decay);
        }
        assert_eq!("off".parse::<Decay>().unwrap(), Decay::Off);
        let finer = Decay::Over(Duration::from_micros(2_345_678)).in_milliseconds();
        assert_eq!(finer, Decay::Over(Duration::from_millis(2345)));
        for text in ["", "10", "s", "-1s", "0s", "1.5s", "2days", "1441min", "99999999999999999999s", "never"]
        {
            let error = text.parse::<Decay>().unwrap_err().to_string();
            assert!(error.contains("off"), "{text}: {error}");
        }
    }
}
