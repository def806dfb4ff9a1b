//! The lines of a text from any program. Their length is bounded, and escape sequences are removed.

use crate::import::bytes::refill;
use std::io::{self, Cursor, Read};

/// How many bytes of a line are kept. Other programs write lines without end, such as progress bars.
const MAX_LINE_BYTES: usize = 16 << 10;

const BUFFER_BYTES: usize = 64 << 10;

/// The lines of a text.
pub(crate) struct TextLines<R> {
    source: R,
    buffer: Vec<u8>,
    at: usize,
    line: Vec<u8>,
    number: u64,
    is_at_line_end: bool,
}

impl<R: Read> TextLines<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, buffer: Vec::new(), at: 0, line: Vec::new(), number: 1, is_at_line_end: false }
    }

    /// Returns the number of the last line, counted from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the next line as text; `None` at the end. A carriage return also ends a line, because progress
    /// bars end with one. It does not count as a line.
    ///
    /// # Errors
    /// The source cannot be read.
    pub(crate) fn next(&mut self) -> io::Result<Option<String>> {
        self.number += u64::from(std::mem::take(&mut self.is_at_line_end));
        self.line.clear();
        let mut is_any = false;
        loop {
            if self.at == self.buffer.len() && !self.fill()? {
                return Ok(is_any.then(|| self.text()));
            }
            is_any = true;
            let rest = &self.buffer[self.at..];
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &rest[..end.unwrap_or(rest.len())];
            let room = MAX_LINE_BYTES - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            self.at += part.len();
            if end.is_some() {
                self.is_at_line_end = self.buffer[self.at] == b'\n';
                self.at += 1;
                return Ok(Some(self.text()));
            }
        }
    }

    /// Returns the text that begins with the last line. `line` is that line.
    pub(crate) fn into_rest(self, line: &str) -> impl Read + use<R> {
        let rest = &self.buffer[self.at..];
        let mut start = line.as_bytes().to_vec();
        // A line may end in a carriage return and a line feed.
        if self.is_at_line_end || !rest.is_empty() && !rest.starts_with(b"\n") {
            start.push(b'\n');
        }
        start.extend_from_slice(rest);
        Cursor::new(start).chain(self.source)
    }

    fn fill(&mut self) -> io::Result<bool> {
        self.at = 0;
        refill(&mut self.source, &mut self.buffer, BUFFER_BYTES).map(|count| count > 0)
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.line);
        if text.contains('\u{1b}') { without_escapes(&text) } else { text.into_owned() }
    }
}

/// Removes the escape sequences that colour a text on a terminal.
fn without_escapes(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let rest = match part.strip_prefix('[') {
            Some(rest) => rest.trim_start_matches(|char: char| !char.is_ascii_alphabetic()),
            None => part,
        };
        plain.extend(rest.chars().skip(1));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(u64, String)> {
        let mut lines = TextLines::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push((lines.number(), line));
        }
        all
    }

    #[test]
    fn lines_are_counted_and_lose_their_escapes() {
        let expected = [(1, "a"), (1, "b"), (2, ""), (3, "cd")].map(|(at, text)| (at, text.to_owned()));
        assert_eq!(lines("a\rb\n\n\u{1b}[36mc\u{1b}[0md"), expected);
        assert_eq!(lines(""), []);
        assert_eq!(lines("x\n"), [(1, "x".to_owned())]);
        assert_eq!(lines("\u{1b}"), [(1, String::new())]);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let long = format!("{}\nb", "a".repeat(1 << 20));
        let all = lines(&long);
        assert_eq!((all[0].1.len(), all[1].1.as_str()), (MAX_LINE_BYTES, "b"));
    }
}
