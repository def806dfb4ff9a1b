//! Formats numbers. Prepares texts from files for a terminal.

/// Returns a text without control characters, which could change the state of a terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
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
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
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
    fn one_thing_is_no_plural() {
        assert_eq!([0, 1, 2].map(|count| number_of(count, "block")), ["0 blocks", "1 block", "2 blocks"]);
    }
}
