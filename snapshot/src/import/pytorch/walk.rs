//! Converts the entries of a trace to events. Checks the entries against each other and against the state.

use std::collections::BTreeMap;

use millpond_engine::log::StreamKey;

use super::entry::{Action, Entry};
use super::phases::Phases;
use super::row::Row;
use super::stacks::Stacks;
use super::state::{Block, State};
use crate::budget::{Budget, Exceeded};
use crate::import::pickle::{Value, Values};
use crate::recording::{Event, EventKind, Id, Lane, Recording, StateCheck, cut};

/// The bytes of an entry in the map of live blocks, including the entry's share of the map's free space.
const LIVE_BYTES: usize = 64;

/// How many names of unknown actions are counted separately.
const MAX_NAMES: usize = 16;

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: u64,
    /// The index of the event that allocated the block.
    event: u32,
    /// Whether the program has freed the block.
    is_pending: bool,
}

/// The state of the conversion.
pub(super) struct Walk<'a> {
    values: &'a Values,
    state: &'a State,
    pub(super) recording: Recording,
    pub(super) stacks: Stacks,
    pub(super) phases: Phases,
    pub(super) budget: &'a mut Budget,
    knows_completions: bool,
    live: BTreeMap<u64, Live>,
    /// Reads the frame of a phase.
    phase: Row<2>,
    /// A `free_requested` entry whose `free_completed` entry may come next.
    requested: Option<Entry>,
    check: StateCheck,
    /// The unknown actions, each with the number of its entries.
    pub(super) unknown: Vec<(String, u64)>,
    pub(super) out_of_memory: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        values: &'a Values,
        state: &'a State,
        recording: Recording,
        stacks: Stacks,
        phases: Phases,
        knows_completions: bool,
        budget: &'a mut Budget,
    ) -> Self {
        Self {
            values,
            state,
            recording,
            stacks,
            phases,
            budget,
            knows_completions,
            live: BTreeMap::new(),
            phase: Row::new(["name", "filename"]),
            requested: None,
            check: StateCheck::default(),
            unknown: Vec::new(),
            out_of_memory: 0,
        }
    }

    /// Adds a segment or a block that is older than the trace.
    pub(super) fn before(&mut self, event: Event, stream: u64) -> Result<(), Exceeded> {
        let event = Event { is_before: true, ..event };
        self.place(event, stream, None)
    }

    /// Adds an entry of the trace.
    pub(super) fn entry(&mut self, entry: Entry) -> Result<(), Exceeded> {
        if let Some(requested) = self.requested.take() {
            if entry.action == Action::FreeCompleted && entry.address == requested.address {
                let frames = entry.frames.or(requested.frames);
                return self.event(EventKind::Free, Entry { frames, ..entry });
            }
            self.event(EventKind::FreeRequested, requested)?;
        }
        match entry.action {
            Action::Alloc => self.event(EventKind::Allocate, entry),
            Action::FreeRequested if self.knows_completions => {
                self.requested = Some(entry);
                Ok(())
            }
            Action::FreeRequested | Action::FreeCompleted => self.event(EventKind::Free, entry),
            Action::SegmentAlloc => self.event(EventKind::SegmentAllocate, entry),
            Action::SegmentFree => self.event(EventKind::SegmentFree, entry),
            Action::SegmentMap => self.event(EventKind::SegmentMap, entry),
            Action::SegmentUnmap => self.event(EventKind::SegmentUnmap, entry),
            Action::Snapshot => self.event(EventKind::Snapshot, entry),
            Action::Annotate => self.event(EventKind::Annotate, entry),
            Action::Oom => {
                self.out_of_memory += 1;
                self.event(EventKind::AllocateFailure, Entry { address: 0, ..entry })?;
                let free = entry.device_free;
                free.map_or(Ok(()), |bytes| self.recording.set_device_free(bytes, self.budget).map(drop))
            }
            Action::UserDefined => self.user_defined(entry),
            Action::Unknown(name) => {
                let name = self.values.as_text(name).unwrap_or("");
                let name: String = name.chars().take(40).flat_map(char::escape_debug).collect();
                match self.unknown.iter().position(|(known, _)| *known == name) {
                    Some(at) => self.unknown[at].1 += 1,
                    None if self.unknown.len() < MAX_NAMES => self.unknown.push((name, 1)),
                    None => {}
                }
                Ok(())
            }
        }
    }

    /// Reads a phase in the form that PyTorch wrote for some weeks in 2024: a frame whose function is START
    /// or END.
    fn user_defined(&mut self, entry: Entry) -> Result<(), Exceeded> {
        let frame = entry.frames.and_then(|frames| self.values.items(frames).next());
        let Some([stage, name]) = frame.and_then(|frame| self.phase.of(self.values, frame)) else {
            return Ok(());
        };
        let text = |value: Option<Value>| value.and_then(|value| self.values.as_text(value));
        let (Some(stage), Some(name)) = (text(stage), text(name)) else { return Ok(()) };
        let kind = if stage == "END" { EventKind::PhaseEnd } else { EventKind::PhaseStart };
        let tag = Some(self.recording.add_tag(name, self.budget)?);
        let event = Event { tag, raw_time: entry.time.unwrap_or(Event::NO_TIME), ..Event::new(kind) };
        self.place(event, entry.stream, None)
    }

    fn event(&mut self, kind: EventKind, entry: Entry) -> Result<(), Exceeded> {
        let lists = (entry.frames, entry.forward);
        let event = Event {
            address: entry.address,
            bytes: entry.bytes,
            raw_time: entry.time.unwrap_or(Event::NO_TIME),
            stack: self.stacks.with_forward(self.values, lists, &mut self.recording, self.budget)?,
            tag: self.tag(entry.texts)?,
            ..Event::new(kind)
        };
        self.place(event, entry.stream, entry.pool)
    }

    /// Joins the texts of an entry into one tag.
    fn tag(&mut self, texts: [Option<Value>; 3]) -> Result<Option<Id>, Exceeded> {
        // A file may repeat one long text in each entry.
        let text = |value: Option<Value>| {
            let text = value.and_then(|value| self.values.as_text(value)).map(cut)?;
            (!text.is_empty() && text != "N/A").then_some(text)
        };
        let [metadata, category, compile] = texts.map(text);
        let compile = compile.map(|compile| format!("compile {compile}"));
        let texts: Vec<&str> = [metadata, category, compile.as_deref()].into_iter().flatten().collect();
        if texts.is_empty() {
            return Ok(None);
        }
        self.recording.add_tag(&texts.join(" | "), self.budget).map(Some)
    }

    /// Adds an event. Before it, adds the phases that began or ended before the event.
    fn place(&mut self, event: Event, stream: u64, pool: Option<(u64, u64)>) -> Result<(), Exceeded> {
        if let Some(time) = event.time() {
            self.phases.until(time, &mut self.recording, self.budget)?;
        }
        let pool = match pool {
            Some(pool) => Some(pool),
            None if event.address != 0 => self.state.pool(event.address),
            None => None,
        };
        let lane = Lane { thread: 0, stream: stream_key(stream), pool };
        let event = Event { lane: self.recording.add_lane(lane, self.budget)?, ..event };
        match event.kind {
            EventKind::Allocate => self.allocate(&event)?,
            EventKind::FreeRequested => {
                if let Some(live) = self.live.get_mut(&event.address) {
                    live.is_pending = true;
                }
            }
            EventKind::Free => {
                self.budget.give_back(LIVE_BYTES);
                if self.live.remove(&event.address).is_none() {
                    self.check.unknown_frees += 1;
                    self.first(|| format!("a free of {:#x}, where no block is live", event.address));
                }
            }
            _ => {}
        }
        self.recording.push(event, self.budget)
    }

    fn allocate(&mut self, event: &Event) -> Result<(), Exceeded> {
        let Event { address, bytes, .. } = *event;
        let end = address.saturating_add(bytes.max(1));
        let last = self.live.range(..end).next_back().map(|(&start, &live)| (start, live));
        match last {
            Some((start, _)) if start == address => {
                self.check.double_allocations += 1;
                self.first(|| format!("an allocation at {address:#x}, where a block is live"));
            }
            Some((start, live)) if start.saturating_add(live.bytes) > address => {
                self.check.overlaps += 1;
                self.first(|| format!("the block at {address:#x} overlaps the block at {start:#x}"));
            }
            _ => {}
        }
        self.budget.take(LIVE_BYTES)?;
        let event = self.recording.len() as u32;
        self.live.insert(address, Live { bytes, event, is_pending: false });
        Ok(())
    }

    fn first(&mut self, what: impl Fn() -> String) {
        self.check.first.get_or_insert_with(what);
    }

    /// Compares the live blocks at the end with the state, and finishes the recording.
    pub(super) fn finish(mut self) -> Result<Self, Exceeded> {
        if let Some(requested) = self.requested.take() {
            self.event(EventKind::FreeRequested, requested)?;
        }
        self.phases.rest(&mut self.recording, self.budget)?;
        let state = self.state;
        for block in &state.blocks {
            self.compare(block)?;
        }
        self.check.extra_blocks = self.live.len() as u64;
        if let Some(address) = self.live.keys().next().copied() {
            self.first(|| {
                format!("the block at {address:#x} is live after the last event, but not in the state")
            });
        }
        self.live.clear();
        self.recording.check = Some(std::mem::take(&mut self.check));
        Ok(self)
    }

    fn compare(&mut self, block: &Block) -> Result<(), Exceeded> {
        let Block { address, bytes, rounded_bytes, is_pending, has_request, .. } = *block;
        let live = self.live.remove(&address);
        if let Some(live) = live {
            self.recording.set_rounded_bytes(live.event as usize, rounded_bytes, self.budget)?;
        }
        // If the trace has no completions, a free counts when the program requests it.
        if is_pending && live.is_none() && !self.knows_completions {
            return Ok(());
        }
        self.check.state_blocks += 1;
        self.check.state_bytes = self.check.state_bytes.saturating_add(bytes);
        match live {
            Some(live) if live.bytes == bytes || !has_request => {
                if live.is_pending == is_pending {
                    self.check.equal_blocks += 1;
                } else {
                    self.check.other_phases += 1;
                    self.first(|| {
                        format!(
                            "the block at {address:#x} waits for streams only after the last event or only \
                             in the state, not in both"
                        )
                    });
                }
            }
            Some(live) => {
                self.check.other_sizes += 1;
                let size = live.bytes;
                self.first(|| {
                    format!(
                        "the block at {address:#x} has {size} bytes in the events, but {bytes} bytes in the \
                         state"
                    )
                });
            }
            None => {
                self.check.missing_blocks += 1;
                self.first(|| {
                    format!("the block at {address:#x} is in the state, but not live after the last event")
                });
            }
        }
        Ok(())
    }
}

fn stream_key(handle: u64) -> StreamKey {
    match handle {
        0 | 1 => StreamKey::Legacy,
        2 => StreamKey::PerThread,
        _ => StreamKey::Handle(handle),
    }
}
