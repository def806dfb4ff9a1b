//! Formats numbers. Prepares texts from files for a terminal.

use std::borrow::Cow;
use std::io::{self, Write};

use millpond_core::{ByteSize, format_bytes};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::log::notes::FORMULA;

/// The binary units, each 1024 times the one before it.
const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Returns a text without control characters, which could change the state of a terminal, and without the
/// characters that change the direction of text, which could show it in another order.
///
/// ```
/// use millpond_engine::text::plain;
/// assert_eq!(plain("a\u{1b}[2Jb\u{202e}c\n"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
/// ```
pub fn plain(text: &str) -> String {
    text.chars().map(|char| if is_plain(char) { char } else { '\u{fffd}' }).collect()
}

/// Returns a text as [`plain`] does, but keeps its line breaks.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

fn is_plain(char: char) -> bool {
    let is_direction = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !char.is_control() && !is_direction
}

/// Writes a value as JSON. Escapes all characters that [`plain`] replaces, because JSON itself allows some of
/// them, and a terminal starts an escape sequence at U+009B.
///
/// # Errors
/// The value has no form in JSON, or `out` cannot be written.
///
/// ```
/// use millpond_engine::text::write_json;
/// let mut json = Vec::new();
/// write_json(&mut json, &"\u{9b}2J\u{202e}ä\n")?;
/// assert_eq!(json, "\"\\u009b2J\\u202eä\\n\"".as_bytes());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_json(out: impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(out, PlainJson))?)
}

struct PlainJson;

impl Formatter for PlainJson {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(|char| !is_plain(char)) {
            out.write_all(&rest.as_bytes()[..at])?;
            // All of them have four hexadecimal digits.
            let char = rest[at..].chars().next().unwrap_or_default();
            write!(out, "\\u{:04x}", u32::from(char))?;
            rest = &rest[at + char.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

/// The name of a file that is read from the standard input.
pub const STANDARD_INPUT: &str = "standard input";

/// Returns a file's name as one word of a command, in quotation marks if a shell needs them. A file that
/// cannot be named again, such as the standard input, becomes `FILE`.
///
/// ```
/// use millpond_engine::text::{STANDARD_INPUT, file_word};
/// assert_eq!(file_word("logs/run 1.csv"), "'logs/run 1.csv'");
/// assert_eq!(file_word("logs/run1.csv"), "logs/run1.csv");
/// assert_eq!(file_word("-a.csv"), "./-a.csv");
/// assert_eq!(file_word(STANDARD_INPUT), "FILE");
/// ```
pub fn file_word(file: &str) -> Cow<'_, str> {
    if file == STANDARD_INPUT || !file.chars().all(is_plain) {
        return "FILE".into();
    }
    match file.starts_with('-') {
        true => shlex::try_quote(&format!("./{file}")).unwrap_or("FILE".into()).into_owned().into(),
        false => shlex::try_quote(file).unwrap_or("FILE".into()),
    }
}

/// Returns a file's name as a cell of CSV, as [`plain`] does. If a spreadsheet could run the name as a
/// formula, the cell starts with `./`.
///
/// ```
/// use millpond_engine::text::file_cell;
/// assert_eq!(file_cell("=1+1.csv"), "./=1+1.csv");
/// assert_eq!(file_cell("logs/run1.csv"), "logs/run1.csv");
/// ```
pub fn file_cell(file: &str) -> String {
    let folder = if file.starts_with(FORMULA) { "./" } else { "" };
    format!("{folder}{}", plain(file))
}

/// Formats a number of bytes for an option of a command, as in `--device sim:80GiB`. The text is exact if the
/// number is a multiple of a MiB, or short in a decimal unit. Otherwise it is rounded up to whole MiB.
///
/// ```
/// use millpond_engine::text::option_bytes;
/// let sizes = [80 << 30, 40_000_000_000, (80 << 30) - 1, 1];
/// assert_eq!(sizes.map(option_bytes), ["80GiB", "40GB", "80GiB", "1MiB"]);
/// assert_eq!(option_bytes((79 << 30) + (130 << 20) + 5), "81027MiB");
/// ```
pub fn option_bytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    let text = ByteSize::Bytes(bytes).to_string();
    let is_exact = bytes.is_multiple_of(MIB) || ["MB", "GB", "TB"].iter().any(|unit| text.ends_with(unit));
    match bytes.checked_next_multiple_of(MIB).filter(|_| !is_exact) {
        Some(above) => ByteSize::Bytes(above).to_string(),
        None => text,
    }
}

/// Formats a number with a noun, as in `1 block` and `2 blocks`.
pub fn number_of(count: u64, noun: &str) -> String {
    format!("{count} {}", plural(count, noun))
}

/// Returns the noun, in the singular if the count is 1.
pub fn plural(count: u64, noun: &str) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a number with a noun, as in `1 event` and `1,234 events`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {}", thousands(count), plural(count, noun))
}

