//! Follows a pool in a program: each step that the pool takes is a step of the model, too.
//!
//! The pool tells each step under its lock ([`observe`](crate::pool::central::observe)), and the driver tells
//! the calls that order work. The follower takes the step in the model, compares all beliefs about streams,
//! and checks the rule and the invariant. Of the blocks, it follows a few addresses, in regions, pages,
//! arenas and stream caches: the heap that has the memory must give it the owner and the epoch that the model
//! gives.
//!
//! A thread of the model holds one value. So each event and each record that the pool holds is one of its
//! threads. The end of a call gives up the events that are left.

use std::collections::{BTreeMap, VecDeque};

use millpond_core::StreamId;
use millpond_core::driver::Event;
use millpond_testkit::hooked::OrderCall;
use rustc_hash::FxHashMap;

use super::large::model::{Action, Block, Call, Epochs, Id, Place, Scale, Stage, State as Model, Stream};
use super::large::{BLOCKS, Epoch as Small, STREAMS, THREADS};
use crate::heap::chunk::Chunk;
use crate::pool::central::State;
use crate::pool::central::collect::{Donor, RecordedEvent};
use crate::stream_order::streams::PendingRecord;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

const SCALE: Scale =
    Scale { streams: STREAMS as Id, blocks: BLOCKS as Id, threads: THREADS as Id, epochs: Small::MAX - 1 };

/// The number of steps that a failure tells.
const TOLD: usize = 30;

/// Why the follower stops in a program of many streams, which is no mistake.
pub(super) const TOO_MANY: &str = "the program has more streams than the model";

/// An address in a block.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Probe {
    pub(super) addr: u64,
    /// Whether the model has its block.
    pub(super) is_followed: bool,
    /// Whether the program has its block.
    pub(super) is_held: bool,
    /// The number of calls under way when a call took its block.
    pub(super) taken_in: usize,
    /// The stream on which the program freed its block, if the block is in a cache since then.
    pub(super) freed_on: Option<StreamId>,
}

/// The model of a pool in a program.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(super) model: Box<Model>,
    /// The stream of each of the model's streams that the pool knows.
    ids: [Option<StreamId>; STREAMS],
    pub(super) probes: [Probe; BLOCKS],
    /// The stream of each call under way that allocates, the innermost last: calls interrupt each other.
    pub(super) takers: Vec<Option<StreamId>>,
    /// The number of calls that were under way when each thread of the model began to hold its value.
    depths: [usize; THREADS],
    /// The stream on which each event was recorded last.
    events: FxHashMap<Event, StreamId>,
    last: VecDeque<Action>,
    /// How often each action was taken.
    pub(super) taken: BTreeMap<String, u64>,
    /// How the pool and the model differ.
    pub(super) failed: Option<String>,
}

impl Follower {
    pub(super) fn new() -> Self {
        Self {
            model: Box::new(Model::START),
            ids: [None; STREAMS],
            probes: Default::default(),
            takers: Vec::new(),
            depths: [0; THREADS],
            events: FxHashMap::default(),
            last: VecDeque::new(),
            taken: BTreeMap::new(),
            failed: None,
        }
    }

    pub(super) fn fail(&mut self, why: String) {
        self.failed
            .get_or_insert_with(|| format!("the pool and the model differ: {why}\nafter {:?}", self.last));
    }

    fn act(&mut self, action: Action) {
        if self.failed.is_some() {
            return;
        }
        let name = format!("{action:?}").split(' ').next().map(str::to_owned).unwrap_or_default();
        *self.taken.entry(name).or_default() += 1;
        self.last.push_back(action);
        if self.last.len() > TOLD {
            self.last.pop_front();
        }
        match self.model.after(action, SCALE, None) {
            None => self.fail("the model refuses the last step".to_owned()),
            Some(next) => *self.model = next,
        }
        if let Some(why) = self.model.breaks_rule(SCALE).or_else(|| self.model.broken_parts().next()) {
            self.fail(why.to_owned());
        }
    }

    fn name(&mut self, id: StreamId) -> Option<Id> {
        let at = self.ids.iter().position(|it| *it == Some(id));
        if at.is_none() {
            self.fail(format!("the model does not know {id:?}"));
        }
        at.map(|at| at as Id)
    }

    /// Returns the thread with this value, which the innermost call holds.
    fn thread(&mut self, what: &str, is: impl Fn(&Call) -> bool) -> Option<Id> {
        let at = self.found(is);
        if at.is_none() {
            self.fail(format!("no thread {what}"));
        }
        at
    }

    fn found(&self, is: impl Fn(&Call) -> bool) -> Option<Id> {
        let mut threads = self.model.calls.iter().zip(self.depths);
        threads.position(|(call, depth)| is(call) && depth == self.takers.len()).map(|at| at as Id)
    }

