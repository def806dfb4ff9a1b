//! Prints sizes in bytes with binary units.

/// Binary units and their sizes in bytes, the largest first.
pub(crate) const UNITS: [(&str, u64); 7] = [
    ("EiB", 1 << 60),
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Formats a number of bytes for people, in the largest binary unit that is not larger than the number. If
/// the number is a multiple of the unit, the text is exact. Otherwise the text has two decimals.
///
/// ```
/// use millpond_core::format_bytes;
/// assert_eq!(format_bytes(1 << 30), "1GiB");
/// assert_eq!(format_bytes(1536), "1.50KiB");
/// assert_eq!(format_bytes(1000), "1000B");
/// assert_eq!(format_bytes(1 << 60), "1EiB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    for (unit, size) in UNITS {
        if bytes >= size && bytes.is_multiple_of(size) {
            return format!("{}{unit}", bytes / size);
        }
        if bytes >= size {
            return format!("{:.2}{unit}", bytes as f64 / size as f64);
        }
    }
    "0B".to_owned()
}

/// Formats a number with a noun, as in `1 block` and `2 blocks`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
