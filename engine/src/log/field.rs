//! Reads the fields of a row from bytes. The code is written by hand, because it is the inner loop of
//! reading.

use std::str::FromStr;

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId, DevicePtr};

use super::{Action, StreamKey};

/// The value of a field, or the reason why it has none.
pub(super) type Field<T> = Result<T, String>;

/// The most bytes of a bad field that are shown.
const SHOWN_BYTES: usize = 40;

fn shown(text: &[u8]) -> String {
    let end = text.len().min(SHOWN_BYTES);
    let dots = if end < text.len() { "…" } else { "" };
    format!("`{}{dots}`", String::from_utf8_lossy(&text[..end]).escape_debug())
}

fn not_utf8(text: &[u8]) -> Option<String> {
    std::str::from_utf8(text)
        .is_err()
        .then(|| format!("{} is not UTF-8 text; is this a complete log?", shown(text)))
}

/// Reads decimal digits. Returns `None` for any other text, and for numbers that need more than 64 bits.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Reads hexadecimal digits without a prefix. Returns `None` for any other text, and for numbers that need
/// more than 64 bits.
fn hexadecimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        if value >> 60 != 0 {
            return None;
        }
        value = value << 4 | u64::from(digit);
    }
    Some(value)
}

fn without_prefix(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"))
}

/// Reads a whole number from 0 to 2^64 - 1. In the error, `what` names the number.
pub(super) fn number(text: &[u8], what: &str) -> Field<u64> {
    decimal(text).ok_or_else(|| {
        not_utf8(text).unwrap_or_else(|| {
            let shown = shown(text);
            match text {
                [] => format!("{what} is missing"),
                [b'-', rest @ ..] if decimal(rest).is_some() => {
                    format!("{shown} is negative; {what} is 0 or more")
                }
                _ if text.iter().all(u8::is_ascii_digit) => {
                    format!("{shown} does not fit into 64 bits; the log's writer must have overflowed")
                }
                _ => format!("{shown} is not a number; {what} is expected here, such as 4096"),
            }
        })
    })
}

pub(super) fn action(text: &[u8]) -> Field<Action> {
    match text {
        b"allocate" => Ok(Action::Allocate),
        b"free" => Ok(Action::Free),
        b"allocate failure" => Ok(Action::AllocateFailure),
        _ => Err(not_utf8(text).unwrap_or_else(|| {
            format!(
                "{} is not an action; the actions are `allocate`, `allocate failure` and `free`",
                shown(text)
            )
        })),
    }
}

pub(super) fn pointer(text: &[u8]) -> Field<DevicePtr> {
    if text == b"(nil)" {
        return Ok(DevicePtr::NULL);
    }
    hexadecimal(without_prefix(text).unwrap_or(text)).map(DevicePtr::new).ok_or_else(|| {
        not_utf8(text).unwrap_or_else(|| {
            format!("{} is not an address; an address is written as `0x7f0000000000` or `(nil)`", shown(text))
        })
    })
}

pub(super) fn stream(text: &[u8]) -> Field<StreamKey> {
    if let Some(digits) = without_prefix(text)
        && let Some(handle) = hexadecimal(digits)
    {
        return Ok(match handle {
            0 | 1 => StreamKey::Legacy,
            2 => StreamKey::PerThread,
            _ => StreamKey::Handle(handle),
        });
    }
    match decimal(text) {
        Some(0) => return Ok(StreamKey::Legacy),
        Some(number) => return Ok(StreamKey::Number(number)),
        None if text == b"(nil)" => return Ok(StreamKey::Legacy),
        None => {}
    }
    Err(not_utf8(text).unwrap_or_else(|| {
        format!("{} is not a stream; a stream is written as `0`, `0x55e8c0a1b2d0` or a number", shown(text))
    }))
}

impl FromStr for StreamKey {
    type Err = String;

    /// Reads a stream in the form of a log. The error explains this form.
    fn from_str(text: &str) -> Result<Self, String> {
        stream(text.as_bytes())
    }
}

/// The reader does not use times. But if a field has characters that no time has, the file is not a log.
pub(super) fn time(text: &[u8]) -> Field<()> {
    let plausible =
        |byte: &u8| byte.is_ascii_digit() || matches!(byte, b':' | b'.' | b'-' | b'T' | b'Z' | b'+' | b' ');
    if !text.is_empty() && text.iter().all(plausible) {
        return Ok(());
    }
    Err(not_utf8(text)
        .unwrap_or_else(|| format!("{} is not a time; a time is written as `14:03:07.123456`", shown(text))))
}

