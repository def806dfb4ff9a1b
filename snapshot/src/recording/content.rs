//! A recording: the events of one device, and their call stacks, tags and streams.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use millpond_engine::log::Flaws;
use millpond_engine::log::notes::origin;
use serde::Serialize;

use super::texts::{RawFrame, Table};
use super::{Event, EventKind, Id, Lane, StateCheck};
use crate::blocks::Blocks;
use crate::budget::{Budget, Exceeded};
use crate::frames::{Frame, Kind, classify, common_folder, is_native};

/// The most bytes of a text that is kept: a name, a tag, a setting. A line of a log contains several texts,
/// and may write each character as three characters.
const MAX_TEXT_BYTES: usize = 2048;

/// The most frames of a call stack that are kept, counted from the innermost frame.
const MAX_FRAMES: usize = 2048;

/// The bytes of an entry in the maps of rounded sizes and of free bytes, including the entry's share of the
/// map's free space.
const ENTRY_BYTES: usize = 32;

/// The codes of gaps that mean that the beginning of the recording is missing.
const LATE: [&str; 3] = ["no_trace", "ring_wrapped", Flaws::BEGAN_LATE];

/// The codes of gaps and contradictions that readers of the figures must know.
const DOUBTS: [&str; 9] = [
    "no_trace",
    "ring_wrapped",
    Flaws::BEGAN_LATE,
    Flaws::REPEATED_FREES,
    Flaws::DUPLICATE_ALLOCATIONS,
    Flaws::SIZE_MISMATCHES,
    Flaws::REST_MISSING,
    "other_device",
    OVERLAPS,
];

/// The code of live blocks that overlap, so that the addresses of the file are wrong.
pub(crate) const OVERLAPS: &str = "overlaps";

/// The codes of gaps that mean that allocations or frees of the program are missing.
const INCOMPLETE: [&str; 5] =
    ["no_trace", "ring_wrapped", Flaws::BEGAN_LATE, Flaws::REST_MISSING, "no_frees"];

/// The unit of the times in a recording.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Clock {
    /// Nanoseconds since 1970.
    #[default]
    Unix,
    /// Nanoseconds of a monotonic clock.
    Monotonic,
    /// Steps of a source that has no clock.
    Steps,
}

/// The format of a file, and its details.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct Source {
    /// The name of the format, such as `PyTorch memory snapshot`.
    pub format: String,
    /// Pairs of a name and a value: versions, counts of entries, other devices.
    pub details: Vec<(String, String)>,
}

/// A gap: data that a recording lacks, or that an importer had to leave out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Unknown {
    /// A name that programs can test, such as `no_trace`.
    pub code: String,
    /// A sentence for people.
    pub text: String,
}

/// The memory events of one device, as one source recorded them.
///
/// ```
/// use millpond_snapshot::import::{self, Options};
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &Options::default())?;
/// assert_eq!(recording.source().format, "minimalloc CSV");
/// assert_eq!(recording.len(), 4);
/// # Ok::<(), millpond_engine::log::LogError>(())
/// ```
#[derive(Debug)]
pub struct Recording {
    pub(crate) file: String,
    pub(crate) source: Source,
    pub(crate) device: Option<u32>,
    pub(crate) is_simulated: bool,
    pub(crate) clock: Clock,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) unknowns: Vec<Unknown>,
    pub(crate) check: Option<StateCheck>,
    /// The events from before the recording, which were found at the end of the import. They come before all
    /// other events.
    before: Vec<Event>,
    events: Blocks<Event>,
    /// The rounded sizes of blocks by the number of the event, if the source records them.
    rounded: HashMap<u32, u64>,
    /// The free bytes of the device at failed requests, by the number of the event.
    device_free: HashMap<u32, u64>,
    lanes: Table<Lane>,
    tags: Table<Box<str>>,
    names: Table<Box<str>>,
    frames: Table<RawFrame>,
    stacks: Table<Box<[Id]>>,
    kinds: OnceLock<Kinds>,
}

/// The kinds of all frames. They are found when the first of them is needed.
#[derive(Debug)]
pub(super) struct Kinds {
    /// The kinds by the number of the frame.
    kinds: Vec<Kind>,
    /// The folder that contains all files of the user.
    pub(super) folder: String,
}

impl Kinds {
    /// Returns the kind of the frame with this number.
    pub(super) fn of(&self, frame: Id) -> Option<Kind> {
        self.kinds.get(frame.get() as usize - 1).copied()
    }

