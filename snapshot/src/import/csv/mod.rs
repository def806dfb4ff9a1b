//! Reads logs with RMM's columns. A log may also have the columns of a recording.

mod before;
mod mixed;
mod notes;
mod numbers;
mod overlaps;

use std::collections::BTreeMap;
use std::io::Read;

use millpond_core::DeviceId;
use millpond_engine::log::{self, Action, ChosenDevice, LogError, LogReader, column};
use millpond_engine::program::for_each_row;
use millpond_engine::text::number_of;

use super::left_out::left_out;
use super::no_stacks::no_stacks;
use super::options::Options;
use super::refusal::Refusal;
use crate::budget::{Budget, Exceeded};
use crate::recording::{Clock, Event, EventKind, Lane, Recording, Source};

use before::Before;
use mixed::Mixed;
use notes::Notes;

pub(super) use mixed::{is_mixed, is_start};

/// The most logs in one file.
const MOST_LOGS: u64 = 64;

/// The bytes of an entry in the map of live blocks, including the entry's share of the map's free space.
const LIVE_BYTES: usize = 96;

/// Reads a log. The file may have lines of other programs between the rows, or other logs after the first
/// one.
///
/// # Errors
/// A row cannot be read, or the log needs too much memory.
pub(super) fn import(
    name: &str,
    text: impl Read + Send,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    logs(name, Mixed::new(text, 1), true, options, budget)
}

/// Reads the logs in a text whose first line has this number.
///
/// # Errors
/// Returns the errors of [`import`].
pub(super) fn import_from(
    name: &str,
    text: impl Read + Send,
    number: u64,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    logs(name, Mixed::new(text, number), false, options, budget)
}

fn logs(
    name: &str,
    mut text: Mixed<impl Read + Send>,
    mut is_log: bool,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let mut recording = Recording::new(name, Source::RMM);
    let mut devices = ChosenDevice::new(options.device);
    let (mut before, mut rest_missing) = (Before::default(), None);
    let (mut count, mut is_recording, mut first) = (0, false, 0);
    while let Some(line) = text.next_log(std::mem::take(&mut is_log))? {
        count += 1;
        if count > MOST_LOGS {
            return Err(Refusal::at_line(
                line,
                "holds more than 64 logs one after the other; split the file",
            ));
        }
        let of_file = |error: Refusal| match error.line {
            0 => error,
            number => Refusal { line: (number + line).saturating_sub(1), ..error },
        };
        if count > 1 {
            before.end_log();
            first = end_log(&mut recording, first, budget)?;
        }
        let reader = LogReader::from_reader(name, &mut text).map_err(refusal).map_err(of_file)?;
        if count == 1 {
            is_recording = reader.has_column(column::NOTES);
            recording.clock = clock(&reader);
            if reader.has_column(column::SEQUENCE) {
                Source::MILLPOND_LOG.clone_into(&mut recording.source.format);
            }
        }
        let before = (!is_recording).then_some(&mut before);
        let missing = rows(reader, &mut recording, &mut devices, before, budget).map_err(of_file)?;
        rest_missing = rest_missing.or(missing.map(|mut error| {
            error.line = (error.line + line).saturating_sub(1);
            error
        }));
    }
    if recording.is_empty() && !is_recording {
        return Err(Refusal::new(match text.others {
            0 => "has a header but no rows".to_owned(),
            others => format!("has a header and {}, but no rows", number_of(others, "other line")),
        }));
    }
    for (code, text) in before.finish(&mut recording, rest_missing.map(|error| error.to_string())) {
        recording.unknown(code, text);
    }
    if !is_recording {
        unknowns(&mut recording);
    }
    if devices.left_out() > 0 {
        recording.unknown("other_device", ChosenDevice::sentence(devices.left_out()));
    }
    if count > 1 {
        let text =
            format!("the file holds {count} logs one after the other; each log begins without live blocks");
        recording.unknown("several_logs", text);
    }
    if let Some(line) = text.first_other {
        let text = left_out(text.others, "line", "without a row");
        recording.unknown("other_lines", format!("{text}; the first is line {line}"));
    }
    Ok(recording)
}

