//! Notes: the data in a log that RMM has no column for. A note belongs to the row that contains it.
//!
//! A note is a sequence of words, separated by spaces. Notes are separated by `;`. A character that a word
//! cannot contain becomes `%` and two hexadecimal digits. An empty word becomes `~`, and an absent word
//! becomes `-`.

use std::fmt::Write;

/// The first words of notes that are not events.
pub mod word {
    /// The format of the file that the recording was read from.
    pub const SOURCE: &str = "source";
    /// A name and a value that describe the source.
    pub const DETAIL: &str = "detail";
    /// The device: a number, or `sim:` and a number.
    pub const DEVICE: &str = "device";
    /// The name and the value of an allocator's setting.
    pub const SETTING: &str = "setting";
    /// A gap: a code and a sentence.
    pub const UNKNOWN: &str = "unknown";
    /// The counts of a comparison with the state in the file.
    pub const CHECK: &str = "check";
    /// A frame: its number, line, function and file.
    pub const FRAME: &str = "frame";
    /// A call stack: its number, and the numbers of its frames with dots between them, innermost first.
    pub const STACK: &str = "stack";
    /// A tag: its number and its text.
    pub const TAG: &str = "tag";
    /// The device's free bytes at the failed request before this note. It has the fields of an event.
    pub const DEVICE_FREE: &str = "device_free";
}

/// Texts of the notes that several crates write or look for.
pub mod origin {
    /// The source's format of a recording that `millpond-replay run` writes.
    pub const DRIVER_CALLS: &str = "driver calls of a program";
    /// The tag of the driver's own memory in such a recording.
    pub const DRIVER_TAG: &str = "driver";
    /// The name of the detail with the size of the device.
    pub const DEVICE_BYTES: &str = "bytes of the device";
    /// The name of the detail with the most bytes that the allocator may use.
    pub const LIMIT_BYTES: &str = "limit in bytes";
}

/// Characters that start a formula in spreadsheets. OWASP's list also has tab and carriage return, but words
/// never contain these characters.
pub(crate) const FORMULA: [char; 4] = ['=', '+', '-', '@'];

/// Adds a text as one word. If its first character could start a formula, the character becomes `%` and its
/// number. So no spreadsheet runs text from an untrusted program when it opens the log.
pub fn push_word(notes: &mut String, text: &str) {
    if text.is_empty() {
        notes.push('~');
    }
    let is_alone = text == "~";
    for (at, char) in text.chars().enumerate() {
        // All control characters fit into two digits.
        let is_special = matches!(char, ' ' | ';' | ',' | '"' | '%') || char.is_control();
        let is_formula = at == 0 && FORMULA.contains(&char);
        if is_special || is_alone || is_formula {
            // Writing to a string cannot fail.
            let _ = write!(notes, "%{:02X}", u32::from(char));
        } else {
            notes.push(char);
        }
    }
}

/// Returns the text of a word; `None` if [`push_word`] never writes such a word.
pub fn text(word: &str) -> Option<String> {
    if word == "~" {
        return Some(String::new());
    }
    let mut text = String::with_capacity(word.len());
    let mut rest = word;
    while let Some((plain, escaped)) = rest.split_once('%') {
        text.push_str(plain);
        let code = u8::from_str_radix(escaped.get(..2)?, 16).ok()?;
        text.push(char::from(code));
        rest = &escaped[2..];
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back() {
        let formulas = ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0"];
        let texts = [
            "",
            "~",
            "-",
            "a b",
            "a,\"b\";%~-",
            "line\nend\r",
            "é–😀",
            "%20",
            "\u{7f}\0",
            "\u{9b}2J\u{a0}",
            "a=b",
        ];
        for written in texts.into_iter().chain(formulas) {
            let mut notes = String::new();
            push_word(&mut notes, written);
            assert!(!notes.contains([' ', ',', '"', ';']) && !notes.is_empty(), "{notes}");
            assert!(!notes.contains(char::is_control), "{notes:?}");
            assert!(!notes.starts_with(['=', '+', '-', '@', '\t', '\r']), "{notes}");
            assert_eq!(text(&notes).as_deref(), Some(written));
        }
        assert_eq!(text("%2"), None);
        assert_eq!(text("%é"), None);
    }
}
