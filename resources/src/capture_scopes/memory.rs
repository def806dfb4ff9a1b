//! The memory of one scope: spans from upstream, the blocks cut from them, and who may take a free one.

use millpond_core::driver::{Driver, DriverResult, Event, EventFlags};
use millpond_core::misuse::MisuseKind;
use millpond_core::{BlockInfo, DevicePtr, ScopeMemory, StreamId, StreamRef};
use rustc_hash::FxHashMap;

use crate::block_map::ChunkId;
use crate::driver_calls::{ask, is_capturing};
use crate::heap::Heap;
use crate::heap::request::Request;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// The free blocks of a size that a request compares.
const BLOCKS_COMPARED: usize = 16;

/// Blocks become unowned all at once: one epoch is enough.
const EPOCH: Epoch = 0;

/// A block that is handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    chunk: ChunkId,
    /// The bytes asked for.
    bytes: u64,
    /// The raw handle of the stream that it was allocated on.
    stream: u64,
    /// The number of the allocation in its scope.
    number: u64,
}

/// The order in which a block comes back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// On this stream of the scope's capture, where its graph is done with the block.
    Captured(StreamId),
    /// On this stream, which captures nothing.
    Stream(StreamRef),
    /// In a graph that is not the scope's: it is withheld until the scope ends.
    OtherGraph,
    /// On a stream that cannot be asked, as one that is gone: the scope waits for the device first.
    Unknown,
}

/// A stream on which blocks were freed, in captures or outside; it owns them.
#[derive(Debug)]
struct Place {
    /// `None` where the place is vacant.
    key: Option<(StreamId, bool)>,
    /// Outside of captures: the event after the last free. It stays with a vacant place.
    event: Option<Event>,
    /// Whether the event was recorded, outside a capture, after the last free.
    is_recorded: bool,
}

