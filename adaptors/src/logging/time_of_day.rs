//! The time of day in a row.

use std::fmt;
use std::str::FromStr;

use millpond_core::{Error, Result};

/// A time of day, in microseconds after midnight. Its text has the form `14:03:07.123456`.
///
/// Some logs have a colon before the microseconds. This type can also read such a text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the time alone")]
pub struct TimeOfDay {
    /// The number of microseconds after midnight.
    pub micros: u64,
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.micros / 1_000_000, self.micros % 1_000_000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{hours:02}:{minutes:02}:{seconds:02}.{micros:06}")
    }
}

impl FromStr for TimeOfDay {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split([':', '.']).map(|part| match part.len() {
            2 | 6 if part.bytes().all(|byte| byte.is_ascii_digit()) => part.parse().ok(),
            _ => None,
        });
        match numbers.collect::<Option<Vec<u64>>>().as_deref() {
            Some([hours @ 0..24, minutes @ 0..60, seconds @ 0..61, micros]) => {
                Ok(Self { micros: ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros })
            }
            _ => {
                Err(Error::invalid_argument(format!("`{text}` is not a time of day such as 14:03:07.123456")))
            }
        }
    }
}
