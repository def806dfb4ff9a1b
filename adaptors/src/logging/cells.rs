//! Formats cells of a row without the formatting machinery of `std`, which costs several times as much.

use millpond_core::DeviceId;

use super::time_of_day::TimeOfDay;

/// `00` to `99`.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    pairs
};

/// A buffer for the longest number.
pub(super) type Digits = [u8; 20];

/// `1000`
#[inline]
pub(super) fn decimal(number: u64, digits: &mut Digits) -> &[u8] {
    let start = write_decimal(number, digits);
    &digits[start..]
}

/// `cuda:0`; the number has at most ten digits, and the word before it has fewer letters.
pub(super) fn device(device: DeviceId, digits: &mut Digits) -> &[u8] {
    let (number, kind) = (write_decimal(device.ordinal().into(), digits), device.kind());
    let start = number - 1 - kind.len();
    digits[start..number - 1].copy_from_slice(kind.as_bytes());
    digits[number - 1] = b':';
    &digits[start..]
}

/// Writes the number at the end of `digits`, and returns where it starts.
#[inline]
fn write_decimal(mut number: u64, digits: &mut Digits) -> usize {
    let mut start = digits.len();
    while number >= 100 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    if number >= 10 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[number as usize]);
    } else {
        start -= 1;
        digits[start] = b'0' + number as u8;
    }
    start
}

/// `0x7f3c20000000`
#[inline]
pub(super) fn hexadecimal(number: u64, digits: &mut Digits) -> &[u8] {
    let mut rest = number;
    for digit in digits[4..].iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 0xf) as usize];
        rest >>= 4;
    }
    let length = number.checked_ilog2().map_or(1, |log| log as usize / 4 + 1);
    let start = digits.len() - length - 2;
    digits[start..start + 2].copy_from_slice(b"0x");
    &digits[start..]
}

/// `14:03:07.123456`
#[inline]
pub(super) fn time(time: TimeOfDay) -> [u8; 15] {
    let (seconds, micros) = ((time.micros / 1_000_000) as u32, (time.micros % 1_000_000) as u32);
    let pairs =
        [seconds / 3600, seconds / 60 % 60, seconds % 60, micros / 10_000, micros / 100 % 100, micros % 100];
    let mut text = *b"00:00:00.000000";
    for (pair, at) in pairs.into_iter().zip([0, 3, 6, 9, 11, 13]) {
        text[at..at + 2].copy_from_slice(&PAIRS[pair as usize % 100]);
    }
    text
}