/// What a scope has; its owner keeps the lock.
#[derive(Debug)]
pub(super) struct Memory {
    heap: Heap,
    blocks: FxHashMap<DevicePtr, Held>,
    /// The owner of a place's blocks is its index and one.
    places: Vec<Place>,
    /// Blocks that came back in graphs that are not the scope's.
    withheld: Vec<ChunkId>,
    /// Blocks that came back outside of captures, for which no event was recorded.
    unrecorded: Vec<ChunkId>,
    /// The number of allocations so far.
    pub(super) allocations: u64,
    /// The number of streams that are open in the scope.
    pub(super) open: usize,
    /// Whether the scope was dropped. What comes back then goes upstream.
    pub(super) has_ended: bool,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            heap: Heap::new(BLOCKS_COMPARED),
            blocks: FxHashMap::default(),
            places: Vec::new(),
            withheld: Vec::new(),
            unrecorded: Vec::new(),
            allocations: 0,
            open: 0,
            has_ended: false,
        }
    }

    // --- Requests ---

    /// Hands out a free block that work of the stream may use, in a capture or outside.
    pub(super) fn take(
        &mut self,
        request: &Request,
        stream: StreamRef,
        is_captured: bool,
    ) -> Option<DevicePtr> {
        let key = Some((stream.id(), is_captured));
        let place = self.places.iter().position(|place| place.key == key);
        let owner = place.map_or(ANY_STREAM, owner_of);
        let chunk = self.heap.find_for(owner, request, false)?;
        Some(self.hand_out(chunk, request, stream))
    }

    /// Adds a span, and hands out a block of it.
    pub(super) fn take_from_new(
        &mut self,
        span: DevicePtr,
        bytes: u64,
        request: &Request,
        stream: StreamRef,
    ) -> DevicePtr {
        let chunk = self.heap.add_region(span.address(), bytes, ANY_STREAM, EPOCH);
        self.hand_out(chunk, request, stream)
    }

    fn hand_out(&mut self, chunk: ChunkId, request: &Request, stream: StreamRef) -> DevicePtr {
        let chunk = self.heap.take(chunk, request.bytes, request.alignment);
        let ptr = DevicePtr::new(self.heap.chunk(chunk).addr);
        let (bytes, stream, number) = (request.requested, stream.handle(), self.allocations);
        self.allocations += 1;
        self.blocks.insert(ptr, Held { chunk, bytes, stream, number });
        ptr
    }

    // --- Frees ---

    /// Removes a block that comes back with this size from the table.
    pub(super) fn claim(&mut self, ptr: DevicePtr, bytes: u64) -> Result<Held, MisuseKind> {
        match self.blocks.get(&ptr) {
            None => Err(MisuseKind::DoubleFree),
            Some(held) if held.bytes != bytes => Err(MisuseKind::WrongSize { allocated_bytes: held.bytes }),
            Some(_) => self.blocks.remove(&ptr).ok_or(MisuseKind::DoubleFree),
        }
    }

    /// Frees a block that was claimed.
    pub(super) fn free(&mut self, held: Held, order: Order, driver: &dyn Driver) {
        let owner = match order {
            // The device is waited for before memory of an ended scope goes anywhere.
            _ if self.has_ended => ANY_STREAM,
            Order::Captured(stream) => owner_of(self.place(stream, true)),
            Order::Stream(stream) => {
                let place = self.place(stream.id(), false);
                if !self.record(place, stream, driver) {
                    return self.unrecorded.push(held.chunk);
                }
                owner_of(place)
            }
            Order::OtherGraph => return self.withheld.push(held.chunk),
            Order::Unknown => return self.unrecorded.push(held.chunk),
        };
        self.heap.free(held.chunk, owner, EPOCH);
    }

    /// The place of a stream, in captures or outside; a new one if it has none.
    fn place(&mut self, stream: StreamId, is_captured: bool) -> usize {
        let key = Some((stream, is_captured));
        let known = self.places.iter().position(|place| place.key == key);
        let place = known.or_else(|| self.places.iter().position(|place| place.key.is_none()));
        let place = place.unwrap_or_else(|| {
            self.places.push(Place { key: None, event: None, is_recorded: false });
            self.places.len() - 1
        });
        self.places[place].key = key;
        self.heap.has_one_stream = self.places.iter().filter(|place| place.key.is_some()).count() <= 1;
        place
    }

    /// Records a place's event on its stream, outside of captures; returns whether it did.
    fn record(&mut self, place: usize, stream: StreamRef, driver: &dyn Driver) -> bool {
        let place = &mut self.places[place];
        let recorded = || -> DriverResult<bool> {
            let event = match place.event {
                Some(event) => event,
                None => *place.event.insert(driver.event_create(EventFlags::default())?),
            };
            driver.event_record(event, stream)?;
            // An event that a capture got, which began on another thread meanwhile, must not be queried.
            is_capturing(driver, stream).map(|is_captured| !is_captured)
        }();
        place.is_recorded = recorded.inspect_err(|error| driver.health().note(error)) == Ok(true);
        place.is_recorded
    }

    /// Makes blocks unowned that were freed outside of captures, by work that is done.
    pub(super) fn collect(&mut self, driver: &dyn Driver) {
        for index in 0..self.places.len() {
            let place = &self.places[index];
            let Some(event) = place.event.filter(|_| place.is_recorded) else { continue };
            let is_done = ask(driver, |driver| driver.event_query(event));
            if is_done == Ok(true) {
                self.vacate(index);
            }
        }
    }

    /// Does the same for all work of the device, which is waited for.
    pub(super) fn wait_and_collect(&mut self, driver: &dyn Driver) {
        if ask(driver, |driver| driver.synchronize_beside_captures()) != Ok(true) {
            return;
        }
        for index in 0..self.places.len() {
            if matches!(self.places[index].key, Some((_, false))) {
                self.vacate(index);
            }
        }
        for chunk in std::mem::take(&mut self.unrecorded) {
            self.heap.free(chunk, ANY_STREAM, EPOCH);
        }
    }

    /// Makes what was freed in captures available to the next: the graphs never run at once.
    pub(super) fn end_captures(&mut self) {
        for index in 0..self.places.len() {
            if matches!(self.places[index].key, Some((_, true))) {
                self.vacate(index);
            }
        }
    }

    fn vacate(&mut self, place: usize) {
        self.heap.migrate(owner_of(place), Epoch::MAX, ANY_STREAM, EPOCH);
        self.places[place].key = None;
        self.places[place].is_recorded = false;
    }

    // --- Spans ---

    /// Whether a span starts there.
    pub(super) fn is_span(&self, ptr: DevicePtr) -> bool {
        self.heap.regions().binary_search_by_key(&ptr.address(), |region| region.base).is_ok()
    }

    /// The bytes of all spans.
    pub(super) fn bytes_held(&self) -> u64 {
        self.heap.bytes_reserved
    }

    /// Removes the spans of an ended scope in which no block is handed out. The caller waits for the device
    /// before it returns them, or puts them back.
    pub(super) fn remove_free_spans(&mut self) -> Vec<(DevicePtr, u64)> {
        for chunk in self.withheld.drain(..).chain(self.unrecorded.drain(..)) {
            self.heap.free(chunk, ANY_STREAM, EPOCH);
        }
        (0..self.places.len()).for_each(|index| self.vacate(index));
        let next = || self.heap.remove_free_region(|_| true);
        let spans = std::iter::from_fn(next);
        spans.map(|(region, ..)| (DevicePtr::new(region.base), region.bytes)).collect()
    }

    /// Puts a span back that was removed.
    pub(super) fn restore(&mut self, span: DevicePtr, bytes: u64) {
        self.heap.add_region(span.address(), bytes, ANY_STREAM, EPOCH);
    }

    /// Removes all spans, with blocks that are handed out or without.
    pub(super) fn remove_all_spans(&mut self) -> Vec<(DevicePtr, u64)> {
        let spans = self.heap.remove_all_regions();
        spans.into_iter().map(|region| (DevicePtr::new(region.base), region.bytes)).collect()
    }

    /// Removes the events of all places.
    pub(super) fn remove_events(&mut self) -> Vec<Event> {
        self.places.drain(..).filter_map(|place| place.event).collect()
    }

    // --- Reports ---

    /// The blocks that are handed out, from this allocation on, in the order of their allocation.
    pub(super) fn blocks(&self, scope: u64, since: u64) -> Vec<BlockInfo> {
        let mut blocks: Vec<_> = self.blocks.iter().filter(|(_, held)| held.number >= since).collect();
        blocks.sort_by_key(|(_, held)| held.number);
        blocks.into_iter().map(|(ptr, held)| info(*ptr, held, scope)).collect()
    }

    /// What is known of the block that starts there.
    pub(super) fn block_at(&self, ptr: DevicePtr, scope: u64) -> Option<BlockInfo> {
        self.blocks.get(&ptr).map(|held| info(ptr, held, scope))
    }

    pub(super) fn report(&self, scope: u64) -> ScopeMemory {
        let mut report = ScopeMemory::default();
        report.id = scope;
        report.open_streams = self.open;
        report.has_ended = self.has_ended;
        report.blocks = self.blocks.len() as u64;
        report.bytes_in_use = self.blocks.values().map(|held| held.bytes).sum();
        report.bytes_held = self.heap.bytes_reserved;
        report
    }
}

fn info(ptr: DevicePtr, held: &Held, scope: u64) -> BlockInfo {
    let mut info = BlockInfo::default();
    info.address = ptr.address();
    info.bytes = held.bytes;
    info.stream = Some(held.stream);
    info.scope = Some(scope);
    info
}

/// The owner of the free blocks of a place.
fn owner_of(place: usize) -> Owner {
    place as Owner + 1
}
