//! minimalloc's CSV: the lifetimes and the sizes of buffers, for offline placement.
//!
//! A buffer lives from `lower` up to, but not including, `upper`. The columns `buffer`, `buffer_id`, `begin`
//! and `start` are other names for `id` and `lower`. The column `end` replaces `upper`: it is the buffer's
//! last step, so it is one less. A cell in quotes may hold commas, but not the end of a line.

use std::io::{BufRead, BufReader, Read};

use csv::StringRecord;
use millpond_engine::log::Lines;
use millpond_engine::text::number_of;

use crate::budget::Budget;
use crate::import::refusal::Refusal;
use crate::import::table;
use crate::recording::{Clock, Event, EventKind, Lane, Recording};

/// The first address for buffers. The file itself has offsets at most.
const BASE: u64 = 1 << 32;

/// The positions of the columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    /// Whether the column is `end`: the last step in which the buffer lives.
    is_inclusive: bool,
    size: usize,
    alignment: Option<usize>,
    offset: Option<usize>,
    gaps: Option<usize>,
}

/// One buffer.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    lower: u64,
    upper: u64,
    event: Event,
}

/// Returns whether a row is the header of such a file.
pub(super) fn is_header(row: &StringRecord) -> bool {
    columns(row).is_some()
}

fn columns(header: &StringRecord) -> Option<Columns> {
    let place = |wanted: &[&str]| header.iter().position(|name| wanted.contains(&name));
    let upper = place(&["upper"]);
    Some(Columns {
        id: place(&["id", "buffer", "buffer_id"])?,
        lower: place(&["lower", "begin", "start"])?,
        upper: upper.or_else(|| place(&["end"]))?,
        is_inclusive: upper.is_none(),
        size: place(&["size"])?,
        alignment: place(&["alignment"]),
        offset: place(&["offset"]),
        gaps: place(&["gaps"]),
    })
}

const NO_COLUMN: &str =
    "the header lacks a required column; the required columns are id, lower, upper and size";

/// Converts rows to buffers.
struct Rows<'a> {
    recording: Recording,
    budget: &'a mut Budget,
    lane: u32,
    header: Option<Columns>,
    buffers: Vec<Buffer>,
    /// The address of the next buffer that has no offset.
    next_address: u64,
    /// The number of buffers that have gaps in their lifetime.
    gaps: u64,
}

/// Reads the buffers.
///
/// # Errors
/// A row cannot be read, there are no rows, or the rows need more memory than the budget allows.
pub(super) fn import(name: &str, text: impl Read, budget: &mut Budget) -> Result<Recording, Refusal> {
    let mut recording = Recording::new(name, "minimalloc CSV");
    recording.clock = Clock::Steps;
    let lane = recording.add_lane(Lane::default(), budget)?;
    let (header, buffers, next_address) = (None, Vec::new(), BASE);
    let mut rows = Rows { recording, budget, lane, header, buffers, next_address, gaps: 0 };
    let (mut text, mut bytes) = (BufReader::new(Lines::new(text)), Vec::new());
    for number in 1.. {
        bytes.clear();
        let read = text.read_until(b'\n', &mut bytes);
        if read.map_err(|error| Refusal { line: number, ..error.into() })? == 0 {
            break;
        }
        let line = str::from_utf8(&bytes);
        let line = line.map_err(|_| Refusal::at_line(number, "the row is not UTF-8 text"))?;
        let row = table::row(if number == 1 { line.trim_start_matches('\u{feff}') } else { line });
        let row = row.ok_or_else(|| Refusal::at_line(number, "a cell in quotes has no end on its line"))?;
        rows.row(&row).map_err(|error| Refusal { line: number, ..error })?;
    }
    rows.finish()
}

