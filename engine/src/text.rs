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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!([0, 1, 2].map(|count| number_of(count, "block")), ["0 blocks", "1 block", "2 blocks"]);
    }
}
