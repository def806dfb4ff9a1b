//! The rows of a table whose cells are separated by commas.

use std::io::Read;

use csv::{Reader, ReaderBuilder, Terminator, Trim};

/// Returns the rows of a text. Spaces around a cell are removed. Quotes have no meaning, because a stray
/// quote would swallow rows. Only `\n` ends a row, so that lines can be counted.
pub(super) fn rows<R: Read>(text: R) -> Reader<R> {
    let mut rows = ReaderBuilder::new();
    rows.has_headers(false).flexible(true).quoting(false);
    rows.terminator(Terminator::Any(b'\n')).trim(Trim::All).from_reader(text)
}