    fn idle(&mut self) -> Option<Id> {
        let at = self.model.calls.iter().position(|call| *call == Call::Idle);
        match at {
            Some(at) => self.depths[at] = self.takers.len(),
            None => self.fail("no thread is idle".to_owned()),
        }
        at.map(|at| at as Id)
    }

    /// Compares the beliefs about streams.
    fn compare(&mut self, state: &State) {
        for (owner, slot) in state.streams.iter() {
            let Some(stream) = self.name(slot.id) else { return };
            let known = Stream {
                exists: true,
                is_known: true,
                epoch: slot.epoch() as Small,
                has_event: slot.event.is_some(),
                recorded: slot.recorded_epoch.unwrap_or(0) as Small,
                recorded_seen: self.epochs(state, slot.recorded_seen.iter().copied()),
                seen: self.epochs(state, slot.seen()),
            };
            if known != self.model.streams[stream as usize] {
                let model = self.model.streams[stream as usize];
                self.fail(format!("of stream {stream} ({owner})\nmodel {model:?}\npool  {known:?}"));
            }
        }
    }

    fn epochs(&mut self, state: &State, seen: impl Iterator<Item = (Owner, Epoch)>) -> Epochs {
        let mut epochs = [0; STREAMS];
        for (owner, epoch) in seen {
            match state.streams.iter().find(|(it, _)| *it == owner) {
                None => self.fail(format!("no stream has the number {owner}")),
                Some((_, slot)) => {
                    if let Some(stream) = self.name(slot.id) {
                        epochs[stream as usize] = Small::try_from(epoch).unwrap_or(Small::MAX);
                    }
                }
            }
        }
        epochs
    }

    /// Compares the places of the followed addresses, and takes the steps that moved them.
    pub(super) fn look(&mut self, state: &State) {
        for block in 0..BLOCKS {
            if self.probes[block].is_followed && self.failed.is_none() {
                self.look_at(state, block);
            }
        }
    }

    fn look_at(&mut self, state: &State, block: usize) {
        let Probe { addr, .. } = self.probes[block];
        let (place, id) = (self.model.blocks[block].place, block as Id);
        let Some(chunk) = memory_at(state, addr) else {
            if place != Place::Unowned {
                self.fail(format!("memory is gone, and block {block} is {place:?}"));
            }
            return self.drop_block(block);
        };
        if chunk.is_in_use() {
            if matches!(place, Place::Free { .. } | Place::Unowned) {
                let Some(taker) = self.takers.last().copied().flatten() else {
                    return self.drop_block(block);
                };
                let Some(stream) = self.name(taker) else { return };
                self.probes[block].taken_in = self.takers.len();
                self.act(Action::Take { block: id, stream });
            }
            return;
        }
        let (owner, epoch) = (chunk.owner(), chunk.epoch());
        if self.model.blocks[block].place == Place::Live {
            // A call may give back memory that it took.
            let probe = &mut self.probes[block];
            let by_call = if probe.is_held { None } else { self.takers.last().copied().flatten() };
            let Some(stream) = probe.freed_on.take().or(by_call) else {
                return self.fail(format!("block {block} is free, and nothing freed it"));
            };
            let Some(stream) = self.name(stream) else { return };
            self.act(Action::Free { block: id, stream });
            self.act(Action::EndFree { block: id });
        }
        let place = self.model.blocks[block].place;
        let found = match owner {
            ANY_STREAM => Place::Unowned,
            owner => {
                let Some(owner) = self.name(state.streams.slot(owner).id) else { return };
                Place::Free { owner, epoch: epoch as Small }
            }
        };
        match (place, found) {
            // It joined a neighbour that was freed later, or that a stream owns. Fewer streams may take it.
            (Place::Free { owner, epoch }, Place::Free { owner: now, epoch: later })
                if owner == now && epoch < later && later <= self.model.streams[owner as usize].epoch => {}
            (Place::Unowned, Place::Free { owner, epoch })
                if epoch <= self.model.streams[owner as usize].epoch => {}
            (place, found) if place == found => return,
            _ => return self.fail(format!("of block {block}\nmodel {place:?}\npool  {found:?}")),
        }
        self.model.blocks[block].place = found;
    }

    pub(super) fn drop_block(&mut self, block: usize) {
        self.model.blocks[block] = Block::NEW;
        self.probes[block].is_followed = false;
    }
}