impl Rows<'_> {
    /// Reads a row: the header, or a buffer.
    fn row(&mut self, row: &StringRecord) -> Result<(), Refusal> {
        match self.header {
            _ if row.len() == 1 && row[0].is_empty() => Ok(()),
            Some(columns) => self.buffer(columns, row),
            None => {
                self.header = Some(columns(row).ok_or_else(|| Refusal::new(NO_COLUMN))?);
                Ok(())
            }
        }
    }

    /// Reads a buffer.
    fn buffer(&mut self, columns: Columns, row: &StringRecord) -> Result<(), Refusal> {
        let cell = |place: usize| row.get(place).unwrap_or("");
        let value = |place: usize, what: &str| {
            let text = cell(place);
            let number = text.parse::<u64>();
            number.map_err(|_| {
                let text = text.escape_debug();
                Refusal::new(format!("{what} must be a whole number, not `{text}`"))
            })
        };
        let optional = |place: Option<usize>, what: &str| match place {
            Some(place) if !cell(place).is_empty() => value(place, what).map(Some),
            _ => Ok(None),
        };
        let (lower, end) =
            (value(columns.lower, "the begin of a buffer")?, value(columns.upper, "the end of a buffer")?);
        let upper = end.checked_add(u64::from(columns.is_inclusive)).filter(|&upper| lower < upper);
        let upper = upper.ok_or_else(|| {
            Refusal::new(format!("the buffer's end, {end}, must be after its begin, {lower}"))
        })?;
        let bytes = value(columns.size, "the size in bytes")?;
        let alignment = optional(columns.alignment, "the alignment in bytes")?.unwrap_or(1).max(1);
        if !alignment.is_power_of_two() {
            return Err(Refusal::new(format!("the alignment {alignment} is not a power of two")));
        }
        self.gaps += u64::from(columns.gaps.is_some_and(|place| !cell(place).is_empty()));
        let address = match optional(columns.offset, "an offset")? {
            Some(offset) => BASE.checked_add(offset),
            None => self.place(bytes, alignment.max(256)),
        };
        let address =
            address.ok_or_else(|| Refusal::new("the sizes of all buffers together exceed 64 bits"))?;
        let event = Event {
            address,
            bytes,
            lane: self.lane,
            alignment_log2: alignment.max(256).trailing_zeros() as u8,
            tag: Some(self.recording.add_tag(cell(columns.id), self.budget)?),
            ..Event::new(EventKind::Allocate)
        };
        self.budget.take(3 * size_of::<Buffer>())?;
        self.buffers.push(Buffer { lower, upper, event });
        Ok(())
    }

    /// Returns a fresh address for a buffer that has no offset. Returns `None` if no address is left.
    fn place(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let address = self.next_address.checked_next_multiple_of(alignment)?;
        self.next_address = address.checked_add(bytes.max(1))?;
        Some(address)
    }

    fn finish(self) -> Result<Recording, Refusal> {
        let Self { mut recording, budget, header, buffers, gaps, .. } = self;
        if buffers.is_empty() {
            return Err(Refusal::new("has a header but no buffers"));
        }
        if gaps > 0 {
            let buffers = number_of(gaps, "buffer");
            let text =
                format!("the gaps of {buffers} are ignored: a buffer is live from its begin to its end");
            recording.unknown("gaps", text);
        }
        if header.is_some_and(|columns| columns.offset.is_none()) {
            let text = "the file has no offsets: each buffer gets its own address";
            recording.unknown("addresses", text);
        }
        recording.unknown("threads", "the file does not record which thread or stream uses a buffer");
        recording.unknown("times", "the file has steps but no times");
        events(&mut recording, &buffers, budget)?;
        Ok(recording)
    }
}

/// Adds the events in the order of their steps. Within a step, frees come first.
fn events(recording: &mut Recording, buffers: &[Buffer], budget: &mut Budget) -> Result<(), Refusal> {
    budget.take(buffers.len() * 2 * size_of::<(u64, bool, u32)>())?;
    let mut order: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * buffers.len());
    for (at, buffer) in buffers.iter().enumerate() {
        order.extend([(buffer.lower, true, at as u32), (buffer.upper, false, at as u32)]);
    }
    order.sort_unstable();
    for (step, is_start, at) in order {
        let kind = if is_start { EventKind::Allocate } else { EventKind::Free };
        recording.push(Event { kind, raw_time: step, ..buffers[at as usize].event }, budget)?;
    }
    Ok(())
}