/// Formats `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of bytes for a sentence, in a binary unit and with at most three significant digits.
///
/// ```
/// use millpond_engine::text::readable_bytes;
/// assert_eq!(readable_bytes(655_000_000), "625MiB");
/// assert_eq!(readable_bytes(1536), "1.50KiB");
/// assert_eq!(readable_bytes(5 << 30), "5GiB");
/// assert_eq!(readable_bytes(1004 << 20), "0.980GiB");
/// ```
pub fn readable_bytes(bytes: u64) -> String {
    let mut size = 1_u64;
    let mut units = UNITS.into_iter();
    let mut unit = units.next().unwrap_or_default();
    // 999.5 would be rounded to four digits.
    while bytes as f64 / size as f64 >= 999.5
        && let Some(next) = units.next()
    {
        (size, unit) = (size << 10, next);
    }
    match bytes.is_multiple_of(size) {
        true => format!("{}{unit}", bytes / size),
        false => format!("{}{unit}", three_digits(bytes as f64 / size as f64)),
    }
}

/// Formats one of several sizes that a sentence or a table compares, as [`millpond_core::format_bytes`] does.
/// If another size would have the same text, the text has more digits, or all bytes.
///
/// ```
/// use millpond_engine::text::bytes_among;
/// let sizes = [1320 << 20, 1318 << 20, 2 << 20];
/// assert_eq!(sizes.map(|bytes| bytes_among(bytes, &sizes)), ["1.289GiB", "1.287GiB", "2MiB"]);
/// ```
pub fn bytes_among(bytes: u64, all: &[u64]) -> String {
    among(bytes, all, format_bytes)
}

/// Formats one of several sizes that a sentence compares, as [`readable_bytes`] does. If another size would
/// have the same text, the text has more digits, or all bytes.
///
/// ```
/// use millpond_engine::text::readable_among;
/// let sizes = [12_800 << 20, 12_801 << 20];
/// assert_eq!(sizes.map(|bytes| readable_among(bytes, &sizes)), ["12.500GiB", "12.501GiB"]);
/// ```
pub fn readable_among(bytes: u64, all: &[u64]) -> String {
    among(bytes, all, readable_bytes)
}

fn among(bytes: u64, all: &[u64], usual: fn(u64) -> String) -> String {
    let forms = [usual, |bytes| with_decimals(bytes, 3), |bytes| with_decimals(bytes, 4)];
    let is_clear = |form: &&fn(u64) -> String| {
        let same =
            |other: &u64| *other != bytes && without_zeros(&form(*other)) == without_zeros(&form(bytes));
        !all.iter().any(same)
    };
    forms.iter().find(is_clear).map_or_else(|| in_parts(bytes), |form| form(bytes))
}

/// Formats all bytes of a size: as a sum of two units, as in `4GiB+4KiB`, or else as a number of bytes.
fn in_parts(bytes: u64) -> String {
    let parts = (0..UNITS.len()).rev().map(|at| (bytes >> (10 * at) & 1023, UNITS[at]));
    let parts: Vec<String> =
        parts.filter(|(part, _)| *part > 0).map(|(part, unit)| format!("{part}{unit}")).collect();
    if (1..=2).contains(&parts.len()) { parts.join("+") } else { format!("{bytes}B") }
}

