//! A real pool that takes the steps of the model.

use std::sync::Arc;

use millpond_core::driver::{Driver, EventFlags, StreamFlags};
use millpond_core::{DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};

use super::world::{Held, Spot, World};
use crate::heap::request::{Cursor, Request, Whose};
use crate::pool::Heaps;
use crate::pool::central::collect::{Begun, Donor, Outcome, Record, RecordedEvent};
use crate::pool::central::{CentralCore, State};
use crate::stream_order::checker::model::{Action, Id, Stage};
use crate::stream_order::checker::{BLOCKS, STREAMS, THREADS};
use crate::stream_order::streams::{StreamCell, Streams};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

const BLOCK_BYTES: u64 = 4 << 20;
/// Between two blocks of the model lies a block in use, so that they never join.
const ALL_BLOCKS: usize = 2 * BLOCKS;
/// How many streams may be created in the place of others on the way to one state.
const CREATED: usize = 40;

/// A pool whose memory is all in use, except in the middle of a step.
pub(super) struct Rig {
    pool: PoolMemoryResource<CudaMemoryResource>,
    blocks: [DevicePtr; BLOCKS],
    streams: Vec<StreamRef>,
    request: Request,
}

impl Rig {
    pub(super) fn new() -> Self {
        let device = SimDevice::new(SimConfig::h200());
        let layer = PoolLayer::new().pages(PagesMode::Off).initial_bytes(ALL_BLOCKS as u64 * BLOCK_BYTES);
        let pool = CudaMemoryResource::new(device.clone()).layer(layer).expect("there is room");
        let request = Request::new(Layout::new(BLOCK_BYTES)).expect("not too large");
        let all: Vec<DevicePtr> = pool.central.with_heaps(|heaps| {
            let mut take = || heaps.take(Whose::Of(ANY_STREAM, Epoch::MAX), &request);
            std::iter::from_fn(|| take().map(|taken| taken.ptr())).collect()
        });
        assert_eq!(all.len(), ALL_BLOCKS, "the pool has no other memory");
        let blocks = std::array::from_fn(|block| all[2 * block]);
        let stream = |_| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        Self { pool, blocks, streams: (0..CREATED).map(stream).collect(), request }
    }

    /// The state of a new pool whose blocks are all in use.
    pub(super) fn start(&self) -> World {
        World {
            streams: Streams::new(),
            refs: std::array::from_fn(|stream| self.streams[stream]),
            created: STREAMS,
            spots: [Spot::Live; BLOCKS],
            held: std::array::from_fn::<_, THREADS, _>(|_| Held::Nothing),
        }
    }

    fn core(&self) -> &CentralCore {
        self.pool.central.core()
    }

    /// Takes a step from a state of the world. Returns whether the pool says that it is possible.
    pub(super) fn step(&self, world: &mut World, action: Action) -> bool {
        // The pool chooses among the blocks. Only the block that the step names is free meanwhile.
        let only = match action {
            Action::Take { block, .. } | Action::Disown { block, .. } => Some(block as usize),
            _ => None,
        };
        let is_in_heap = |block: &usize| only.is_none_or(|only| *block == only);
        let in_heap: Vec<usize> = (0..BLOCKS).filter(is_in_heap).collect();
        {
            let mut state = self.core().state.lock();
            std::mem::swap(&mut state.streams, &mut world.streams);
            for block in &in_heap {
                if let Spot::Free(owner, epoch) = world.spots[*block] {
                    self.free(&mut state.heaps, *block, owner, epoch);
                }
            }
        }
        let is_possible = self.act(world, action);
        let mut state = self.core().state.lock();
        for block in &in_heap {
            if !matches!(world.spots[*block], Spot::Freeing(..)) {
                world.spots[*block] = self.spot(&state.heaps, *block);
            }
        }
        for block in in_heap {
            if let Spot::Free(owner, _) = world.spots[block] {
                let taken = state.heaps.take(Whose::Of(owner, Epoch::MAX), &self.request);
                assert!(taken.is_some(), "the block is free");
            }
        }
        std::mem::swap(&mut state.streams, &mut world.streams);
        is_possible
    }

    fn free(&self, heaps: &mut Heaps, block: usize, owner: Owner, epoch: Epoch) {
        let shared = Arc::clone(&heaps.shared);
        let entry = shared.block_map.find(self.blocks[block].address()).expect("the block is in use");
        Heaps::free_entry(&mut *heaps.store, &shared, entry, owner, epoch);
    }