fn clock(reader: &LogReader<'_>) -> Clock {
    match () {
        () if reader.has_column(column::STEP) => Clock::Steps,
        () if reader.has_column(column::UNIX) => Clock::Unix,
        () => Clock::Monotonic,
    }
}

/// Adds the events of one log. If the rest of the log is missing, returns the reason.
fn rows(
    mut reader: LogReader<'_>,
    recording: &mut Recording,
    devices: &mut ChosenDevice,
    mut before: Option<&mut Before>,
    budget: &mut Budget,
) -> Result<Option<LogError>, Refusal> {
    // The columns of recordings need the text of each row.
    if !column::OF_RECORDINGS.iter().any(|name| reader.has_column(name)) {
        for_each_row(&mut reader, |row, _| {
            let row = row.map_err(refusal)?;
            plain_row(&row, recording, devices, before.as_deref_mut(), budget)
                .map_err(|error| Refusal { line: row.line, ..error.into() })
        })?;
        return Ok(reader.rest_missing().cloned());
    }
    let mut notes = Notes::default();
    while let Some(row) = reader.next_row() {
        let row = row.map_err(refusal)?;
        let mut add = |recording: &mut Recording| {
            let carried = cell(&reader, column::NOTES)?;
            if !carried.is_empty() {
                notes.read(carried, recording, budget)?;
            }
            if !reader.is_carrier() && takes(devices, recording, row.device) {
                let event = event(&reader, &row, &notes, recording, budget)?;
                if let Some(before) = &mut before {
                    before.note(&event, row.line, budget)?;
                }
            }
            Ok(())
        };
        if let Err(Refusal { text, .. }) = add(recording) {
            let error = LogError::new(reader.file(), row.line, text);
            reader.cut_off(error).map_err(refusal)?;
        }
    }
    Ok(reader.rest_missing().cloned())
}

/// Ends the blocks and segments that became live since the event with this number, because another log
/// begins. Returns the number of events.
fn end_log(recording: &mut Recording, first: usize, budget: &mut Budget) -> Result<usize, Refusal> {
    let mut live: BTreeMap<(bool, u64), Event> = BTreeMap::new();
    for number in first..recording.len() {
        let Some(&event) = recording.event(number) else { break };
        let (is_segment, end) = match event.kind {
            EventKind::Allocate => (false, Some(EventKind::Free)),
            EventKind::Free => (false, None),
            EventKind::SegmentAllocate => (true, Some(EventKind::SegmentFree)),
            EventKind::SegmentMap => (true, Some(EventKind::SegmentUnmap)),
            EventKind::SegmentFree | EventKind::SegmentUnmap => (true, None),
            _ => continue,
        };
        match end {
            Some(kind) => {
                let end = Event {
                    kind,
                    is_before: false,
                    raw_time: Event::NO_TIME,
                    stack: None,
                    tag: None,
                    ..event
                };
                if live.insert((is_segment, event.address), end).is_none() {
                    budget.take(LIVE_BYTES)?;
                }
            }
            None => {
                if live.remove(&(is_segment, event.address)).is_some() {
                    budget.give_back(LIVE_BYTES);
                }
            }
        }
    }
    recording.push(Event::new(EventKind::Lost), budget)?;
    let count = live.len();
    for event in live.into_values() {
        recording.push(event, budget)?;
    }
    budget.give_back(count * LIVE_BYTES);
    Ok(recording.len())
}

/// Adds the event of a row that only has the columns of a log.
fn plain_row(
    row: &log::Event,
    recording: &mut Recording,
    devices: &mut ChosenDevice,
    before: Option<&mut Before>,
    budget: &mut Budget,
) -> Result<(), Exceeded> {
    if !takes(devices, recording, row.device) {
        return Ok(());
    }
    let event = base(row, None, recording, budget)?;
    recording.push(event, budget)?;
    before.map_or(Ok(()), |before| before.note(&event, row.line, budget))
}

