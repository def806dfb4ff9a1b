//! Texts from files, made fit for a terminal.

/// A text from a file without characters that a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}
