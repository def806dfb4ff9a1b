//! Logs with RMM's columns, with or without the columns of a recording.

mod before;
mod notes;

use std::io::Read;

use millpond_core::DeviceId;
use millpond_engine::log::{self, Action, LogError, LogReader, column};

use super::options::Options;
use super::refusal::Refusal;
use crate::budget::Budget;
use crate::recording::{Clock, Event, EventKind, Lane, Recording, note_text};

use before::Before;
use notes::Notes;

/// Reads a log.
///
/// # Errors
/// A row cannot be read, or the log needs too much memory.
pub(super) fn import(
    name: &str,
    text: impl Read + Send,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let mut reader = LogReader::from_reader(name, text).map_err(refusal)?;
    let mut recording = Recording::new(name, "RMM log");
    let is_recording = reader.has_column(column::NOTES);
    recording.clock = match () {
        () if reader.has_column(column::STEP) => Clock::Steps,
        () if reader.has_column(column::UNIX) => Clock::Unix,
        () => Clock::Monotonic,
    };
    let mut notes = Notes::default();
    let mut devices = Devices { wanted: options.device, first: None, left_out: 0 };
    let mut before = Before::default();
    while let Some(row) = reader.next_row() {
        let row = row.map_err(refusal)?;
        let mut add = |recording: &mut Recording| {
            let carried = cell(&reader, column::NOTES)?;
            if !carried.is_empty() {
                notes.read(carried, recording, budget)?;
            }
            if !reader.is_carrier() && devices.takes(recording, row.device) {
                let event = event(&reader, &row, &notes, recording, budget)?;
                if !is_recording {
                    before.note(&event, row.line, budget)?;
                }
            }
            Ok(())
        };
        if let Err(Refusal { text, .. }) = add(&mut recording) {
            let error = LogError::new(name, row.line, text);
            reader.cut_off(error).map_err(refusal)?;
        }
    }
    if recording.is_empty() && !is_recording {
        return Err(Refusal::new("has a header but no rows"));
    }
    let rest_missing = reader.rest_missing().map(ToString::to_string);
    for (code, text) in before.finish(&mut recording, rest_missing) {
        recording.unknown(code, text);
    }
    if !is_recording {
        unknowns(&mut recording);
    }
    devices.tell(&mut recording);
    Ok(recording)
}

/// Adds the event of a row, and returns it.
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
            Some(known.ok_or_else(|| wrong(column::STACK, format!("stack {id} is not defined")))?)
        }
        None => None,
    };
    let tag = match cell(reader, column::TAG)? {
        "" => None,
        word => {
            let text = note_text(word).ok_or_else(|| wrong(column::TAG, "it is not a word".to_owned()))?;
            Some(recording.add_tag(&text, budget)?)
        }
    };
    let pool = match cell(reader, column::POOL)? {
        "" => None,
        text => {
            let pool = notes::pool(text);
            Some(pool.ok_or_else(|| wrong(column::POOL, "a pool is written as 0:0".to_owned()))?)
        }
    };
    let kind = match row.action {
        Action::Allocate => EventKind::Allocate,
        Action::Free => EventKind::Free,
        Action::AllocateFailure => EventKind::AllocateFailure,
    };
    let event = Event {
        is_before: cell(reader, column::BEFORE)? == "1",
        alignment_log2: row.alignment.trailing_zeros() as u8,
        lane: recording.add_lane(Lane { thread: row.thread, stream: row.stream, pool }, budget)?,
        address: row.pointer.address(),
        bytes: row.bytes,
        raw_time: time.unwrap_or(Event::NO_TIME),
        stack,
        tag,
        ..Event::new(kind)
    };
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

/// Lists the gaps of every RMM log.
fn unknowns(recording: &mut Recording) {
    recording.unknown(
        "other_allocators",
        "the log has neither memory allocated outside of the logged resource nor memory that the resource \
         took from the driver",
    );
    recording.unknown("stacks", "the log does not say which code asked for a block");
    if recording.stream_count() > 1 {
        recording.unknown("stream_order", "the log does not say how the streams are ordered");
    }
    if recording.clock() == Clock::Monotonic && recording.events().all(|event| event.time().is_none()) {
        recording.unknown("times", "the log's times of day are not read: events have an order but no time");
    }
}

/// Chooses the device whose rows are read.
struct Devices {
    /// The requested ordinal.
    wanted: Option<u32>,
    /// The device whose rows are read. A simulated device may have the same ordinal as a real one.
    first: Option<DeviceId>,
    left_out: u64,
}

impl Devices {
    /// Returns whether a row is read: it belongs to the requested device, or else to the first row's device.
    fn takes(&mut self, recording: &mut Recording, device: Option<DeviceId>) -> bool {
        let Some(device) = device else { return true };
        let is_wanted = self.wanted.is_none_or(|wanted| device.ordinal() == wanted);
        if is_wanted && *self.first.get_or_insert(device) == device {
            recording.device = Some(device.ordinal());
            recording.is_simulated = device.is_sim();
            return true;
        }
        self.left_out += 1;
        false
    }

    fn tell(&self, recording: &mut Recording) {
        if self.left_out > 0 {
            let text = format!("rows of other devices were left out: {}", self.left_out);
            recording.unknown("other_device", text);
        }
    }
}

fn refusal(error: LogError) -> Refusal {
    let text = match error.column {
        Some(column) => format!("column {column}: {}", error.reason),
        None => error.reason,
    };
    Refusal::at_line(error.line, text)
}
