//! How much more physical memory than its peak of live memory a pool aims to hold.

use std::fmt;
use std::str::FromStr;

use millpond_core::{Error, Result};

/// By how much the physical memory of a pool that maps [pages](crate::pool::PagesMode) may exceed its peak of
/// live memory before the pool saves memory at the price of driver calls.
///
/// The pool keeps to it with 3 driver calls for each thousand operations. Where that would cost more, it
/// takes memory instead, up to 10 % over the peak of live memory, and counts it in
/// [`bytes_beyond_slack`](millpond_core::ResourceStatistics::bytes_beyond_slack). What this does not bound
/// is memory taken since stream order keeps blocks apart, or since no free memory could be stitched.
/// Pools over regions take no notice of it.
///
/// In text, as a percentage with at most one decimal place: `slack=1%` (the default), `slack=5%`.
///
/// ```
/// use millpond_resources::Slack;
///
/// assert_eq!("0.5%".parse::<Slack>()?, Slack::from_thousandths(5)?);
/// assert_eq!(Slack::default().to_string(), "1%");
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slack {
    thousandths: u16,
}

impl Default for Slack {
    fn default() -> Self {
        Self { thousandths: 10 }
    }
}

impl Slack {
    const MOST_THOUSANDTHS: u16 = 1000;

    /// A slack in thousandths of the peak of live memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for more than 1000.
    pub fn from_thousandths(thousandths: u16) -> Result<Self> {
        if thousandths <= Self::MOST_THOUSANDTHS {
            return Ok(Self { thousandths });
        }
        Err(Error::invalid_argument(format!(
            "a slack of {thousandths} thousandths is more than 100%; write for example slack=1%"
        )))
    }

    /// The slack in thousandths of the peak of live memory.
    pub fn thousandths(self) -> u16 {
        self.thousandths
    }
}

impl FromStr for Slack {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let number = text.trim().strip_suffix('%')?.trim_end();
            let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
            let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if !is_digits(whole) || !is_digits(tenths) || tenths.len() > 1 {
                return None;
            }
            let thousandths = whole.parse::<u16>().ok()?.checked_mul(10)? + tenths.parse::<u16>().ok()?;
            Self::from_thousandths(thousandths).ok()
        };
        parse().ok_or_else(|| {
            Error::invalid_argument(format!(
                "a slack is a percentage from 0% to 100% with at most one decimal place, such as 0.5%, not \
                 `{text}`"
            ))
        })
    }
}

impl fmt::Display for Slack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.thousandths % 10 {
            0 => write!(f, "{}%", self.thousandths / 10),
            tenths => write!(f, "{}.{tenths}%", self.thousandths / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_and_written() {
        for (text, thousandths) in [("0%", 0), ("0.5%", 5), (" 2 %", 20), ("10.0%", 100), ("100%", 1000)] {
            let slack: Slack = text.parse().unwrap();
            assert_eq!(slack.thousandths(), thousandths, "{text}");
            assert_eq!(slack.to_string().parse::<Slack>().unwrap(), slack);
        }
        for text in ["", "%", "1", "-1%", "0.45%", "1.%", ".5%", "100.1%", "6554%", "99999%", "+1%", "1e1%"] {
            let error = text.parse::<Slack>().unwrap_err().to_string();
            assert!(error.contains("such as 0.5%"), "{text}: {error}");
        }
    }
}
