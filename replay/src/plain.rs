//! Texts from files, made fit for a terminal, and numbers of things.

/// A text from a file without characters that a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// A number of things, as in `1 block` and `2 blocks`.
pub(crate) fn number_of(count: u64, noun: &str) -> String {
    format!("{count} {}", plural(count, noun))
}

/// The noun, in the singular for one thing.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!([0, 1, 2].map(|count| number_of(count, "block")), ["0 blocks", "1 block", "2 blocks"]);
    }
}
