//! Reads sizes in bytes from text.

use std::fmt;
use std::str::FromStr;

use crate::driver::{Driver, call};
use crate::format::UNITS;
use crate::{Error, Result};

/// Returns the number of bytes in `count` KiB. If the result overflows, returns `u64::MAX`.
///
/// ```
/// use millpond_core::{gib, kib, mib};
/// assert_eq!((kib(1), mib(64), gib(2)), (1024, 64 << 20, 2 << 30));
/// ```
pub const fn kib(count: u64) -> u64 {
    count.saturating_mul(1 << 10)
}

/// Returns the number of bytes in `count` MiB. If the result overflows, returns `u64::MAX`.
pub const fn mib(count: u64) -> u64 {
    count.saturating_mul(1 << 20)
}

/// Returns the number of bytes in `count` GiB. If the result overflows, returns `u64::MAX`.
pub const fn gib(count: u64) -> u64 {
    count.saturating_mul(1 << 30)
}

/// Decimal units and their sizes in bytes, the largest first.
const DECIMAL: [(&str, u64); 3] = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000)];

/// A size with a longer number is written in a decimal unit, if the number then has at most as many digits.
const MOST_DIGITS: u32 = 4;

/// Formats bytes for a stack's text: in the largest unit that divides them evenly, so nothing is lost. A
/// decimal unit is used if only that makes the number short, as in `40GB`.
fn exact_bytes(bytes: u64) -> String {
    let largest = |units: &[(&'static str, u64)]| {
        units.iter().copied().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size))
    };
    let is_short = |size: u64| (bytes / size).checked_ilog10().is_none_or(|power| power < MOST_DIGITS);
    let binary = largest(&UNITS).unwrap_or(("B", 1));
    let decimal = largest(&DECIMAL).filter(|(_, size)| is_short(*size) && !is_short(binary.1));
    let (unit, size) = decimal.unwrap_or(binary);
    match unit {
        "B" if bytes > 0 && bytes < LEAST_WITHOUT_UNIT => format!("{bytes}B"),
        "B" => bytes.to_string(),
        _ => format!("{}{unit}", bytes / size),
    }
}

/// A smaller amount of memory is never meant in bytes: the unit was forgotten.
const LEAST_WITHOUT_UNIT: u64 = 1 << 20;

/// Parses an amount of memory like [`parse_bytes`], but refuses a number below 1 MiB without a unit. The
/// reason is that a user who writes 50 for a pool means 50 GiB or 50 %, not 50 bytes. All amounts in stacks,
/// in devices, in options of the replay binary, and in texts from Python are read with this function.
///
/// ```
/// use millpond_core::parse_memory;
/// assert_eq!(parse_memory("8GiB").unwrap(), 8 << 30);
/// assert_eq!(parse_memory("50B").unwrap(), 50);
/// assert_eq!(parse_memory("0").unwrap(), 0);
/// assert_eq!(parse_memory("1048576").unwrap(), 1 << 20);
/// let error = parse_memory("8").unwrap_err();
/// assert!(error.to_string().contains("did you mean 8GiB?"), "{error}");
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). For a number without a unit, the
/// message proposes the size that the user probably meant.
pub fn parse_memory(text: &str) -> Result<u64> {
    refuse_without_unit(text, LEAST_WITHOUT_UNIT, false)?;
    parse_bytes(text)
}

/// Parses the size of a block like [`parse_memory`], but also accepts a number without a unit if it is at
/// least 256.
///
/// # Errors
/// The errors of [`parse_memory`].
pub fn parse_block_bytes(text: &str) -> Result<u64> {
    refuse_without_unit(text, crate::ALLOCATION_ALIGNMENT, false)?;
    parse_bytes(text)
}

/// Refuses a number between 0 and `least` that has no unit. Proposes a percentage if `may_be_share`.
fn refuse_without_unit(text: &str, least: u64, may_be_share: bool) -> Result<()> {
    let number = text.trim();
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = if is_number { number.parse::<f64>().unwrap_or_default() } else { 0.0 };
    if value <= 0.0 || value >= least as f64 || value.is_nan() {
        return Ok(());
    }
    let meant = match value {
        _ if least < LEAST_WITHOUT_UNIT => format!("{number}KiB"),
        ..=100.0 if may_be_share => format!("{number}% or {number}GiB"),
        ..=256.0 => format!("{number}GiB"),
        _ => format!("{number}MiB"),
    };
    Err(Error::invalid_argument(format!(
        "`{number}` has no unit, and is too small as a number of bytes; did you mean {meant}? Write \
         {number}B for bytes"
    )))
}

/// Parses a number of bytes, such as `4096`, `1GiB`, `1.5 MiB`, `0.5GB` or `2k`. Units that end in `iB` are
/// powers of 1024. `kB`, `MB`, `GB` and `TB` are powers of 1000. Upper and lower case mean the same.
///
/// ```
/// use millpond_core::parse_bytes;
/// assert_eq!(parse_bytes("1GiB").unwrap(), 1 << 30);
/// assert_eq!(parse_bytes("0.5GB").unwrap(), 500_000_000);
/// assert!(parse_bytes("-1").is_err());
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). The message gives examples of valid
/// sizes.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let fail = |why: &str| {
        Error::invalid_argument(format!(
            "`{text}` is not a size: {why}; write for example 4096, 1GiB or 0.5GB"
        ))
    };
    let trimmed = text.trim();
    if trimmed.starts_with('-') {
        return Err(fail("a size cannot be negative"));
    }
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(fail("it does not start with a number"));
    }
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "p" | "pb" => 1_000_000_000_000_000,
        "e" | "eb" => 1_000_000_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        "pi" | "pib" => 1 << 50,
        "ei" | "eib" => 1 << 60,
        _ => return Err(fail("the unit is unknown")),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(|| fail("it is larger than 16 EiB"));
    }
    if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fail("it is larger than 16 EiB"));
    }
    let value: f64 = number.parse().map_err(|_| fail("it does not start with a valid number"))?;
    let bytes = (value * scale as f64).round();
    if bytes >= u64::MAX as f64 {
        return Err(fail("it is larger than 16 EiB"));
    }
    Ok(bytes as u64)
}

