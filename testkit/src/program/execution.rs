//! The state of a running program.

use std::sync::Arc;

use millpond_core::driver::{Event as EventHandle, EventFlags, StreamFlags};
use millpond_core::{AnyResource, DevicePtr, Driver, DriverError, Layout, StreamRef};
use millpond_driver::sim::{FaultPlan, SimDevice};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::broken::{Broken, unexpected};
use super::capture::{CaptureId, Captures};
use super::op::{Block, Event, MAX_EVENTS, MAX_STREAMS, Mistake, Op, Stream};
use super::order::{Clock, Order, Point};
use super::pieces::Graphs;
use super::scope::{ScopeId, Scopes};
use super::{Config, Summary};
use crate::Checked;
use crate::guest::Guest;

/// A block that is handed out.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) ptr: DevicePtr,
    pub(super) layout: Layout,
    pub(super) stream: Stream,
    /// The tag of the last write that ran.
    pub(super) tag: u64,
    /// Whether the block has that tag: a write ran, and no graph of the block's scope ran after it.
    pub(super) is_known: bool,
    /// The uses outside of captures, and the clock that the block's first stream had when it got the block.
    pub(super) uses: Uses,
    /// The uses in captures that are under way.
    pub(super) captured: Vec<(CaptureId, Uses)>,
    /// The capture that allocated the block, if it is under way.
    pub(super) born: Option<CaptureId>,
    pub(super) position: usize,
    /// The scope for captured graphs that the block came from.
    pub(super) scope: Option<ScopeId>,
}

/// Work that uses a block.
#[derive(Clone, Default, Debug)]
pub(super) struct Uses {
    pub(super) all: Clock,
    /// All uses up to the last write.
    pub(super) written: Clock,
}

impl Uses {
    pub(super) fn note(&mut self, point: Point, is_write: bool) {
        self.all.add(point);
        if is_write {
            self.written = self.all.clone();
        }
    }
}

impl Live {
    /// The uses in a capture.
    pub(super) fn uses_in(&self, capture: Option<CaptureId>) -> Option<&Uses> {
        self.captured.iter().find(|(id, _)| capture == Some(*id)).map(|(_, uses)| uses)
    }

    /// The record for uses outside of captures, or in one capture.
    pub(super) fn uses_mut(&mut self, capture: Option<CaptureId>) -> &mut Uses {
        let Some(id) = capture else { return &mut self.uses };
        let at = self.captured.iter().position(|(known, _)| *known == id).unwrap_or_else(|| {
            self.captured.push((id, Uses::default()));
            self.captured.len() - 1
        });
        &mut self.captured[at].1
    }

    /// Forgets the uses in a capture.
    pub(super) fn leave_capture(&mut self, id: CaptureId) {
        self.captured.retain(|(known, _)| *known != id);
        self.born = self.born.filter(|born| *born != id);
    }
}

#[derive(Clone, Copy)]
pub(super) enum StreamState {
    Unnamed,
    Alive(StreamRef),
    Dead,
}

/// Why a device's program ended before its last operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The context was reset.
    Reset,
    /// The device is lost, and the resource knows.
    Lost,
    /// Driver calls fail, but the resource has made none since then.
    Unnoticed,
}

pub(super) struct Execution {
    pub(super) config: Arc<Config>,
    pub(super) device: Arc<SimDevice>,
    pub(super) resource: Arc<Checked<AnyResource>>,
    pub(super) guest: Option<Arc<Guest>>,
    /// The numbers of the current thread and device.
    pub(super) thread: u8,
    pub(super) number: u8,
    pub(super) captures: Captures,
    pub(super) scopes: Scopes,
    pub(super) graphs: Graphs,
    pub(super) ending: Option<Ending>,
    pub(super) order: Order,
    pub(super) summary: Summary,
    pub(super) blocks: FxHashMap<Block, Live>,
    /// The live blocks in no particular order, for picking one at random.
    pub(super) live: Vec<Block>,
    pub(super) next_block: Block,
    /// The streams by number; higher numbers were not named yet.
    pub(super) streams: Vec<StreamState>,
    /// The fault for the next operation on the resource.
    pub(super) fault: Option<FaultPlan>,
    pub(super) events: [Option<EventHandle>; MAX_EVENTS],
    /// The operations carried out so far, on all devices.
    pub(super) done: Arc<Mutex<Vec<Op>>>,
}

impl Execution {
    pub(super) fn new(
        config: Arc<Config>,
        number: u8,
        device: Arc<SimDevice>,
        resource: AnyResource,
        done: Arc<Mutex<Vec<Op>>>,
    ) -> Self {
        Self {
            config,
            resource: Arc::new(Checked::new(resource, Some(Arc::clone(&device)))),
            guest: None,
            thread: 0,
            number,
            captures: Captures::default(),
            scopes: Scopes::default(),
            graphs: Graphs::default(),
            ending: None,
            device,
            order: Order::new(),
            summary: Summary::default(),
            blocks: FxHashMap::default(),
            live: Vec::new(),
            next_block: 0,
            streams: [StreamRef::LEGACY, StreamRef::PER_THREAD].map(StreamState::Alive).into(),
            fault: None,
            events: [None; MAX_EVENTS],
            done,
        }
    }

    /// The thread that has this stream as its per-thread default stream. With several threads, the first
    /// blocking streams are per-thread streams.
    pub(super) fn thread_of(&self, stream: Stream) -> Option<u8> {
        let thread = stream.checked_sub(1)? / 2;
        let is_one = stream % 2 == 1 && thread < Stream::from(self.config.threads);
        is_one.then_some(thread as u8)
    }