/// Returns the event of a row, with its time on a monotonic clock.
fn base(
    row: &log::Event,
    pool: Option<(u64, u64)>,
    recording: &mut Recording,
    budget: &mut Budget,
) -> Result<Event, Exceeded> {
    let kind = match row.action {
        Action::Allocate => EventKind::Allocate,
        Action::Free => EventKind::Free,
        Action::AllocateFailure => EventKind::AllocateFailure,
    };
    Ok(Event {
        alignment_log2: row.alignment.trailing_zeros() as u8,
        lane: recording.add_lane(Lane { thread: row.thread, stream: row.stream, pool }, budget)?,
        address: row.pointer.address(),
        bytes: row.bytes,
        raw_time: row.monotonic_ns.unwrap_or(Event::NO_TIME),
        ..Event::new(kind)
    })
}

/// Adds the event of a row of a recording, and returns it.
fn event(
    reader: &LogReader<'_>,
    row: &log::Event,
    notes: &Notes,
    recording: &mut Recording,
    budget: &mut Budget,
) -> Result<Event, Refusal> {
    let wrong = |name: &str, why: String| Refusal::new(format!("column {name}: {why}"));
    let number = |name| {
        let cell = cell(reader, name)?;
        let number = (!cell.is_empty()).then(|| cell.parse::<u64>());
        let number = number.transpose();
        number.map_err(|_| wrong(name, format!("`{}` is not a number", cell.escape_debug())))
    };
    let time = match recording.clock {
        Clock::Unix => number(column::UNIX)?,
        Clock::Monotonic => row.monotonic_ns,
        Clock::Steps => number(column::STEP)?,
    };
    let stack = match number(column::STACK)? {
        Some(id) => {
            let known = notes.stack(id);
            Some(known.ok_or_else(|| wrong(column::STACK, format!("no row defines call stack {id}")))?)
        }
        None => None,
    };
    let tag = match cell(reader, column::TAG)? {
        "" => None,
        word => {
            let text = log::notes::text(word)
                .ok_or_else(|| wrong(column::TAG, "the value is not a word".to_owned()))?;
            Some(recording.add_tag(&text, budget)?)
        }
    };
    let pool = match cell(reader, column::POOL)? {
        "" => None,
        text => {
            let pool = notes::pool(text);
            Some(pool.ok_or_else(|| wrong(column::POOL, "a pool must be two numbers, as in 0:0".to_owned()))?)
        }
    };
    let base = base(row, pool, recording, budget)?;
    let is_before = cell(reader, column::BEFORE)? == "1";
    let event = Event { is_before, raw_time: time.unwrap_or(Event::NO_TIME), stack, tag, ..base };
    if let Some(rounded) = number(column::ROUNDED)? {
        recording.set_rounded_bytes(recording.len(), rounded, budget)?;
    }
    recording.push(event, budget)?;
    Ok(event)
}

/// Returns a cell of the last row, from a column that only recordings have.
fn cell<'a>(reader: &'a LogReader<'_>, name: &str) -> Result<&'a str, Refusal> {
    let cell = std::str::from_utf8(reader.cell(name));
    cell.map_err(|_| Refusal::new(format!("column {name} is not UTF-8 text")))
}

/// Lists the data that every RMM log lacks.
fn unknowns(recording: &mut Recording) {
    recording.unknown(
        "other_allocators",
        "the log does not show memory that was allocated outside of the logged resource, or memory that the \
         resource took from the driver",
    );
    let stacks = no_stacks(&recording.source.format);
    recording.unknown("stacks", stacks);
    if recording.stream_count() > 1 {
        recording.unknown("stream_order", "the log does not record how the streams are ordered");
    }
    if recording.clock() == Clock::Monotonic && recording.events().all(|event| event.time().is_none()) {
        recording.unknown("times", "the log's times of day are not read: events have an order but no time");
    }
}

/// Returns whether a row is read: it belongs to the requested device, or else to the first row's device.
fn takes(devices: &mut ChosenDevice, recording: &mut Recording, device: Option<DeviceId>) -> bool {
    let is_taken = devices.takes(device);
    if let Some(device) = device.filter(|_| is_taken) {
        recording.device = Some(device.ordinal());
        recording.is_simulated = device.is_sim();
    }
    is_taken
}

fn refusal(error: LogError) -> Refusal {
    let text = match error.column {
        Some(column) => format!("column {column}: {}", error.reason),
        None => error.reason,
    };
    Refusal::at_line(error.line, text)
}