/// Reads a device: `cuda:0`, `sim:0`, `own:0`, or `0`, which means `cuda:0`.
pub(super) fn device(text: &[u8]) -> Field<DeviceId> {
    let (kind, number) = match text.iter().position(|byte| *byte == b':') {
        Some(colon) => (&text[..colon], &text[colon + 1..]),
        None => (&b"cuda"[..], text),
    };
    let kind = std::str::from_utf8(kind).ok();
    let device = kind.and_then(|kind| DeviceId::of_kind(kind, ordinal(number)?));
    device.ok_or_else(|| {
        not_utf8(text)
            .unwrap_or_else(|| format!("{} is not a device; write for example `cuda:0`", shown(text)))
    })
}

/// Reads the ordinal of a device. Returns `None` if the number is too large.
fn ordinal(text: &[u8]) -> Option<u32> {
    let ordinal = decimal(text).and_then(|ordinal| u32::try_from(ordinal).ok());
    ordinal.filter(|ordinal| DeviceId::cuda(*ordinal).ordinal() == *ordinal)
}

pub(super) fn alignment(text: &[u8]) -> Field<u64> {
    let value = number(text, "an alignment in bytes")?;
    if value.is_power_of_two() {
        Ok(value.max(ALLOCATION_ALIGNMENT))
    } else {
        Err(format!("{value} is not a power of two, as an alignment must be"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_rmm_and_numbered_ones_are_told_apart() {
        for (text, key) in [
            ("0", StreamKey::Legacy),
            ("0x0", StreamKey::Legacy),
            ("(nil)", StreamKey::Legacy),
            ("0x1", StreamKey::Legacy),
            ("0x2", StreamKey::PerThread),
            ("0x55E8c0a1b2d0", StreamKey::Handle(0x55e8_c0a1_b2d0)),
            ("1", StreamKey::Number(1)),
            ("2", StreamKey::Number(2)),
        ] {
            assert_eq!(stream(text.as_bytes()), Ok(key), "{text}");
        }
        assert!(stream(b"default").unwrap_err().contains("`default` is not a stream"));
    }

    #[test]
    fn sizes_reach_to_the_end_of_64_bits_and_say_why_not_further() {
        assert_eq!(number(b"18446744073709551615", "a size"), Ok(u64::MAX));
        assert!(number(b"18446744073709551616", "a size").unwrap_err().contains("does not fit into 64 bits"));
        assert!(number(b"-1", "a size").unwrap_err().contains("negative"));
        assert!(number(b"1e9", "a size").unwrap_err().contains("not a number"));
        assert!(number(b"", "a size").unwrap_err().contains("missing"));
        assert!(number(b"\xff\xfe", "a size").unwrap_err().contains("not UTF-8"));
    }

    #[test]
    fn pointers() {
        assert_eq!(pointer(b"(nil)"), Ok(DevicePtr::NULL));
        assert_eq!(pointer(b"0x7febaa000000"), Ok(DevicePtr::new(0x7feb_aa00_0000)));
        assert_eq!(pointer(b"7febaa000000"), Ok(DevicePtr::new(0x7feb_aa00_0000)));
        assert_eq!(pointer(b"0xffffffffffffffff"), Ok(DevicePtr::new(u64::MAX)));
        assert!(pointer(b"0x1ffffffffffffffff").is_err());
        assert!(pointer(b"0x").is_err());
    }

    #[test]
    fn devices() {
        assert_eq!(device(b"cuda:3"), Ok(DeviceId::cuda(3)));
        assert_eq!((device(b"sim:3"), device(b"3")), (Ok(DeviceId::sim(3)), Ok(DeviceId::cuda(3))));
        for wrong in ["cuda:", "cuda:-1", "cuda:2147483648", "sim:4294967295", "gpu:0"] {
            assert!(device(wrong.as_bytes()).unwrap_err().contains("write for example `cuda:0`"), "{wrong}");
        }
    }

    #[test]
    fn both_forms_of_time_occur() {
        assert_eq!(time(b"05:01:18.946606"), Ok(()));
        assert_eq!(time(b"00:00:00:000000"), Ok(()));
        assert!(time(b"allocate").is_err());
    }

    #[test]
    fn alignments_are_powers_of_two_and_at_least_what_every_block_has() {
        assert_eq!(alignment(b"4096"), Ok(4096));
        assert_eq!(alignment(b"16"), Ok(256));
        assert!(alignment(b"768").is_err());
        assert!(alignment(b"0").is_err());
    }
}