    /// Whether the current thread can name the stream, and no capture forbids it.
    pub(super) fn can_name(&self, stream: Stream) -> bool {
        !matches!(self.stream_state(stream), StreamState::Dead)
            && self.thread_of(stream).is_none_or(|thread| thread == self.thread)
            && !self.captures.forbids(stream)
    }

    pub(super) fn is_legal(&self, op: Op) -> bool {
        let named = |stream: Stream| self.can_name(stream);
        let recorded = |event: Event| usize::from(event) < MAX_EVENTS && self.order.is_recorded(event);
        let free = |stream: Stream| named(stream) && !self.captures.is_capturing(stream);
        if self.ending.is_some() {
            return false;
        }
        match op {
            Op::Allocate { block, stream, .. } => {
                let follows = |scope| self.follows_launches(stream, scope);
                block >= self.next_block && named(stream) && self.scope_of(stream).is_none_or(follows)
            }
            Op::LaunchGraph { back, stream } => self.can_launch(back, stream),
            Op::Deallocate { block, stream } => {
                self.frees_there(block, stream) && self.may_free(stream, block)
            }
            Op::Write { block, stream } => self.may_use(stream, block, false),
            Op::Read { block, stream } => self.may_use(stream, block, true),
            Op::Record { event, stream } => usize::from(event) < MAX_EVENTS && named(stream),
            Op::Wait { stream, event } => {
                named(stream)
                    && recorded(event)
                    && self.captures.can_wait(stream, self.thread_of(stream), event)
                    && self.keeps_one_scope(stream, event)
            }
            Op::QueryEvent { event } | Op::SyncEvent { event } => {
                recorded(event) && self.captures.can_ask(event)
            }
            Op::SyncStream { stream } => free(stream),
            Op::DestroyStream { stream } => {
                self.thread_of(stream).is_none()
                    && self.is_alive(stream)
                    && stream > 0
                    && free(stream)
                    && !self.scopes.is_open(stream)
                    && !self.still_frees_on(stream)
            }
            Op::SyncDevice => self.captures.live.is_empty(),
            Op::BeginCapture { stream, .. } => {
                self.config.captures
                    && free(stream)
                    && self.captures.can_begin(stream)
                    && self.serves_captures(stream)
            }
            Op::EndCapture { stream } => self.captures.can_end(stream, self.thread),
            Op::OpenScope { scope, stream } => named(stream) && self.can_open(scope, stream),
            Op::CloseScope { stream } => self.scopes.is_open(stream) && !self.captures.is_capturing(stream),
            Op::DropScope { scope } => self.has_scope(scope),
            Op::Misuse { block, stream, mistake } => {
                self.makes(mistake) && self.may_free(stream, block) && self.can_mistake(block, mistake)
            }
            Op::ResetContext | Op::LoseDevice => self.config.endings && self.captures.live.is_empty(),
            Op::Trim { .. } | Op::PassTime { .. } | Op::FailCall { .. } => true,
            Op::Device { .. } | Op::Thread { .. } => false,
        }
    }

    /// Whether the allocator frees the block in the order of this stream.
    fn frees_there(&self, block: Block, stream: Stream) -> bool {
        let own = self.blocks.get(&block).map(|live| live.stream);
        !self.config.habits.frees_on_own_stream || own == Some(stream)
    }

    /// Whether the allocator will free a live block in the order of this stream.
    fn still_frees_on(&self, stream: Stream) -> bool {
        self.config.habits.frees_on_own_stream && self.blocks.values().any(|live| live.stream == stream)
    }

    /// The stream on which the program's end frees a block, after the host has waited for the device.
    pub(super) fn last_stream(&self, block: Block) -> Stream {
        let own = self.blocks.get(&block).map(|live| live.stream);
        own.filter(|_| self.config.habits.frees_on_own_stream).unwrap_or(0)
    }

    fn makes(&self, mistake: Mistake) -> bool {
        let refuses = self.config.refuses;
        match mistake {
            Mistake::DoubleFree => refuses.double_free,
            Mistake::WrongSize => refuses.wrong_size,
            Mistake::Inside => refuses.foreign_pointer,
        }
    }

    pub(super) fn stream_state(&self, stream: Stream) -> StreamState {
        match self.streams.get(usize::from(stream)) {
            Some(state) => *state,
            None if usize::from(stream) < MAX_STREAMS => StreamState::Unnamed,
            None => StreamState::Dead,
        }
    }

    /// Whether the stream was named before and can be named again.
    pub(super) fn is_alive(&self, stream: Stream) -> bool {
        matches!(self.stream_state(stream), StreamState::Alive(_))
    }

    /// The stream, created when it is first named.
    pub(super) fn stream(&mut self, stream: Stream) -> Result<StreamRef, Broken> {
        if let StreamState::Alive(found) = self.stream_state(stream) {
            return Ok(found);
        }
        let flags = if stream.is_multiple_of(2) { StreamFlags::NON_BLOCKING } else { StreamFlags::BLOCKING };
        let created = match self.thread_of(stream) {
            Some(_) => StreamRef::PER_THREAD,
            None => self.device.stream_create(flags).map_err(unexpected)?,
        };
        if self.streams.len() <= usize::from(stream) {
            self.streams.resize(usize::from(stream) + 1, StreamState::Unnamed);
        }
        self.streams[usize::from(stream)] = StreamState::Alive(created);
        Ok(created)
    }

    pub(super) fn event(&mut self, event: Event) -> Result<EventHandle, DriverError> {
        let slot = &mut self.events[usize::from(event)];
        match *slot {
            Some(handle) => Ok(handle),
            None => Ok(*slot.insert(self.device.event_create(EventFlags::default())?)),
        }
    }
}
