//! The rows of a table with commas.

use std::io::Read;

use csv::{Reader, ReaderBuilder, Terminator, Trim};

/// The rows of a text, cells without the space around them. No quoting: a stray quote would swallow rows.
/// `\n` alone ends a row, so that lines can be counted.
pub(super) fn rows<R: Read>(text: R) -> Reader<R> {
    let mut rows = ReaderBuilder::new();
    rows.has_headers(false).flexible(true).quoting(false);
    rows.terminator(Terminator::Any(b'\n')).trim(Trim::All).from_reader(text)
}