/// The steps that the pool tells.
impl Follower {
    pub(crate) fn met(&mut self, state: &State) {
        for (_, slot) in state.streams.iter() {
            if self.ids.contains(&Some(slot.id)) {
                continue;
            }
            let Some(place) = self.ids.iter().position(Option::is_none) else {
                return self.fail(TOO_MANY.to_owned());
            };
            self.ids[place] = Some(slot.id);
            let stream = place as Id;
            self.act(Action::Destroy { stream });
            self.act(Action::Create { stream });
            self.act(Action::Meet { stream });
        }
    }

    pub(crate) fn forgot(&mut self, state: &State) {
        for stream in 0..STREAMS {
            let Some(id) = self.ids[stream] else { continue };
            if state.streams.iter().all(|(_, slot)| slot.id != id) {
                self.give_up();
                self.act(Action::Sweep { stream: stream as Id });
                self.ids[stream] = None;
            }
        }
        self.compare(state);
    }

    pub(crate) fn freed(&mut self, state: &State) {
        self.look(state);
    }

    pub(crate) fn begun(&mut self, state: &State, pending: &PendingRecord) {
        self.look(state);
        let (Some(thread), Some(stream)) = (self.idle(), self.name(pending.id)) else { return };
        self.act(Action::BeginRecord { thread, stream });
        let noted = self.epochs(state, pending.seen.iter().copied());
        match self.model.calls[thread as usize] {
            Call::Record { epoch, seen, .. } if Epoch::from(epoch) == pending.epoch && seen == noted => {}
            call => self.fail(format!("model {call:?}\npool  {pending:?}")),
        }
        self.compare(state);
    }

    /// The pool has settled the record of an epoch.
    pub(crate) fn settled(&mut self, state: &State, ended: Donor, is_recorded: bool, has_event: bool) {
        self.look(state);
        let Some(thread) = self.record_of(ended.id, ended.epoch) else { return };
        let is_left = has_event && !is_recorded;
        self.act(if is_left { Action::Leave { thread } } else { Action::Settle { thread } });
        self.compare(state);
    }

    pub(crate) fn picked(&mut self, state: &State, event: &RecordedEvent) {
        self.look(state);
        let (Some(thread), Some(stream)) = (self.idle(), self.name(event.donor.id)) else { return };
        self.act(Action::Pick { thread, stream });
        let noted = self.epochs(state, event.seen.iter().copied());
        match self.model.calls[thread as usize] {
            Call::Event { epoch, seen, .. } if Epoch::from(epoch) == event.donor.epoch && seen == noted => {}
            call => self.fail(format!("model {call:?}\npool  {event:?}")),
        }
        self.compare(state);
    }

    pub(crate) fn completed(&mut self, state: &State, event: &RecordedEvent, is_all: bool) {
        if is_all {
            if let Some(thread) = self.event_of(event, |stage| stage == Stage::Reached) {
                self.act(Action::Complete { thread });
            }
            self.look(state);
            self.compare(state);
        } else {
            self.disowned(state, event);
        }
    }

    /// An inquiry is over, and keeps only the events that the device has reached.
    pub(crate) fn learned(&mut self) {
        while let Some(thread) = self.found(|call| matches!(call, Call::Event { stage: Stage::Picked, .. })) {
            self.act(Action::GiveUp { thread });
            if self.failed.is_some() {
                return;
            }
        }
    }

    pub(crate) fn disowned(&mut self, state: &State, event: &RecordedEvent) {
        let Some(thread) = self.event_of(event, |stage| stage == Stage::Reached) else { return };
        for block in 0..BLOCKS {
            let Probe { addr, is_followed, .. } = self.probes[block];
            let is_owned = matches!(self.model.blocks[block].place, Place::Free { .. });
            let is_unowned = || {
                let found = memory_at(state, addr);
                found.is_some_and(|chunk| !chunk.is_in_use() && chunk.owner() == ANY_STREAM)
            };
            if is_followed && is_owned && is_unowned() {
                self.act(Action::Disown { thread, block: block as Id });
            }
        }
        self.look(state);
        self.compare(state);
    }

    pub(crate) fn noted_wait(&mut self, state: &State, event: &RecordedEvent) {
        if let Some(thread) = self.event_of(event, |stage| matches!(stage, Stage::Waits(_))) {
            self.act(Action::NoteWait { thread });
        }
        self.look(state);
        self.compare(state);
    }

    pub(crate) fn ended_epochs(&mut self, state: &State, donors: &[Donor]) {
        self.look(state);
        let Some(thread) = self.idle() else { return };
        self.act(Action::BeginDevice { thread });
        let mut ended = [0; STREAMS];
        for donor in donors {
            let Some(stream) = self.name(donor.id) else { return };
            ended[stream as usize] = donor.epoch as Small;
        }
        if self.model.calls[thread as usize] != (Call::Device { epochs: ended, is_made: false }) {
            self.fail("the epochs before a wait for the device".to_owned());
        }
        self.compare(state);
    }