    /// Returns whether there is a frame of this kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }
}

impl Source {
    /// The format of PyTorch's memory snapshots.
    pub(crate) const PYTORCH: &'static str = "PyTorch memory snapshot";
    /// The format of snapshots that millpond writes in PyTorch's form.
    pub(crate) const MILLPOND: &'static str = "millpond memory snapshot";
    /// The format of PyTorch's out-of-memory messages.
    pub(crate) const PYTORCH_MESSAGE: &'static str = "PyTorch out-of-memory message";
    /// The format of messages that page-locked memory of the host could not be allocated.
    pub(crate) const PINNED_MESSAGE: &'static str = "message about page-locked memory";
    /// The format of traces of torch.profiler.
    pub(crate) const PYTORCH_TRACE: &'static str = "torch.profiler trace";
    /// The format of dumps of TensorFlow's and XLA's allocator.
    pub(crate) const BFC: &'static str = "BFC allocator's log";
    /// The format of logs with RMM's columns.
    pub(crate) const RMM: &'static str = "RMM log";
    /// The format of logs with the columns that only millpond's layer `logging` writes.
    pub(crate) const MILLPOND_LOG: &'static str = "millpond log";
    /// The format of the files that `millpond-replay run` writes.
    pub(crate) const DRIVER_CALLS: &'static str = origin::DRIVER_CALLS;
    /// The format of RMM's error texts.
    pub(crate) const RMM_MESSAGE: &'static str = "RMM error text";
    /// The format of RMM's debug logs.
    pub(crate) const RMM_DEBUG: &'static str = "RMM debug log";
}

impl Recording {
    /// The name of the detail with the size of the device.
    pub(crate) const DEVICE_BYTES: &'static str = origin::DEVICE_BYTES;
    /// The name of the detail with the most bytes that the allocator may use.
    pub(crate) const LIMIT_BYTES: &'static str = origin::LIMIT_BYTES;
    /// The name of the detail with the bytes of RMM's pool when a request failed.
    pub(crate) const POOL_BYTES: &'static str = "bytes of the pool";
    /// The name of the detail with all bytes of this process, also outside of the allocator.
    pub(crate) const OWN_BYTES: &'static str = "bytes of this process";
    /// The name of the detail with the cause that the text of a failed request names: one of the next two.
    pub(crate) const CAUSE: &'static str = "cause";
    pub(crate) const POOL_LIMIT: &'static str = "the pool has its maximum size";
    pub(crate) const DEVICE_FULL: &'static str = "the driver had no memory";
    /// The start of the name of a detail with the bytes of another process, before the process's number.
    pub(crate) const PROCESS: &'static str = "bytes of process ";
    /// The name of the detail with the allocator of a framework that has several.
    pub(crate) const ALLOCATOR: &'static str = "allocator";
    /// PyTorch's allocator that passes all requests on to the driver.
    pub(crate) const ASYNC: &'static str = "cudaMallocAsync";
    /// The name of the detail with the versions of PyTorch that write such a file: one of the next three.
    pub(crate) const VERSION: &'static str = "version of PyTorch";
    pub(crate) const UP_TO_1_3: &'static str = "1.3 or earlier";
    pub(crate) const UP_TO_2_0: &'static str = "1.4 to 2.0";
    pub(crate) const SINCE_2_1: &'static str = "2.1 or later";

    /// Returns an empty recording.
    pub(crate) fn new(file: impl Into<String>, format: &str) -> Self {
        Self {
            file: file.into(),
            source: Source { format: format.to_owned(), details: Vec::new() },
            device: None,
            is_simulated: false,
            clock: Clock::default(),
            settings: Vec::new(),
            unknowns: Vec::new(),
            check: None,
            before: Vec::new(),
            events: Blocks::new(),
            rounded: HashMap::default(),
            device_free: HashMap::default(),
            lanes: Table::default(),
            tags: Table::default(),
            names: Table::default(),
            frames: Table::default(),
            stacks: Table::default(),
            kinds: OnceLock::new(),
        }
    }

    /// Returns the name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the format and the details of the file.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the ordinal of the device, if the source records it.
    pub fn device(&self) -> Option<u32> {
        self.device
    }

    /// Returns whether the device is simulated. Simulated devices have their own ordinals.
    pub fn is_simulated(&self) -> bool {
        self.is_simulated
    }