    fn spot(&self, heaps: &Heaps, block: usize) -> Spot {
        let chunk = heaps.store.chunk_at(self.blocks[block].address()).expect("the pool has the memory");
        if chunk.is_in_use() { Spot::Live } else { Spot::Free(chunk.owner(), chunk.epoch()) }
    }

    fn act(&self, world: &mut World, action: Action) -> bool {
        match action {
            Action::Meet { .. }
            | Action::Free { .. }
            | Action::EndFree { .. }
            | Action::Take { .. }
            | Action::Pick { .. }
            | Action::BeginRecord { .. }
            | Action::Skip { .. }
            | Action::Sweep { .. } => self.act_on_stream(world, action, &mut self.core().state.lock()),
            Action::Destroy { .. } => true,
            Action::Create { stream } => {
                world.refs[stream as usize] = self.streams[world.created];
                world.created += 1;
                true
            }
            Action::MakeRecord { thread }
            | Action::Settle { thread }
            | Action::Leave { thread }
            | Action::Query { thread }
            | Action::Complete { thread }
            | Action::Disown { thread, .. }
            | Action::Wait { thread, .. }
            | Action::NoteWait { thread }
            | Action::GiveUp { thread }
            | Action::BeginDevice { thread }
            | Action::MakeDevice { thread }
            | Action::EndDevice { thread } => {
                let held = std::mem::replace(&mut world.held[thread as usize], Held::Nothing);
                let (held, is_possible) = self.act_on_call(world, action, held);
                world.held[thread as usize] = held;
                is_possible
            }
        }
    }

    fn act_on_stream(&self, world: &mut World, action: Action, state: &mut State) -> bool {
        let id = |stream: Id| world.refs[stream as usize].id();
        match action {
            Action::Meet { stream } => {
                let before = state.streams.len();
                state.owner_of(world.refs[stream as usize]);
                state.streams.len() > before
            }
            Action::Free { block, stream } => {
                let owner = state.owner_of(world.refs[stream as usize]);
                world.spots[block as usize] = Spot::Freeing(owner, state.streams.slot(owner).cell.epoch());
                true
            }
            Action::EndFree { block } => {
                let Spot::Freeing(owner, epoch) = world.spots[block as usize] else { return false };
                self.free(&mut state.heaps, block as usize, owner, epoch);
                world.spots[block as usize] = Spot::Free(owner, epoch);
                true
            }
            Action::Take { stream, .. } => {
                let owner = state.owner_of(world.refs[stream as usize]);
                state.take_ready(owner, &self.request).is_some()
            }
            Action::Pick { thread, stream } => {
                let event = state.pick(Donor { id: id(stream), epoch: 0, bytes: 0 });
                let is_possible = event.is_some();
                if let Some(event) = event {
                    world.held[thread as usize] = Held::Event(event, Stage::Picked);
                }
                is_possible
            }
            Action::BeginRecord { thread, stream } => {
                let Some((_, slot)) = state.streams.find_mut(id(stream)) else { return false };
                let donor = Donor { id: slot.id, epoch: slot.epoch(), bytes: 0 };
                let Begun::Pending(record) = state.begin_record(donor) else { return false };
                world.held[thread as usize] = Held::Record(record, None);
                true
            }
            Action::Skip { stream } => {
                let found = state.streams.find_mut(id(stream));
                let was_recorded = found.is_some_and(|(_, slot)| slot.recorded_epoch.is_some());
                state.skip(id(stream));
                was_recorded
            }
            Action::Sweep { stream } => {
                // A stream cache has a cell, and so does a thread that frees a block.
                let freeing = world.spots.iter().filter_map(|spot| match spot {
                    Spot::Freeing(owner, _) => Some(*owner),
                    _ => None,
                });
                let others = state.streams.iter().filter(|(_, slot)| slot.id != id(stream)).map(|it| it.0);
                let cell = |owner: Owner| Arc::clone(&state.streams.slot(owner).cell);
                let _cells: Vec<Arc<StreamCell>> = freeing.chain(others).map(cell).collect();
                // A record may be made without a turn.
                let has_turn = |held: &&Held| matches!(held, Held::Event(..) | Held::Device(..));
                let turns = &self.core().turns;
                let _own = turns.enter();
                let _others: Vec<_> = world.held.iter().filter(has_turn).map(|_| turns.enter()).collect();
                let before = state.streams.len();
                state.streams.sweep_soon();
                state.forget_idle_streams(turns);
                state.streams.len() < before
            }
            _ => unreachable!("{action:?} is about a call"),
        }
    }