/// Formats a number of bytes in its largest binary unit.
fn with_decimals(bytes: u64, decimals: usize) -> String {
    let number = (bytes.max(1).ilog2() / 10) as usize;
    let size = 1_u64 << (10 * number);
    match bytes.is_multiple_of(size) {
        true => format_bytes(bytes),
        false => format!("{:.decimals$}{}", bytes as f64 / size as f64, UNITS[number]),
    }
}

/// Returns `2GiB` for `2.00GiB`, because both tell a reader the same.
fn without_zeros(text: &str) -> (&str, &str) {
    let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
    match number.contains('.') {
        true => (number.trim_end_matches('0').trim_end_matches('.'), unit),
        false => (number, unit),
    }
}

/// Formats a number for a sentence, with three digits, but at most three decimals; a number above 1000 loses
/// its decimals.
///
/// ```
/// use millpond_engine::text::three_digits;
/// assert_eq!([0.1234, 1.234, 12.34, 1234.5].map(three_digits), ["0.123", "1.23", "12.3", "1234"]);
/// ```
pub fn three_digits(number: f64) -> String {
    let decimals = match number.abs() {
        ..0.9995 => 3,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_bytes_have_at_most_three_significant_digits() {
        const MIB: f64 = 1_048_576.0;
        for (bytes, text) in [
            (0, "0B"),
            (999, "999B"),
            (1000, "0.977KiB"),
            (1024, "1KiB"),
            ((624.64 * MIB) as u64, "625MiB"),
            ((9.994 * MIB) as u64, "9.99MiB"),
            ((9.996 * MIB) as u64, "10.0MiB"),
            ((99.96 * MIB) as u64, "100MiB"),
            ((999.4 * MIB) as u64, "999MiB"),
            ((999.6 * MIB) as u64, "0.976GiB"),
            ((1023.9 * MIB) as u64, "1.00GiB"),
            (3 << 29, "1.50GiB"),
            (u64::MAX, "16.0EiB"),
        ] {
            assert_eq!(readable_bytes(bytes), text);
        }
        for power in 0..64 {
            for bytes in [1_u64 << power, 999 << power >> 3, 12_345 << power >> 12] {
                let text = readable_bytes(bytes);
                let digits: String = text.chars().filter(char::is_ascii_digit).collect();
                assert!(digits.trim_start_matches('0').len() <= 3, "{bytes}: {text}");
            }
        }
    }

    #[test]
    fn sizes_that_differ_have_different_texts() {
        const GIB: u64 = 1 << 30;
        for (pair, texts) in [
            ([GIB, GIB], ["1GiB", "1GiB"]),
            ([GIB, 3 << 29], ["1GiB", "1.50GiB"]),
            ([2 * GIB, 2 * GIB + (2 << 20)], ["2GiB", "2.002GiB"]),
            ([2 * GIB, 2 * GIB + 1], ["2GiB", "2GiB+1B"]),
            ([1000, 1001], ["1000B", "1001B"]),
            ([0, 1], ["0B", "1B"]),
            ([u64::MAX, u64::MAX - 1], ["18446744073709551615B", "18446744073709551614B"]),
        ] {
            assert_eq!(pair.map(|bytes| bytes_among(bytes, &pair)), texts);
        }
        for power in 1..64 {
            for distance in [1, 1 << (power / 2), 1 << (power - 1)] {
                let pair = [1_u64 << power, (1 << power) + distance];
                for form in [bytes_among, readable_among] {
                    let [one, other] = pair.map(|bytes| form(bytes, &pair));
                    assert_ne!(without_zeros(&one), without_zeros(&other), "{pair:?}");
                }
            }
        }
    }

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!([0, 1, 2].map(|count| number_of(count, "block")), ["0 blocks", "1 block", "2 blocks"]);
    }
}
