//! The state of a program that runs.

use std::sync::Arc;

use millpond_core::driver::{Event as EventHandle, EventFlags, StreamFlags};
use millpond_core::{AnyResource, DevicePtr, Driver, DriverError, Layout, StreamRef};
use millpond_driver::sim::{FaultPlan, SimDevice};
use rustc_hash::FxHashMap;

use super::broken::Broken;
use super::op::{Block, Event, MAX_EVENTS, MAX_STREAMS, Op, Stream};
use super::order::{Clock, Order};
use super::{Config, FailureKind, Summary};
use crate::Checked;

/// A block that is handed out.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) ptr: DevicePtr,
    pub(super) layout: Layout,
    pub(super) stream: Stream,
    pub(super) tag: u64,
    /// The clock of the last write.
    pub(super) written: Clock,
    /// The clock of all uses of the block, its allocation included.
    pub(super) used: Clock,
    pub(super) position: usize,
}

#[derive(Clone, Copy)]
pub(super) enum StreamState {
    Unnamed,
    Alive(StreamRef),
    Dead,
}

pub(super) struct Execution<'a> {
    pub(super) config: &'a Config,
    pub(super) device: Arc<SimDevice>,
    pub(super) resource: Checked<AnyResource>,
    pub(super) order: Order,
    pub(super) summary: Summary,
    pub(super) blocks: FxHashMap<Block, Live>,
    /// The live blocks in no particular order, for picking one at random.
    pub(super) live: Vec<Block>,
    pub(super) next_block: Block,
    /// The streams by number; those behind the last were not named yet.
    pub(super) streams: Vec<StreamState>,
    /// The fault of the next operation on the resource.
    pub(super) fault: Option<FaultPlan>,
    pub(super) events: [Option<EventHandle>; MAX_EVENTS],
    pub(super) done: &'a mut Vec<Op>,
}

impl<'a> Execution<'a> {
    pub(super) fn new(
        config: &'a Config,
        device: Arc<SimDevice>,
        resource: AnyResource,
        done: &'a mut Vec<Op>,
    ) -> Self {
        Self {
            config,
            resource: Checked::new(resource, Some(Arc::clone(&device))),
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

    pub(super) fn is_legal(&self, op: Op) -> bool {
        let alive = |stream: Stream| !matches!(self.stream_state(stream), StreamState::Dead);
        let after = |stream, block, written_only: bool| {
            self.blocks.get(&block).is_some_and(|live: &Live| {
                alive(stream)
                    && self.order.is_after(stream, if written_only { &live.written } else { &live.used })
            })
        };
        let recorded = |event: Event| usize::from(event) < MAX_EVENTS && self.order.is_recorded(event);
        match op {
            Op::Allocate { block, stream, .. } => block >= self.next_block && alive(stream),
            Op::Deallocate { block, stream } | Op::Write { block, stream } => after(stream, block, false),
            Op::Read { block, stream } => after(stream, block, true),
            Op::Record { event, stream } => usize::from(event) < MAX_EVENTS && alive(stream),
            Op::Wait { stream, event } => alive(stream) && recorded(event),
            Op::QueryEvent { event } | Op::SyncEvent { event } => recorded(event),
            Op::SyncStream { stream } => alive(stream),
            Op::DestroyStream { stream } => {
                stream > 1 && matches!(self.stream_state(stream), StreamState::Alive(_))
            }
            Op::SyncDevice | Op::Trim { .. } | Op::PassTime { .. } | Op::FailCall { .. } => true,
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

    /// The stream, created if it is named for the first time.
    pub(super) fn stream(&mut self, stream: Stream) -> Result<StreamRef, Broken> {
        if let StreamState::Alive(found) = self.stream_state(stream) {
            return Ok(found);
        }
        let flags = if stream.is_multiple_of(2) { StreamFlags::NON_BLOCKING } else { StreamFlags::BLOCKING };
        let created = self.device.stream_create(flags);
        let created = created.map_err(|error| Broken::new(FailureKind::UnexpectedError, error))?;
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