    pub(crate) fn device_done(&mut self, state: &State) {
        let waited = |call: &Call| matches!(call, Call::Device { is_made: true, .. });
        if let Some(thread) = self.thread("has waited for the device", waited) {
            self.act(Action::EndDevice { thread });
        }
        self.look(state);
        self.compare(state);
    }

    pub(crate) fn skipped(&mut self, state: &State, id: StreamId) {
        let Some(stream) = self.name(id) else { return };
        if self.model.streams[stream as usize].recorded > 0 {
            self.act(Action::Skip { stream });
        }
        self.compare(state);
    }

    fn record_of(&mut self, id: StreamId, ended: Epoch) -> Option<Id> {
        let of = self.name(id)?;
        let is = |call: &Call| match *call {
            Call::Record { stream, epoch, .. } => stream == of && Epoch::from(epoch) == ended,
            _ => false,
        };
        self.thread("makes the record", is)
    }

    fn event_of(&mut self, event: &RecordedEvent, is: impl Fn(Stage) -> bool) -> Option<Id> {
        let of = self.name(event.donor.id)?;
        let holds = |call: &Call| {
            matches!(*call, Call::Event { stream, epoch, stage, .. }
                if stream == of && Epoch::from(epoch) == event.donor.epoch && is(stage))
        };
        self.thread("holds the event at this stage", holds)
    }

    /// Gives up all values that the innermost call holds.
    pub(super) fn give_up(&mut self) {
        while let Some(thread) = self.found(|call| *call != Call::Idle) {
            self.act(Action::GiveUp { thread });
            if self.failed.is_some() {
                return;
            }
        }
    }
}

/// The calls of the driver.
impl Follower {
    pub(super) fn called(&mut self, call: OrderCall) {
        match call {
            OrderCall::Recorded(event, on) => {
                let at = self.ids.iter().position(|it| *it == Some(on.id()));
                let is = |call: &Call| match *call {
                    Call::Record { stream, is_made, .. } => Some(stream.into()) == at && !is_made,
                    _ => false,
                };
                match self.found(is) {
                    Some(thread) => {
                        self.events.insert(event, on.id());
                        self.act(Action::MakeRecord { thread });
                    }
                    None if self.events.contains_key(&event) => {
                        self.fail("no thread makes this record".to_owned());
                    }
                    // Another pool's event.
                    None => {}
                }
            }
            OrderCall::Reached(event) => {
                for thread in self.holders(event, true) {
                    self.act(Action::Query { thread });
                }
            }
            OrderCall::Waits(waiter, event) => {
                for thread in self.holders(event, false) {
                    let Some(stream) = self.name(waiter.id()) else { return };
                    self.act(Action::Wait { thread, stream });
                }
            }
            OrderCall::Synchronized => {
                // The store also waits, before it returns memory, and then the pool learns nothing.
                let waits = |call: &Call| matches!(call, Call::Device { is_made: false, .. });
                if let Some(thread) = self.found(waits) {
                    self.act(Action::MakeDevice { thread });
                }
            }
            _ => {}
        }
    }

    /// Returns the threads of the innermost call that hold an event, or have recorded it. The pool may have
    /// picked an event several times, before and after a record.
    fn holders(&mut self, event: Event, or_recorded: bool) -> Vec<Id> {
        let id = self.events.get(&event).copied();
        let Some(of) = id.and_then(|id| self.name(id)) else { return Vec::new() };
        let is = |call: &Call| match *call {
            Call::Record { stream, is_made, is_reached, .. } => {
                stream == of && or_recorded && is_made && !is_reached
            }
            Call::Event { stream, stage: Stage::Picked, .. } => stream == of,
            _ => false,
        };
        let threads = self.model.calls.iter().zip(self.depths).zip(0..);
        let own = threads.filter(|((call, depth), _)| is(call) && *depth == self.takers.len());
        let found: Vec<Id> = own.map(|(_, thread)| thread).collect();
        if found.is_empty() {
            self.fail("no thread holds the event of this call".to_owned());
        }
        found
    }
}

/// Returns the chunk that owns the memory at an address. An arena's span is a chunk in use of the store, and
/// holds chunks of its own.
pub(super) fn memory_at(state: &State, addr: u64) -> Option<Chunk> {
    let chunk = *state.heaps.store.chunk_at(addr)?;
    let of_arena =
        || state.heaps.shared.arenas.each().find_map(|(_, arena)| arena.heap.chunk_at(addr).copied());
    Some(if chunk.is_in_use() { of_arena().unwrap_or(chunk) } else { chunk })
}
