//! minimalloc's CSV: the lifetimes and the sizes of buffers, for offline placement.
//!
//! A buffer lives from `lower` to before `upper`. The column names `buffer`, `buffer_id`, `begin`, `start`
//! and
//! `end` stand for `id`, `lower` and `upper`; an `end` is the last step of the buffer, so one less than
//! `upper`.

use std::io::{BufRead, BufReader, Read};

use millpond_engine::log::MAX_LINE_BYTES;

use crate::budget::Budget;
use crate::import::refusal::Refusal;
use crate::recording::{Clock, Event, EventKind, Lane, Recording};

/// The first address that is given to buffers, since the file has offsets at most.
const BASE: u64 = 1 << 32;

/// The places of the columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    /// Whether the upper end is the last step of the buffer.
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

/// Whether a line is the header of such a file.
pub(super) fn is_header(line: &str) -> bool {
    columns(line).is_some()
}

fn columns(header: &str) -> Option<Columns> {
    let names: Vec<&str> = header.trim_end().split(',').map(str::trim).collect();
    let place = |wanted: &[&str]| names.iter().position(|name| wanted.contains(name));
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

/// Reads rows into buffers.
struct Rows<'a> {
    recording: Recording,
    budget: &'a mut Budget,
    lane: u32,
    header: Option<Columns>,
    buffers: Vec<Buffer>,
    /// The address of the next buffer without an offset.
    next_address: u64,
    /// The buffers that have gaps.
    gaps: u64,
}

/// Reads the buffers.
///
/// # Errors
/// A row cannot be read, there is none, or there are too many for the budget.
pub(super) fn import(name: &str, text: impl Read, budget: &mut Budget) -> Result<Recording, Refusal> {
    let mut text = BufReader::new(text);
    let mut recording = Recording::new(name, "minimalloc CSV");
    recording.clock = Clock::Steps;
    let lane = recording.add_lane(Lane::default(), budget)?;
    let (header, buffers, next_address) = (None, Vec::new(), BASE);
    let mut rows = Rows { recording, budget, lane, header, buffers, next_address, gaps: 0 };
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        line.clear();
        let limit = MAX_LINE_BYTES as u64 + 1;
        if (&mut text).take(limit).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        number += 1;
        rows.line(&line).map_err(|error| Refusal { line: number, ..error })?;
    }
    rows.finish()
}

impl Rows<'_> {
    /// Reads a line.
    fn line(&mut self, line: &[u8]) -> Result<(), Refusal> {
        if line.len() > MAX_LINE_BYTES {
            return Err(Refusal::new("a line is longer than 64 KiB"));
        }
        let row = std::str::from_utf8(line).map_err(|_| Refusal::new("the row is not UTF-8 text"))?;
        let row = row.trim_start_matches('\u{feff}').trim();
        match self.header {
            _ if row.is_empty() => Ok(()),
            Some(columns) => self.row(columns, row),
            None => {
                self.header = Some(columns(row).ok_or_else(|| Refusal::new("the header lacks a column"))?);
                Ok(())
            }
        }
    }

    /// Reads a buffer.
    fn row(&mut self, columns: Columns, row: &str) -> Result<(), Refusal> {
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let cell = |place: usize| cells.get(place).copied().unwrap_or("");
        let value = |place: usize, what: &str| {
            let text = cell(place);
            let number = text.parse::<u64>();
            number.map_err(|_| Refusal::new(format!("`{}` is not {what}", text.escape_debug())))
        };
        let optional = |place: Option<usize>, what: &str| match place {
            Some(place) if !cell(place).is_empty() => value(place, what).map(Some),
            _ => Ok(None),
        };
        let (lower, end) = (value(columns.lower, "a first step")?, value(columns.upper, "a last step")?);
        let upper = end.checked_add(u64::from(columns.is_inclusive)).filter(|&upper| lower < upper);
        let upper = upper
            .ok_or_else(|| Refusal::new(format!("the buffer ends at {end}, before it begins at {lower}")))?;
        let bytes = value(columns.size, "a size in bytes")?;
        let alignment = optional(columns.alignment, "an alignment in bytes")?.unwrap_or(1).max(1);
        if !alignment.is_power_of_two() {
            return Err(Refusal::new(format!("the alignment {alignment} is not a power of two")));
        }
        self.gaps += u64::from(columns.gaps.is_some_and(|place| !cell(place).is_empty()));
        let address = match optional(columns.offset, "an offset")? {
            Some(offset) => BASE.checked_add(offset),
            None => self.place(bytes, alignment.max(256)),
        };
        let address = address.ok_or_else(|| Refusal::new("the buffers do not fit into 64 bits"))?;
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

    /// An address of its own for a buffer without an offset; `None` if there is none left.
    fn place(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let address = self.next_address.checked_next_multiple_of(alignment)?;
        self.next_address = address.checked_add(bytes.max(1))?;
        Some(address)
    }

    fn finish(self) -> Result<Recording, Refusal> {
        let Self { mut recording, budget, header, buffers, gaps, .. } = self;
        if buffers.is_empty() {
            return Err(Refusal::new("has a header and no buffer"));
        }
        if gaps > 0 {
            let text =
                format!("gaps, in which a buffer is not used, are not read; buffers with gaps: {gaps}");
            recording.unknown("gaps", text);
        }
        if header.is_some_and(|columns| columns.offset.is_none()) {
            let text = "the file has no offsets: each buffer has an address of its own";
            recording.unknown("addresses", text);
        }
        recording.unknown("threads", "the file does not say which thread or stream uses a buffer");
        recording.unknown("times", "the file has steps and no time");
        events(&mut recording, &buffers, budget)?;
        Ok(recording)
    }
}

/// Adds the events in the order of their steps; at one step, frees come first.
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