/// A size in a stack's text: a number of bytes, or a percentage of the device's free memory.
///
/// ```
/// use millpond_core::ByteSize;
/// let half: ByteSize = "50%".parse().unwrap();
/// assert_eq!(half, ByteSize::PercentOfFree(50.0));
/// assert_eq!("1024MiB".parse::<ByteSize>().unwrap().to_string(), "1GiB");
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum ByteSize {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the device's free memory when the stack is built.
    PercentOfFree(f64),
}

impl ByteSize {
    /// Returns the size in bytes on this device. A percentage is rounded down to a multiple of 256 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a percentage that is not between
    /// 0 and 100. For any percentage, also the errors of the driver, which reports the free memory.
    pub fn resolve(self, driver: &dyn Driver) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::PercentOfFree(percent) => {
                if !(0.0..=100.0).contains(&percent) {
                    return Err(not_a_percentage(&format_args!("{percent}%")));
                }
                let free = call(driver, |driver| driver.mem_get_info())?.free;
                Ok((free as f64 * percent / 100.0) as u64 & !(crate::ALLOCATION_ALIGNMENT - 1))
            }
        }
    }
}

fn not_a_percentage(text: &dyn fmt::Display) -> Error {
    Error::invalid_argument(format!("`{text}` is not a percentage of free memory; write one from 0% to 100%"))
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            refuse_without_unit(text, LEAST_WITHOUT_UNIT, true)?;
            return parse_bytes(text).map(Self::Bytes);
        };
        match percent.trim().parse::<f64>() {
            Ok(value) if (0.0..=100.0).contains(&value) => Ok(Self::PercentOfFree(value)),
            _ => Err(not_a_percentage(&text)),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&exact_bytes(*bytes)),
            Self::PercentOfFree(percent) => write!(f, "{percent}%"),
        }
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_bytes;

    #[test]
    fn issue_9_every_unit_is_printed_and_read() {
        for exponent in 0..64 {
            let bytes = 1_u64 << exponent;
            let number = 1 << (exponent % 10);
            let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][exponent / 10];
            assert_eq!(format_bytes(bytes), format!("{number}{unit}"));
            for bytes in [bytes, bytes - 1, bytes.wrapping_sub(bytes / 4)] {
                let text = ByteSize::Bytes(bytes).to_string();
                assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize::Bytes(bytes), "{text}");
            }
        }
        assert!(parse_bytes("16EiB").is_err() && parse_bytes("15.5EiB").is_ok());
        assert!(parse_bytes("16.0EiB").is_err(), "a number with a point has the same bound");
        for (percent, is_right) in [("100%", true), ("0%", true), ("100.1%", false), ("-1%", false)] {
            assert_eq!(percent.parse::<ByteSize>().is_ok(), is_right, "{percent}");
        }
    }

    #[test]
    fn issue_32_sizes_in_decimal_units_are_printed_as_people_write_them() {
        for (bytes, text) in [
            (40_000_000_000, "40GB"),
            (1_500_000_000, "1500MB"),
            (1_000_000, "1MB"),
            (2_000_000_000_000, "2TB"),
            (1000, "1000B"),
            (1_048_576_000, "1000MiB"),
            (1_234_567, "1234567"),
            (0, "0"),
        ] {
            assert_eq!(ByteSize::Bytes(bytes).to_string(), text);
            assert_eq!(parse_bytes(text).unwrap(), bytes);
        }
    }

    #[test]
    fn issue_29_a_small_number_without_a_unit_is_refused_with_what_was_meant() {
        for (text, meant) in [
            ("1", "did you mean 1% or 1GiB?"),
            (" 50 ", "did you mean 50% or 50GiB?"),
            ("0.5", "did you mean 0.5% or 0.5GiB?"),
            ("256", "did you mean 256GiB?"),
            ("512", "did you mean 512MiB?"),
            ("1048575", "did you mean 1048575MiB?"),
        ] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains(meant), "{text}: {error}");
            let error = parse_memory(text).unwrap_err().to_string();
            assert!(!error.contains('%') && error.contains("did you mean"), "{text}: {error}");
        }
        for (text, bytes) in [("0", 0), ("50B", 50), ("50 b", 50), ("1048576", 1 << 20), ("1k", 1000)] {
            assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize::Bytes(bytes), "{text}");
            assert_eq!(parse_memory(text).unwrap(), bytes, "{text}");
        }
        // No text is proposed that could not be read.
        for text in ["1e3", "5e-1", "+50", "inf", "NaN", ".", "0x10", "50_000", "1.5.0"] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains("not a size") && !error.contains("did you mean"), "{text}: {error}");
        }
        assert!(parse_bytes("GiB").unwrap_err().to_string().contains("does not start with a number"));
        assert_eq!(parse_block_bytes("256").unwrap(), 256);
        assert!(parse_block_bytes("64").unwrap_err().to_string().contains("did you mean 64KiB?"));
    }
}
