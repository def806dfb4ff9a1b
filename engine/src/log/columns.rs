//! The columns of a log.

use csv::ByteRecord;
use millpond_core::ALLOCATION_ALIGNMENT;

use super::field::{self, Field};
use super::{Action, Event, column};
use crate::text::number_of;

/// The columns that every log must have, which are RMM's columns.
const REQUIRED: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

/// Optional columns that RMM does not write.
const FURTHER: [&str; 5] = ["Device", "Alignment", "Sequence", "MonotonicNs", "DurationNs"];

/// The positions of the columns in one log.
#[derive(Clone, Default, Debug)]
pub(super) struct Columns {
    count: usize,
    required: [usize; REQUIRED.len()],
    further: [Option<usize>; FURTHER.len()],
    of_recordings: [Option<usize>; column::OF_RECORDINGS.len()],
}

/// The name of the column, if the error is about a column, and the reason.
pub(super) type RowError = (Option<&'static str>, String);

impl Columns {
    /// Finds the columns in a header.
    pub(super) fn new(header: &ByteRecord) -> Result<Self, RowError> {
        let position = |name: &str| header.iter().position(|column| column.trim_ascii() == name.as_bytes());
        let mut required = [0; REQUIRED.len()];
        for (index, name) in REQUIRED.iter().copied().enumerate() {
            required[index] = position(name).ok_or_else(|| {
                let reason = "the header lacks this column; a log starts with the line \
                              `Thread,Time,Action,Pointer,Size,Stream`, as RMM's logging adaptor writes it";
                (Some(name), reason.to_owned())
            })?;
        }
        let of_recordings = column::OF_RECORDINGS.map(position);
        Ok(Self { count: header.len(), required, further: FURTHER.map(position), of_recordings })
    }

    /// Returns whether the log has a column.
    pub(super) fn has(&self, name: &str) -> bool {
        let names = column::OF_RECORDINGS.iter().zip(&self.of_recordings);
        let mut names = names.chain(FURTHER.iter().zip(&self.further));
        names.any(|(known, place)| *known == name && place.is_some())
    }

    /// Returns a cell of a column that only recordings have. The cell is empty if the log has no such column.
    pub(super) fn of_recording<'a>(&self, row: &'a ByteRecord, name: &str) -> &'a [u8] {
        let column = column::OF_RECORDINGS.iter().position(|known| *known == name);
        let place = column.and_then(|column| self.of_recordings[column]);
        place.and_then(|place| row.get(place)).unwrap_or(b"")
    }

    /// Returns whether a row only carries notes. Such a row is a failed request for 0 bytes.
    pub(super) fn is_carrier(&self, row: &ByteRecord) -> bool {
        let alignment = self.further[1].and_then(|place| row.get(place)).unwrap_or(b"");
        let [_, _, action, pointer, size, _] = self.required.map(|place| row.get(place).unwrap_or(b""));
        let notes = self.of_recording(row, column::NOTES);
        (action, pointer, size) == (b"allocate failure", b"(nil)", b"0")
            && alignment.is_empty()
            && !notes.is_empty()
    }

    /// Reads one row.
    pub(super) fn event(&self, row: &ByteRecord, line: u64) -> Result<Event, RowError> {
        self.check_count(row)?;
        let [thread, time, action, pointer, size, stream] = self.required.map(|column| &row[column]);
        let event = Event {
            line,
            thread: required(0, field::number(thread, "a thread's number"))?,
            action: required(2, field::action(action))?,
            pointer: required(3, field::pointer(pointer))?,
            bytes: required(4, field::number(size, "a size in bytes"))?,
            stream: required(5, field::stream(stream))?,
            device: self.further(row, 0, field::device)?,
            alignment: self.further(row, 1, field::alignment)?.unwrap_or(ALLOCATION_ALIGNMENT),
            sequence: self.further(row, 2, |text| field::number(text, "a sequence number"))?,
            monotonic_ns: self.further(row, 3, |text| field::number(text, "nanoseconds"))?,
            duration_ns: self.further(row, 4, |text| field::number(text, "nanoseconds"))?,
        };
        required(1, field::time(time))?;
        if event.action == Action::Allocate && event.pointer.is_null() && event.bytes > 0 {
            let reason = format!("no block of {} bytes can be at (nil)", event.bytes);
            return Err((Some(REQUIRED[3]), reason));
        }
        Ok(event)
    }

    fn check_count(&self, row: &ByteRecord) -> Result<(), RowError> {
        if row.len() == self.count {
            return Ok(());
        }
        let missing = self.required.iter().position(|&column| column >= row.len());
        Err((
            missing.map(|index| REQUIRED[index]),
            format!(
                "the row has {}, but the header has {}",
                number_of(row.len() as u64, "column"),
                self.count
            ),
        ))
    }

    /// Reads an optional column. An empty cell means that there is no value.
    #[inline]
    fn further<T>(
        &self,
        row: &ByteRecord,
        index: usize,
        read: impl Fn(&[u8]) -> Field<T>,
    ) -> Result<Option<T>, RowError> {
        match self.further[index].map(|column| &row[column]) {
            None | Some(b"") => Ok(None),
            Some(text) => read(text).map(Some).map_err(|reason| (Some(FURTHER[index]), reason)),
        }
    }
}

#[inline]
fn required<T>(index: usize, field: Field<T>) -> Result<T, RowError> {
    field.map_err(|reason| (Some(REQUIRED[index]), reason))
}
