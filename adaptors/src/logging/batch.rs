//! Consecutive rows of an asynchronous log, on their way to the destination.

use std::io;

use super::record::Record;
use super::sink::Sink;
use super::text::Text;

/// Consecutive rows, and later their text.
#[derive(Debug)]
pub(super) struct Batch {
    /// The number of the first row.
    pub(super) first_row: u64,
    /// The rows, in the order of their numbers.
    pub(super) records: Vec<Record>,
    text: Text,
}

impl Batch {
    pub(super) fn new(text: Text) -> Self {
        Self { first_row: 0, records: Vec::new(), text }
    }

    /// Formats the rows.
    pub(super) fn make_text(&mut self) {
        self.records.iter().for_each(|record| self.text.row(record, record.number));
    }

    /// Writes the text to the destination, and empties the batch.
    pub(super) fn write_to(&mut self, sink: &mut Sink) -> io::Result<()> {
        self.records.clear();
        self.text.take(|text, rows| sink.write(text, rows))
    }
}