    fn act_on_call(&self, world: &World, action: Action, held: Held) -> (Held, bool) {
        let core = self.core();
        let state = || core.state.lock();
        match (action, held) {
            (Action::MakeRecord { .. }, Held::Record(mut record, reached)) => {
                core.record(&mut record, None).expect("the device is there");
                let is_made = record.outcome == Outcome::Recorded;
                (Held::Record(record, reached), is_made)
            }
            (Action::Settle { .. } | Action::Leave { .. }, Held::Record(record, reached)) => {
                (self.settle(record, reached, matches!(action, Action::Settle { .. })), true)
            }
            (Action::Query { .. }, Held::Record(record, None)) => {
                let event = record
                    .recorded_event()
                    .filter(|event| core.is_reached(event).expect("the device is there"));
                let is_possible = event.is_some();
                (Held::Record(record, event), is_possible)
            }
            (Action::Query { .. }, Held::Event(event, Stage::Picked)) => {
                let is_reached = core.is_reached(&event).expect("the device is there");
                (Held::Event(event, Stage::Reached), is_reached)
            }
            (Action::Complete { .. }, Held::Event(event, Stage::Reached)) => {
                state().complete(&event, None);
                (Held::Nothing, true)
            }
            (Action::Disown { block, .. }, Held::Event(event, Stage::Reached)) => {
                let is_owned = || self.owned(&core.state.lock().heaps, block as usize);
                let was_owned = is_owned();
                let mut at = Cursor::default();
                while !at.is_at_end {
                    state().disown_step(&event, &mut at);
                }
                (Held::Event(event, Stage::Reached), was_owned && !is_owned())
            }
            (Action::Wait { stream, .. }, Held::Event(event, Stage::Picked)) => {
                let waits = core.driver.stream_wait_event(world.refs[stream as usize], event.event);
                (Held::Event(event, Stage::Waits(stream)), waits.is_ok())
            }
            (Action::NoteWait { .. }, Held::Event(event, Stage::Waits(stream))) => {
                let mut state = state();
                let waiter = state.streams.find_mut(world.refs[stream as usize].id()).map(|(owner, _)| owner);
                if let Some(waiter) = waiter {
                    state.note_wait(waiter, &event);
                }
                (Held::Nothing, true)
            }
            (Action::GiveUp { .. }, Held::Event(..) | Held::Device(_, false)) => (Held::Nothing, true),
            (Action::BeginDevice { .. }, Held::Nothing) => (Held::Device(state().end_epochs(), false), true),
            (Action::MakeDevice { .. }, Held::Device(covered, false)) => {
                let waited = core.driver.synchronize_beside_captures();
                (Held::Device(covered, true), waited.is_ok_and(|waited| waited))
            }
            (Action::EndDevice { .. }, Held::Device(covered, true)) => {
                state().device_done(&covered);
                (Held::Nothing, true)
            }
            (_, held) => (held, false),
        }
    }

    /// Settles a record. Without `is_noted`, the driver failed after it had created the event.
    fn settle(&self, mut record: Record, reached: Option<RecordedEvent>, is_noted: bool) -> Held {
        let mut state = self.core().state.lock();
        let event = state.streams.find_mut(record.pending.id).and_then(|(_, slot)| slot.event);
        if !is_noted {
            let create = || self.core().driver.event_create(EventFlags::default()).expect("an event");
            record.pending.event = Some(record.pending.event.unwrap_or_else(create));
            record.outcome = Outcome::Failed;
        } else if record.outcome != Outcome::Recorded && record.pending.event != event {
            // The driver could not create an event.
            record.pending.event = None;
        }
        match (reached, state.settle(record)) {
            (Some(reached), _) if is_noted => Held::Event(reached, Stage::Reached),
            (_, Some(event)) => Held::Event(event, Stage::Picked),
            _ => Held::Nothing,
        }
    }

    fn owned(&self, heaps: &Heaps, block: usize) -> bool {
        matches!(self.spot(heaps, block), Spot::Free(owner, _) if owner != ANY_STREAM)
    }
}
