//! minimalloc's CSV: the lifetimes and the sizes of buffers, for offline placement.
//!
//! A buffer lives from `lower` to before `upper`. The column names `buffer`, `buffer_id`, `begin`, `start` and
//! `end` stand for `id`, `lower` and `upper`; an `end` is the last step of the buffer, so one less than `upper`.

use std::io::{BufRead, BufReader, Read};

use crate::budget::Budget;
use crate::import::refusal::Refusal;
use crate::log::MAX_LINE_BYTES;
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

/// Reads the buffers.
///
/// # Errors
/// A row cannot be read, there is none, or there are too many for the budget.
pub(super) fn import(name: &str, text: impl Read, budget: &mut Budget) -> Result<Recording, Refusal> {
    let mut text = BufReader::new(text);
    let mut line = Vec::new();
    let mut recording = Recording::new(name, "minimalloc CSV");
    recording.clock = Clock::Steps;
    let lane = recording.add_lane(Lane::default(), budget)?;
    let mut header = None;
    let mut buffers: Vec<Buffer> = Vec::new();
    let (mut number, mut next_address, mut gaps) = (0, BASE, 0_u64);
    loop {
        line.clear();
        let limit = MAX_LINE_BYTES as u64 + 1;
        if (&mut text).take(limit).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        number += 1;
        let fail = |why: String| Refusal::at_line(number, why);
        if line.len() > MAX_LINE_BYTES {
            return Err(fail("a line is longer than 64 KiB".to_owned()));
        }
        let row = std::str::from_utf8(&line).map_err(|_| fail("the row is not UTF-8 text".to_owned()))?;
        let row = row.trim_start_matches('\u{feff}').trim();
        if row.is_empty() {
            continue;
        }
        let Some(columns) = header else {
            header = Some(columns(row).ok_or_else(|| fail("the header lacks a column".to_owned()))?);
            continue;
        };
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let cell = |place: usize| cells.get(place).copied().unwrap_or("");
        let value = |place: usize, what: &str| {
            let text = cell(place);
            let number = text.parse::<u64>();
            number.map_err(|_| fail(format!("`{}` is not {what}", text.escape_debug())))
        };
        let optional = |place: Option<usize>, what: &str| match place {
            Some(place) if !cell(place).is_empty() => value(place, what).map(Some),
            _ => Ok(None),
        };
        let (lower, end) = (value(columns.lower, "a first step")?, value(columns.upper, "a last step")?);
        let upper = end.checked_add(u64::from(columns.is_inclusive));
        let Some(upper) = upper.filter(|&upper| lower < upper) else {
            return Err(fail(format!("the buffer ends at {end}, before it begins at {lower}")));
        };
        let bytes = value(columns.size, "a size in bytes")?;
        let alignment = optional(columns.alignment, "an alignment in bytes")?.unwrap_or(1).max(1);
        if !alignment.is_power_of_two() {
            return Err(fail(format!("the alignment {alignment} is not a power of two")));
        }
        gaps += u64::from(columns.gaps.is_some_and(|place| !cell(place).is_empty()));
        let address = match optional(columns.offset, "an offset")? {
            Some(offset) => BASE.checked_add(offset),
            None => Some(next_address),
        };
        let room = bytes.max(1).checked_next_multiple_of(alignment.max(256));
        let (Some(address), Some(room)) = (address, room) else {
            return Err(fail("the buffers do not fit into 64 bits".to_owned()));
        };
        if columns.offset.is_none() {
            next_address = address
                .checked_add(room)
                .ok_or_else(|| fail("the buffers do not fit into 64 bits".to_owned()))?;
        }
        let event = Event {
            address,
            bytes,
            lane,
            alignment_log2: alignment.max(256).trailing_zeros() as u8,
            tag: Some(recording.add_tag(cell(columns.id), budget)?),
            ..Event::new(EventKind::Allocate)
        };
        budget.take(3 * size_of::<Buffer>())?;
        buffers.push(Buffer { lower, upper, event });
    }
    if buffers.is_empty() {
        return Err(Refusal::new("has a header and no buffer"));
    }
    if gaps > 0 {
        let text = format!("gaps, in which a buffer is not used, are not read: {gaps} buffers have some");
        recording.unknown("gaps", text);
    }
    if header.is_some_and(|columns| columns.offset.is_none()) {
        recording.unknown("addresses", "the file has no offsets: each buffer has an address of its own");
    }
    recording.unknown("threads", "the file does not say which thread or stream uses a buffer");
    recording.unknown("times", "the file has steps and no time");
    events(&mut recording, &buffers, budget)?;
    Ok(recording)
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
