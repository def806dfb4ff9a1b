//! The program's calls of a followed pool.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use millpond_core::{DevicePtr, Layout, StreamRef};
use parking_lot::Mutex;

use super::follow::{Follower, Probe, memory_at};
use super::large::BLOCKS;
use super::large::model::Place;
use crate::heap::chunk::Chunk;
use crate::pool::arena::Arenas;
use crate::pool::central::{CentralCore, PoolLock, State};

pub(crate) type Shared = Arc<Mutex<Follower>>;

thread_local! {
    /// The followers of the pools that this thread builds, if the pools are to have some.
    static WANTED: RefCell<Option<Vec<Shared>>> = const { RefCell::new(None) };
}

/// Returns a new follower, if the pool that this thread builds is to have one.
pub(crate) fn wanted() -> Option<Shared> {
    WANTED.with_borrow_mut(|wanted| {
        let followers = wanted.as_mut()?;
        followers.push(Arc::new(Mutex::new(Follower::new())));
        followers.last().cloned()
    })
}

/// Builds pools with followers. The followers must hear each [`called`](Follower::called) of the driver.
pub(super) fn followed<T>(build: impl FnOnce() -> T) -> (T, Vec<Shared>) {
    WANTED.set(Some(Vec::new()));
    let built = build();
    (built, WANTED.take().unwrap_or_default())
}

/// A program's call of a pool. The drop is its end.
pub(crate) struct PoolCall<'a>(Option<(&'a PoolLock, &'a Shared)>);

impl CentralCore {
    /// The program begins a call; `taker` is the stream of an allocation.
    pub(crate) fn begins(&self, taker: Option<StreamRef>) -> PoolCall<'_> {
        let call = PoolCall(self.follower.as_ref().map(|follower| (&self.state, follower)));
        call.tell(|follower, state| follower.begins(state, taker));
        call
    }
}

impl PoolCall<'_> {
    /// The program frees a block on a stream that comes after all work on it.
    pub(crate) fn frees(&self, ptr: DevicePtr, stream: StreamRef) {
        self.tell(|follower, state| follower.frees(state, ptr, stream));
    }

    /// The program has got a block.
    pub(crate) fn got(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.tell(|follower, state| {
            follower.look(state);
            follower.got(state, ptr, layout.bytes(), stream);
        });
    }

    fn tell(&self, step: impl FnOnce(&mut Follower, &State)) {
        if let Some((state, follower)) = self.0 {
            let state = state.lock();
            step(&mut follower.lock(), &state);
        }
    }
}

impl Drop for PoolCall<'_> {
    fn drop(&mut self) {
        self.tell(Follower::ends);
    }
}

/// The calls of the program.
impl Follower {
    fn begins(&mut self, state: &State, taker: Option<StreamRef>) {
        // A call that this one interrupts may have taken a block.
        self.look(state);
        if self.takers.is_empty() {
            // Another pool, or a step of decay, has left events.
            self.give_up();
        }
        self.takers.push(taker.map(|stream| stream.id()));
    }

    fn frees(&mut self, state: &State, ptr: DevicePtr, stream: StreamRef) {
        let pieces = pieces(state, ptr);
        let is_of = |probe: &Probe| pieces.iter().any(|piece| piece.contains(&probe.addr));
        for probe in self.probes.iter_mut().filter(|probe| probe.is_held && is_of(probe)) {
            (probe.is_held, probe.freed_on) = (false, Some(stream.id()));
        }
    }

    fn got(&mut self, state: &State, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let pieces = pieces(state, ptr);
        let found: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
        if found < bytes {
            self.fail(format!("{bytes} bytes were handed out at {ptr}, and {found} are there"));
        }
        let mut is_new = true;
        for block in 0..BLOCKS {
            let Probe { addr, is_followed, is_held, .. } = self.probes[block];
            if !is_followed || pieces.iter().all(|piece| !piece.contains(&addr)) {
                continue;
            }
            is_new = false;
            if is_held || self.model.blocks[block].place != Place::Live {
                self.fail(format!("block {block} was handed out twice"));
            }
            self.probes[block].is_held = true;
            let freed_on = self.probes[block].freed_on.take();
            if freed_on.is_some_and(|freed_on| freed_on != stream.id()) {
                self.fail(format!("block {block} passes from a cache to another stream"));
            }
        }
        let place = self.probes.iter().position(|probe| !probe.is_followed);
        let (Some(block), Some(piece)) = (place.filter(|_| is_new), pieces.get(pieces.len() / 2)) else {
            return;
        };
        let addr = piece.start + (piece.end - piece.start) / 2;
        // A span over pages may lie in an alias, which does not stay.
        let is_there = |chunk: Chunk| chunk.addr <= addr && addr - chunk.addr < chunk.bytes;
        if memory_at(state, addr).is_some_and(is_there) {
            self.probes[block] =
                Probe { addr, is_followed: true, is_held: true, taken_in: 0, freed_on: None };
        }
    }

    /// The call is over. A block that it took for other purposes, such as a span, is followed no more.
    fn ends(&mut self, state: &State) {
        self.look(state);
        self.give_up();
        for block in 0..BLOCKS {
            let Probe { is_followed, is_held, taken_in, freed_on, .. } = self.probes[block];
            let is_own = taken_in >= self.takers.len();
            let is_live = self.model.blocks[block].place == Place::Live;
            if is_followed && is_live && is_own && !is_held && freed_on.is_none() {
                self.drop_block(block);
            }
        }
        self.takers.pop();
    }
}

/// Returns the memory of a block in use. A block over pages has several pieces.
fn pieces(state: &State, ptr: DevicePtr) -> Vec<Range<u64>> {
    let range = |chunk: &Chunk| chunk.addr..chunk.addr + chunk.bytes;
    let Some(entry) = state.heaps.shared.block_map.find(ptr.address()) else { return Vec::new() };
    let (heap, chunk) = entry.block();
    match Arenas::shard(heap) {
        Some(shard) => vec![range(state.heaps.shared.arenas.lock(shard).heap.chunk(chunk))],
        None => state.heaps.store.pieces_of(chunk).into_iter().map(range).collect(),
    }
}
