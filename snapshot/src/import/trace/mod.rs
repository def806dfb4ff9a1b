//! Traces of torch.profiler, as Chrome and Perfetto show them. The reader uses their memory events
//! (`profile_memory=True`).
//!
//! An event has an address, a size with a sign, and the device. It also has the bytes that the allocator used
//! and reserved after the event. A trace has no streams and no segments. If a block from before the trace is
//! freed in the trace, it is known. The sum of the other blocks from before the trace is also known.

mod guard;
mod json;
mod stacks;

use std::collections::HashMap;
use std::io::{BufReader, Read};

use super::left_out::left_out;
use super::options::Options;
use super::refusal::Refusal;
use crate::budget::{Budget, Exceeded};
use crate::recording::{Clock, Event, EventKind, Id, Lane, Recording, Source};

use guard::Guard;
use json::{RawEvent, Sink};
use stacks::Stacks;

/// The bytes of a map entry, including the entry's share of the map's free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// The most devices that the reader distinguishes.
const MOST_DEVICES: usize = 128;

/// The address distance before the block that stands for the other blocks from before the trace.
const APART: u64 = 2 << 20;

const PROFILE_AGAIN: &str = "profile with torch.profiler.profile(profile_memory=True, with_stack=True), or \
                             write a snapshot, which also has streams and segments, with \
                             torch.cuda.memory._record_memory_history() and \
                             torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";

/// A memory event.
#[derive(Clone, Copy, Debug)]
struct Memory {
    time: i64,
    index: i64,
    address: u64,
    bytes: i64,
    device: u32,
    thread: u64,
    allocated: Option<u64>,
    reserved: Option<u64>,
}

/// A step or another phase that the program named.
#[derive(Clone, Copy, Debug)]
struct Phase {
    time: i64,
    is_start: bool,
    tag: Id,
}

/// The content of a trace.
struct Trace<'a> {
    recording: Recording,
    budget: &'a mut Budget,
    events: Vec<Memory>,
    phases: Vec<Phase>,
    stacks: Stacks,
    base: u64,
    /// The number of memory events of the host.
    host: u64,
    has_events: bool,
    has_python: bool,
    exceeded: Option<Exceeded>,
}

/// Reads a trace.
///
/// # Errors
/// The file is not JSON, has no memory events of the device, or needs too much memory.
pub(super) fn import(
    name: &str,
    text: impl Read,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let mut trace = Trace {
        recording: Recording::new(name, Source::PYTORCH_TRACE),
        budget,
        events: Vec::new(),
        phases: Vec::new(),
        stacks: Stacks::default(),
        base: 0,
        host: 0,
        has_events: false,
        has_python: false,
        exceeded: None,
    };
    let read = json::read(BufReader::new(Guard::new(text)), &mut trace);
    if let Some(exceeded) = trace.exceeded {
        return Err(exceeded.into());
    }
    let mut is_cut_off = false;
    if let Err(error) = read {
        is_cut_off = error.is_eof() && !trace.events.is_empty();
        if !is_cut_off {
            return Err(wrong(error));
        }
    }
    trace.into_recording(options, is_cut_off)
}

fn wrong(error: serde_json::Error) -> Refusal {
    if error.is_eof() {
        return Refusal::new("is a trace that ends early: the file is truncated; copy it again");
    }
    let line = error.line() as u64;
    let (is_io, column) = (error.is_io(), error.column());
    if is_io {
        return std::io::Error::from(error).into();
    }
    if error.is_data() {
        let what = "is JSON whose `traceEvents` is not a list of events, so it is no trace";
        return Refusal::at_line(line, format!("{what}; {PROFILE_AGAIN}"));
    }
    Refusal::at_line(line, format!("is a trace with invalid JSON at column {column}; export it again"))
}

impl Sink for Trace<'_> {
    fn event(&mut self, event: &RawEvent) -> bool {
        self.has_events = true;
        let taken = self.take(event);
        self.exceeded = taken.err();
        self.exceeded.is_none()
    }

    fn base(&mut self, nanoseconds: i64) {
        self.base = u64::try_from(nanoseconds).unwrap_or(0);
    }
}