    /// Returns the name of the device: `3`, or `sim:3` if it is simulated.
    pub fn device_name(&self) -> Option<String> {
        let kind = if self.is_simulated { "sim:" } else { "" };
        self.device.map(|ordinal| format!("{kind}{ordinal}"))
    }

    /// Returns the size of the device in bytes, if the source records it.
    pub fn device_bytes(&self) -> Option<u64> {
        self.bytes_of(Self::DEVICE_BYTES)
    }

    /// Returns the most bytes that the allocator may use, if the source records such a limit.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.bytes_of(Self::LIMIT_BYTES)
    }

    /// Returns the bytes of the allocator's pool when a request failed, if the source records them.
    pub(crate) fn pool_bytes(&self) -> Option<u64> {
        self.bytes_of(Self::POOL_BYTES)
    }

    /// Returns the bytes that this process had taken from the device, if the source records them.
    pub(crate) fn own_bytes(&self) -> Option<u64> {
        self.bytes_of(Self::OWN_BYTES)
    }

    /// Returns the other processes that used the device when a request failed, with their bytes.
    pub(crate) fn other_processes(&self) -> impl Iterator<Item = (&str, u64)> {
        let details = self.source.details.iter();
        details.filter_map(|(name, bytes)| Some((name.strip_prefix(Self::PROCESS)?, bytes.parse().ok()?)))
    }

    /// Returns whether the source has only sums of bytes. In this case, the live blocks and the free pieces
    /// of memory are not known.
    pub fn has_sums_only(&self) -> bool {
        self.lacks("sums_only")
    }

    /// Returns whether the source has only failed requests. In this case, the live blocks are not known.
    pub fn has_failures_only(&self) -> bool {
        self.lacks("no_blocks")
    }

    /// Returns whether the failed request asked for page-locked memory of the host.
    pub(crate) fn asked_for_pinned_memory(&self) -> bool {
        self.source.format == Source::PINNED_MESSAGE
    }

    /// Returns an error if the source has no blocks that an allocator could serve.
    ///
    /// # Errors
    /// The source has only sums, or only failed requests.
    pub fn require_blocks(&self) -> Result<(), String> {
        match self.has_sums_only() || self.has_failures_only() {
            true => {
                Err("does not show which blocks were live; `millpond-replay explain` shows its sums"
                    .to_owned())
            }
            false => Ok(()),
        }
    }

    /// Returns whether the recording has a gap with this code.
    pub(crate) fn lacks(&self, code: &str) -> bool {
        self.unknowns.iter().any(|unknown| unknown.code == code)
    }

    /// Returns the value of a detail of the source.
    pub(crate) fn detail_of(&self, name: &str) -> Option<&str> {
        let detail = self.source.details.iter().find(|(known, _)| known == name)?;
        Some(&detail.1)
    }

    /// Returns the size in a detail of the source.
    fn bytes_of(&self, name: &str) -> Option<u64> {
        self.detail_of(name)?.parse().ok()
    }

    /// Returns the unit of times.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the settings of the allocator, under the names in the source.
    pub fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    /// Returns the gaps: the data that the recording lacks.
    pub fn unknowns(&self) -> &[Unknown] {
        &self.unknowns
    }

    /// Returns the result of comparing the live blocks after the last event with the state in the file.
    /// Returns `None` if the file has no state.
    pub fn check(&self) -> Option<&StateCheck> {
        self.check.as_ref()
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.before.len() + self.events.len()
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the events, in the order in which the allocator saw them.
    pub fn events(&self) -> impl Iterator<Item = &Event> + Clone + '_ {
        (0..self.len()).map(|at| self.at(at))
    }

    /// Returns the event with this number. The event must exist.
    pub fn event(&self, number: usize) -> Option<&Event> {
        (number < self.len()).then(|| self.at(number))
    }

    /// Returns the event with this number, which exists.
    pub(super) fn at(&self, number: usize) -> &Event {
        match number.checked_sub(self.before.len()) {
            Some(number) => self.events.of(number),
            None => &self.before[number],
        }
    }

    /// Returns the thread, the stream and the pool of an event.
    pub fn lane(&self, event: &Event) -> Lane {
        self.lanes.values().get(event.lane as usize).copied().unwrap_or_default()
    }

    /// Returns whether some memory belongs to private pools, as the memory of CUDA graphs does.
    pub(crate) fn has_private_pools(&self) -> bool {
        self.lanes().iter().any(Lane::is_private)
    }

    /// Returns the rounded size of the block that the event with this number allocated, if the source records
    /// it.
    pub fn rounded_bytes(&self, number: usize) -> Option<u64> {
        self.rounded.get(&u32::try_from(number).ok()?).copied()
    }

    /// Returns the free bytes of the device when the request with this number failed, if the source records
    /// them.
    pub fn device_free_bytes(&self, number: usize) -> Option<u64> {
        self.device_free.get(&u32::try_from(number).ok()?).copied()
    }

    /// Returns the text of a tag.
    pub fn tag(&self, tag: Id) -> &str {
        self.tags.get(tag).map_or("", |text| text)
    }

    /// Returns the frames of a call stack, the innermost first.
    pub fn stack(&self, stack: Id) -> impl Iterator<Item = Frame<'_>> + '_ {
        let frames = self.stacks.get(stack).map_or(&[][..], |frames| frames);
        frames.iter().filter_map(|&frame| self.frame(frame))
    }

    /// Returns the number of different call stacks, and the number of different frames in them.
    pub fn stack_counts(&self) -> (usize, usize) {
        (self.stacks.values().len(), self.frames.values().len())
    }

    /// Returns all combinations of thread, stream and pool.
    pub fn lanes(&self) -> &[Lane] {
        self.lanes.values()
    }

    /// Returns the number of different streams.
    pub fn stream_count(&self) -> usize {
        self.lanes().iter().map(Lane::own_stream).collect::<HashSet<_>>().len()
    }

    pub(super) fn frame(&self, frame: Id) -> Option<Frame<'_>> {
        self.frames.get(frame).map(|&raw| self.resolved(raw))
    }

    fn resolved(&self, raw: RawFrame) -> Frame<'_> {
        let name = |id| self.names.get(id).map_or("", Box::as_ref);
        Frame { function: name(raw.function), file: name(raw.file), line: raw.line }
    }

    /// Returns the kinds of the frames. The recording must be complete.
    pub(super) fn kinds(&self) -> &Kinds {
        self.kinds.get_or_init(|| {
            let frames = self.frames.values().iter().map(|&raw| self.resolved(raw));
            let classified: Vec<(Frame<'_>, Kind)> = frames.map(|frame| (frame, classify(frame))).collect();
            let own = classified.iter().filter(|(frame, kind)| {
                *kind == Kind::User && !frame.file.starts_with('<') && !is_native(*frame)
            });
            let folder = common_folder(own.map(|(frame, _)| frame.file));
            Kinds { kinds: classified.into_iter().map(|(_, kind)| kind).collect(), folder }
        })
    }

    /// Returns the frames of a call stack as numbers.
    pub(super) fn raw_stack(&self, stack: Id) -> &[Id] {
        self.stacks.get(stack).map_or(&[], |frames| frames)
    }

    /// Adds a gap. That the rest of the file is missing comes first, because it affects all other figures.
    pub(crate) fn unknown(&mut self, code: &str, text: impl AsRef<str>) {
        let at = if code == Flaws::REST_MISSING { 0 } else { self.unknowns.len() };
        let unknown = Unknown { code: cut(code).to_owned(), text: cut(text.as_ref()).to_owned() };
        self.unknowns.insert(at, unknown);
    }

    pub(crate) fn detail(&mut self, name: &str, value: impl ToString) {
        self.source.details.push((cut(name).to_owned(), cut(&value.to_string()).to_owned()));
    }

    pub(crate) fn setting(&mut self, name: &str, value: &str) {
        self.settings.push((cut(name).to_owned(), cut(value).to_owned()));
    }

    pub(crate) fn push(&mut self, event: Event, budget: &mut Budget) -> Result<(), Exceeded> {
        self.events.push(event, budget).map(drop)
    }

    /// Puts events before all other events. No event may have a rounded size or free bytes, because these are
    /// stored by event number.
    pub(crate) fn set_before(&mut self, events: Vec<Event>) {
        let is_numbered = !self.rounded.is_empty() || !self.device_free.is_empty();
        debug_assert!(!is_numbered || events.is_empty(), "sizes are stored by event number");
        self.before = events;
    }

    /// Returns the gaps and contradictions that readers of the recording's figures must know: it begins late,
    /// is cut off, contradicts itself, or is of one device of several.
    pub fn doubts(&self) -> impl Iterator<Item = &Unknown> {
        self.unknowns.iter().filter(|unknown| DOUBTS.contains(&unknown.code.as_str()))
    }

    /// Returns whether the beginning of the program is missing, so that the real peak may be missing, too.
    pub fn begins_late(&self) -> bool {
        self.unknowns.iter().any(|unknown| LATE.contains(&unknown.code.as_str()))
    }

    /// Returns the first gap that hides allocations or frees of the program: the recording begins late, ends
    /// early, or has no frees.
    pub fn missing_part(&self) -> Option<&Unknown> {
        self.unknowns.iter().find(|unknown| INCOMPLETE.contains(&unknown.code.as_str()))
    }

    /// Stores the rounded size of an event's block.
    pub(crate) fn set_rounded_bytes(
        &mut self,
        event: usize,
        rounded_bytes: u64,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        budget.take(ENTRY_BYTES)?;
        self.rounded.insert(event as u32, rounded_bytes);
        Ok(())
    }

    /// Stores the free bytes of the device for the last event, if that event is a failed request. Returns
    /// whether it is.
    pub(crate) fn set_device_free(&mut self, bytes: u64, budget: &mut Budget) -> Result<bool, Exceeded> {
        let last = self.len().checked_sub(1).filter(|&last| self.at(last).kind == EventKind::AllocateFailure);
        let Some(last) = last else { return Ok(false) };
        budget.take(ENTRY_BYTES)?;
        self.device_free.insert(last as u32, bytes);
        Ok(true)
    }

    pub(crate) fn add_lane(&mut self, lane: Lane, budget: &mut Budget) -> Result<u32, Exceeded> {
        // Most events have the same lane as the previous event.
        if let Some(last) = self.len().checked_sub(1).map(|last| self.at(last).lane)
            && self.lanes.values().get(last as usize) == Some(&lane)
        {
            return Ok(last);
        }
        Ok(self.lanes.number(lane, 0, budget)?.get() - 1)
    }

    pub(crate) fn add_tag(&mut self, tag: &str, budget: &mut Budget) -> Result<Id, Exceeded> {
        let tag = cut(tag);
        self.tags.number(tag.into(), tag.len(), budget)
    }

    pub(crate) fn add_frame(&mut self, frame: Frame<'_>, budget: &mut Budget) -> Result<Id, Exceeded> {
        let [function, file] = [cut(frame.function), cut(frame.file)];
        let raw = RawFrame {
            function: self.names.number(function.into(), function.len(), budget)?,
            file: self.names.number(file.into(), file.len(), budget)?,
            line: frame.line,
        };
        self.frames.number(raw, 0, budget)
    }

    pub(crate) fn add_stack(&mut self, frames: &[Id], budget: &mut Budget) -> Result<Id, Exceeded> {
        let frames = &frames[..frames.len().min(MAX_FRAMES)];
        self.stacks.number(frames.into(), size_of_val(frames), budget)
    }
}

