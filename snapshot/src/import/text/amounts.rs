//! Sizes in the messages of other programs, such as `79.11 GiB`, `2.25GiB` or `1,048,576`.

use crate::import::states::MOST_BYTES;

/// Units of 1024. Some programs write GB for GiB.
const UNITS: [(&str, u32); 15] = [
    ("bytes", 0),
    ("byte", 0),
    ("KiB", 10),
    ("MiB", 20),
    ("GiB", 30),
    ("TiB", 40),
    ("PiB", 50),
    ("KB", 10),
    ("MB", 20),
    ("GB", 30),
    ("TB", 40),
    ("K", 10),
    ("M", 20),
    ("G", 30),
    ("B", 0),
];

/// Returns the size after a marker, in bytes.
pub(crate) fn after(text: &str, marker: &str) -> Option<u64> {
    let at = text.find(marker)? + marker.len();
    amount(text[at..].trim_start())
}

/// Returns the size before a marker, in bytes.
pub(crate) fn before(text: &str, marker: &str) -> Option<u64> {
    let head = text[..text.find(marker)?].trim_end();
    let mut words = head.rsplit([' ', '(', ';', ',']).filter(|word| !word.is_empty());
    let (last, first) = (words.next()?, words.next());
    let is_number = last.starts_with(|char: char| char.is_ascii_digit());
    if is_number { amount(last) } else { amount(&format!("{} {last}", first?)) }
}

/// Returns the size at the start of a text, in bytes: a number, and optionally a unit.
pub(crate) fn amount(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != ',').unwrap_or(text.len());
    let whole = grouped(&text[..end])?;
    let rest = &text[end..];
    let digits = rest
        .strip_prefix('.')
        .map_or(0, |fraction| fraction.find(|char: char| !char.is_ascii_digit()).unwrap_or(fraction.len()));
    let (fraction, rest) = match digits {
        0 => ("", rest),
        digits => (&rest[1..=digits.min(9)], &rest[1 + digits..]),
    };
    let rest = rest.trim_start();
    let shift = UNITS.iter().find(|(unit, _)| rest.starts_with(unit)).map_or(0, |(_, shift)| *shift);
    let part = fraction.parse::<u128>().unwrap_or(0) << shift;
    let bytes = (u128::from(whole) << shift) + part / 10_u128.pow(fraction.len() as u32);
    Some(u64::try_from(bytes).unwrap_or(u64::MAX).min(MOST_BYTES))
}

/// Returns a whole number whose digits may be grouped with commas.
pub(crate) fn grouped(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|char| *char != ',').collect();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Returns the first run of digits after a marker, as a number.
pub(crate) fn number_after(text: &str, marker: &str) -> Option<u64> {
    let rest = text[text.find(marker)? + marker.len()..].trim_start();
    let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Returns the hexadecimal number at the start of a text, with or without `0x`.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let end = digits.find(|char: char| !char.is_ascii_hexdigit()).unwrap_or(digits.len());
    u64::from_str_radix(&digits[..end], 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_any_unit() {
        for (text, bytes) in [
            ("20.00 MiB. GPU", 20 << 20),
            ("2.25GiB (rounded", (2 << 30) + (1 << 28)),
            ("0 bytes is", 0),
            ("1,048,576 bytes", 1 << 20),
            ("11.0KiB", 11 << 10),
            ("256", 256),
            ("17.36 GB,", 17 * (1 << 30) + 36 * (1 << 30) / 100),
            ("17179869184.00 GiB", MOST_BYTES),
            ("99999999999999999999999 GiB", MOST_BYTES),
            ("1.123456789123 B", 1),
        ] {
            assert_eq!(amount(text), Some(bytes), "{text}");
        }
        assert_eq!((amount("x"), amount(""), amount(".5 GiB")), (None, None, None));
    }

    #[test]
    fn sizes_are_found_beside_their_words() {
        let text = "(GPU 0; 15.90 GiB total capacity; 14 bytes already allocated)";
        assert_eq!(before(text, " already allocated"), Some(14));
        assert_eq!(before(text, " total capacity").map(|bytes| bytes >> 20), Some(16281));
        assert_eq!((before("free", "free"), before("é free", " free")), (None, None));
        assert_eq!(after("a: 3 KiB", "a:"), Some(3072));
        assert_eq!(number_after("device 12;", "device"), Some(12));
        assert_eq!(hexadecimal("0x7fé"), Some(0x7f));
    }
}