impl Trace<'_> {
    fn take(&mut self, event: &RawEvent) -> Result<(), Exceeded> {
        let Some(time) = event.ts.nanoseconds() else { return Ok(()) };
        let thread = event.tid.whole().and_then(|thread| u64::try_from(thread).ok()).unwrap_or(0);
        if event.name.text() == "[memory]" {
            return self.memory(event, time, thread);
        }
        if event.ph.text() != "X" {
            return Ok(());
        }
        let end = time.saturating_add(event.dur.nanoseconds().unwrap_or(0).max(0));
        match event.cat.text() {
            category @ ("python_function" | "cpu_op") => {
                self.has_python |= category == "python_function";
                self.stacks.add(event.name.text(), thread, (time, end), &mut self.recording, self.budget)
            }
            "user_annotation" => {
                let tag = self.recording.add_tag(event.name.text(), self.budget)?;
                self.budget.take(2 * 3 * size_of::<Phase>())?;
                self.phases.push(Phase { time, is_start: true, tag });
                self.phases.push(Phase { time: end, is_start: false, tag });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn memory(&mut self, event: &RawEvent, time: i64, thread: u64) -> Result<(), Exceeded> {
        let args = &event.args;
        let device = args.device.whole().unwrap_or(-1);
        let is_host = args.device_type.whole() == Some(0) || args.device_type.text() == "CPU" || device < 0;
        let device = u32::try_from(device).ok().filter(|_| !is_host);
        let bytes = args.bytes.whole().and_then(|bytes| i64::try_from(bytes).ok());
        // Old versions of torch.profiler wrote addresses as signed numbers.
        let address = args.address.whole().and_then(|address| {
            u64::try_from(address).ok().or_else(|| i64::try_from(address).ok().map(i64::cast_unsigned))
        });
        let (Some(device), Some(bytes), Some(address)) = (device, bytes, address) else {
            self.host += u64::from(device.is_none());
            return Ok(());
        };
        if bytes == 0 || address == 0 {
            return Ok(());
        }
        let sum = |sum: &json::Scalar| sum.whole().and_then(|sum| u64::try_from(sum).ok());
        self.budget.take(3 * size_of::<Memory>())?;
        self.events.push(Memory {
            time,
            index: args.index.whole().and_then(|index| i64::try_from(index).ok()).unwrap_or(i64::MAX),
            address,
            bytes,
            device,
            thread,
            allocated: sum(&args.allocated),
            reserved: sum(&args.reserved),
        });
        Ok(())
    }

    fn into_recording(mut self, options: &Options, is_cut_off: bool) -> Result<Recording, Refusal> {
        if self.events.is_empty() {
            let what = match (self.has_events, self.host) {
                (false, _) => {
                    "is an empty trace: nothing ran between the start and the stop of the profiler, or its \
                     schedule recorded no step"
                }
                (true, 0) => "is a trace for Chrome or Perfetto without memory events",
                (true, _) => "is a trace for Chrome or Perfetto with memory events only for the host",
            };
            return Err(Refusal::new(format!("{what}; {PROFILE_AGAIN}")));
        }
        let left_out = self.choose(options.device)?;
        self.events.sort_by_key(|event| (event.time, event.index));
        self.phases.sort_by_key(|phase| (phase.time, phase.is_start));
        let moments: Vec<(u64, i64)> = self.events.iter().map(|event| (event.thread, event.time)).collect();
        self.budget.take(2 * size_of_val(moments.as_slice()))?;
        let has_calls = !self.stacks.is_empty();
        let stacks = std::mem::take(&mut self.stacks).at(&moments, &mut self.recording, self.budget)?;
        let (early, rest) = self.before()?;
        let sums = Sums {
            events: self.events.len(),
            left_out,
            last: self.events.last().and_then(|event| event.allocated),
            most_reserved: self.events.iter().filter_map(|event| event.reserved).max(),
        };
        self.push_before(early, rest)?;
        self.push_events(&stacks)?;
        self.describe(sums, rest, has_calls, is_cut_off);
        Ok(self.recording)
    }

    /// Keeps the events of one device: the requested device, or else the busiest one. Returns how many other
    /// devices there are.
    fn choose(&mut self, wanted: Option<u32>) -> Result<usize, Refusal> {
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for event in &self.events {
            if counts.len() < MOST_DEVICES || counts.contains_key(&event.device) {
                *counts.entry(event.device).or_default() += 1;
            }
        }
        let busiest = counts.iter().max_by_key(|&(device, count)| (*count, std::cmp::Reverse(*device)));
        let device = wanted.or_else(|| busiest.map(|(device, _)| *device)).unwrap_or(0);
        let all = self.events.len();
        self.events.retain(|event| event.device == device);
        if self.events.is_empty() {
            let mut others: Vec<u32> = counts.into_keys().collect();
            others.sort_unstable();
            let others: Vec<String> = others.iter().take(16).map(u32::to_string).collect();
            let others = others.join(", ");
            return Err(Refusal::new(format!(
                "has no events of device {device}, only of device {others}; choose another device with \
                 --device"
            )));
        }
        self.recording.device = Some(device);
        Ok(all - self.events.len())
    }

    /// Returns two results. The first is the blocks that are freed without an allocation, by address. The
    /// second is the bytes of blocks from before the trace that the trace never frees, which follow from the
    /// sums.
    fn before(&mut self) -> Result<(Vec<(u64, u64)>, u64), Refusal> {
        let mut seen: HashMap<u64, ()> = HashMap::new();
        let mut early = Vec::new();
        for event in &self.events {
            if seen.insert(event.address, ()).is_none() {
                self.budget.take(MAP_ENTRY_BYTES)?;
                if event.bytes < 0 {
                    self.budget.take(3 * size_of::<(u64, u64)>())?;
                    early.push((event.address, event.bytes.unsigned_abs()));
                }
            }
        }
        early.sort_unstable();
        let first = self.events.first();
        let sum =
            first.and_then(|first| Some(i128::from(first.allocated?) - i128::from(first.bytes))).unwrap_or(0);
        let known: i128 = early.iter().map(|&(_, bytes)| i128::from(bytes)).sum();
        Ok((early, u64::try_from(sum - known).unwrap_or(0)))
    }

    fn push_before(&mut self, early: Vec<(u64, u64)>, rest: u64) -> Result<(), Exceeded> {
        let lane = self.recording.add_lane(Lane::default(), self.budget)?;
        for (address, bytes) in early {
            let event = Event { address, bytes, lane, is_before: true, ..Event::new(EventKind::Allocate) };
            self.recording.push(event, self.budget)?;
        }
        let end =
            self.events.iter().map(|event| event.address.saturating_add(event.bytes.unsigned_abs())).max();
        let address = end.unwrap_or(0).checked_next_multiple_of(APART).and_then(|end| end.checked_add(APART));
        if let Some(address) = address.filter(|_| rest > 0) {
            let tag = Some(self.recording.add_tag("blocks from before the trace", self.budget)?);
            let event =
                Event { address, bytes: rest, lane, tag, is_before: true, ..Event::new(EventKind::Allocate) };
            self.recording.push(event, self.budget)?;
        }
        Ok(())
    }

    /// Adds the events and phases in the order of their times.
    fn push_events(&mut self, stacks: &[Option<Id>]) -> Result<(), Exceeded> {
        let base = self.base;
        let clock = move |time: i64| base.saturating_add_signed(time);
        // If the trace has no base, times of old versions count from 1970.
        let is_unix =
            base > 0 || self.events.first().is_some_and(|event| event.time > 1_000_000_000_000_000_000);
        self.recording.clock = if is_unix { Clock::Unix } else { Clock::Monotonic };
        let mut phases = std::mem::take(&mut self.phases).into_iter().peekable();
        for (event, stack) in std::mem::take(&mut self.events).into_iter().zip(stacks) {
            while let Some(phase) = phases.next_if(|phase| phase.time <= event.time) {
                self.push_phase(phase, clock(phase.time))?;
            }
            let Memory { address, bytes, thread, .. } = event;
            let kind = if bytes > 0 { EventKind::Allocate } else { EventKind::Free };
            let lane = self.recording.add_lane(Lane { thread, ..Lane::default() }, self.budget)?;
            let event = Event {
                address,
                bytes: bytes.unsigned_abs(),
                raw_time: clock(event.time),
                lane,
                stack: *stack,
                ..Event::new(kind)
            };
            self.recording.push(event, self.budget)?;
        }
        for phase in phases {
            self.push_phase(phase, clock(phase.time))?;
        }
        Ok(())
    }

    fn push_phase(&mut self, phase: Phase, raw_time: u64) -> Result<(), Exceeded> {
        let kind = if phase.is_start { EventKind::PhaseStart } else { EventKind::PhaseEnd };
        let event = Event { raw_time, tag: Some(phase.tag), ..Event::new(kind) };
        self.recording.push(event, self.budget)
    }

    /// Lists the details, and the data that the trace lacks.
    fn describe(&mut self, sums: Sums, rest: u64, has_calls: bool, is_cut_off: bool) {
        let recording = &mut self.recording;
        recording.detail("memory events", sums.events);
        if let Some(bytes) = sums.most_reserved {
            recording.detail("most bytes reserved", bytes);
        }
        recording.unknown("segments", "the trace does not show segments, so fragmentation is not known");
        recording.unknown(
            "streams",
            "the trace does not name the streams, so all events count as events of one stream",
        );
        recording.unknown("rounded", "the sizes are as the allocator rounded them");
        let live = recording.sums().live_bytes;
        if let Some(last) = sums.last.filter(|&last| last != live) {
            let text = format!("the events leave {live} bytes live, but the allocator counted {last} bytes");
            recording.unknown("sums_differ", text);
        }
        if rest > 0 {
            let text = "older blocks that the trace never frees are drawn as one block, because only their \
                        sum is known";
            recording.unknown("blocks_before", text);
        }
        if !has_calls {
            let text = "the trace does not show which code allocates: record with \
                        torch.profiler.profile(with_stack=True)";
            recording.unknown("stacks", text);
        } else if !self.has_python {
            let text = "the trace shows operators, but no Python functions: record with with_stack=True";
            recording.unknown("stacks", text);
        }
        if self.host > 0 {
            recording.unknown("host_memory", left_out(self.host, "event", "of host memory"));
        }
        if sums.left_out > 0 {
            let text = left_out(sums.left_out as u64, "event", "of other devices");
            recording.unknown("other_device", format!("{text}; `explain --device N` shows another device"));
        }
        if is_cut_off {
            recording.unknown("rest_missing", "the trace ends early, so its rest is missing");
        }
    }
}

/// Figures over the events of the device, in bytes.
struct Sums {
    events: usize,
    /// How many events of other devices were left out.
    left_out: usize,
    /// The bytes that the allocator used after the last event.
    last: Option<u64>,
    most_reserved: Option<u64>,
}