impl PartialEq for Recording {
    /// Compares everything except the names of the files.
    fn eq(&self, other: &Self) -> bool {
        let resolved = |recording: &Self, event: &Event| {
            let stack = event.stack.map(|id| recording.raw_stack(id).to_vec());
            let frames: Option<Vec<_>> = stack.map(|ids| {
                let frames = ids.into_iter().filter_map(|id| recording.frame(id));
                frames.map(|frame| (frame.function.to_owned(), frame.file.to_owned(), frame.line)).collect()
            });
            let tag = event.tag.map(|id| recording.tag(id).to_owned());
            let plain = Event { lane: 0, stack: None, tag: None, ..*event };
            (plain, recording.lane(event), frames, tag)
        };
        let heads = |recording: &Self| {
            let Self { source, clock, settings, unknowns, check, .. } = recording;
            let by_number = (recording.rounded.clone(), recording.device_free.clone());
            (
                source.clone(),
                recording.device_name(),
                *clock,
                settings.clone(),
                unknowns.clone(),
                check.clone(),
                by_number,
            )
        };
        heads(self) == heads(other)
            && self.len() == other.len()
            && self.events().zip(other.events()).all(|(a, b)| resolved(self, a) == resolved(other, b))
    }
}

/// Returns the part of a text that is kept: its start.
pub(crate) fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
