//! The memory of one scope: spans from upstream, their blocks, and who may take a free block. This module
//! decides, and makes no calls: the layer calls the driver without the scope's lock.

#[cfg(test)]
mod belief;

use millpond_core::driver::Event;
use millpond_core::misuse::MisuseKind;
use millpond_core::{
    BlockInfo, BlockState, DevicePtr, MemoryBlock, MemorySegment, ScopeMemory, StreamId, StreamRef,
};
use rustc_hash::FxHashMap;

use super::parked::{Parking, Wait};
use crate::block_map::ChunkId;
use crate::driver_calls::NamedStream;
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::Request;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// How many free blocks of a size a request compares.
const BLOCKS_COMPARED: usize = 16;

/// The epoch of unowned blocks.
const EPOCH: Epoch = 0;

/// The epoch of blocks that captures freed; no event covers them.
const CAPTURED: Epoch = Epoch::MAX;

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    chunk: ChunkId,
    /// The requested bytes.
    bytes: u64,
    /// The stream that allocated it.
    pub(super) stream: NamedStream,
    /// The capture that allocated it. If `None`, work outside of captures may use the block.
    pub(super) capture: Option<u64>,
    /// The number of the allocation in its scope.
    number: u64,
}

/// The side on which a stream works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Outside of captures.
    Ordinary,
    /// In the capture with this number.
    Captured(u64),
}

/// A stream on one side that freed blocks, and owns them.
#[derive(Debug, Default)]
struct Place {
    /// `None` for a vacant place.
    key: Option<(StreamId, Side)>,
    /// The number of frees that began here. It keeps counting when another stream gets the place.
    tickets: Epoch,
    /// How many of these frees have not ended.
    pending: usize,
    /// An event, and the ticket up to which it covers frees.
    event: Option<(Event, Epoch)>,
}

/// A free on an ordinary stream that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    place: usize,
    epoch: Epoch,
}

/// An event to ask the driver about. It belongs to the thread that asks.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) event: Event,
    pub(super) is_reached: bool,
    covers: Covers,
}

#[derive(Clone, Copy, Debug)]
enum Covers {
    Place(Ticket),
    Fence(u64),
}

/// The frees that a wait for the device covers if it begins now.
#[derive(Debug)]
pub(super) struct DeviceWait {
    places: Vec<Ticket>,
    /// Covers the blocks that were parked before this number.
    parked: u64,
}

/// The events to record when the scope closes for a stream.
#[derive(Debug)]
pub(super) struct Closing {
    /// The streams on which to record events.
    pub(super) streams: Vec<NamedStream>,
    parked: u64,
}

/// A scope's memory; the owner holds the lock.
#[derive(Debug)]
pub(super) struct Memory {
    heap: Heap,
    blocks: FxHashMap<DevicePtr, Held>,
    /// A place's blocks have as their owner the place's index plus one.
    places: Vec<Place>,
    /// Blocks that were freed in graphs outside the scope.
    withheld: Vec<ChunkId>,
    parking: Parking,
    /// The events that parked blocks wait for, with their numbers.
    fences: Vec<(u64, Event)>,
    spare: Vec<Event>,
    /// The number of allocations so far.
    pub(super) allocations: u64,
    /// The streams that are open in the scope.
    open: Vec<NamedStream>,
    /// Whether the scope was dropped. Blocks freed from then on go upstream.
    pub(super) has_ended: bool,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            heap: Heap::new(BLOCKS_COMPARED),
            blocks: FxHashMap::default(),
            places: Vec::new(),
            withheld: Vec::new(),
            parking: Parking::default(),
            fences: Vec::new(),
            spare: Vec::new(),
            allocations: 0,
            open: Vec::new(),
            has_ended: false,
        }
    }

    // --- Requests ---

    /// Hands out a free block that the stream's work on this side may use. A capture without a number gets
    /// only unowned blocks. An ended scope hands out nothing.
    pub(super) fn take(
        &mut self,
        request: &Request,
        stream: StreamRef,
        side: Option<Side>,
    ) -> Option<DevicePtr> {
        if self.has_ended {
            return None;
        }
        let key = side.map(|side| (stream.id(), side));
        let place = key.and_then(|key| self.places.iter().position(|place| place.key == Some(key)));
        let owner = place.map_or(ANY_STREAM, owner_of);
        let chunk = self.heap.find_for(owner, request, false)?;
        Some(self.hand_out(chunk, request, stream, side))
    }

    /// Adds a span, and hands out a block of it.
    pub(super) fn take_from_new(
        &mut self,
        span: DevicePtr,
        bytes: u64,
        request: &Request,
        stream: StreamRef,
        side: Option<Side>,
    ) -> DevicePtr {
        let chunk = self.heap.add_region(span.address(), bytes, ANY_STREAM, EPOCH);
        self.hand_out(chunk, request, stream, side)
    }

    fn hand_out(
        &mut self,
        chunk: ChunkId,
        request: &Request,
        stream: StreamRef,
        side: Option<Side>,
    ) -> DevicePtr {
        let chunk = self.heap.take(chunk, request.bytes, request.alignment);
        let ptr = DevicePtr::new(self.heap.chunk(chunk).addr);
        let capture = match side {
            Some(Side::Captured(number)) => Some(number),
            Some(Side::Ordinary) | None => None,
        };
        let (bytes, stream, number) = (request.requested, NamedStream::of(stream), self.allocations);
        self.allocations += 1;
        self.blocks.insert(ptr, Held { chunk, bytes, stream, capture, number });
        ptr
    }

    // --- Frees ---

    /// Removes a block that is freed with this size from the table.
    pub(super) fn claim(&mut self, ptr: DevicePtr, bytes: u64) -> Result<Held, MisuseKind> {
        match self.blocks.get(&ptr) {
            None => Err(MisuseKind::DoubleFree),
            Some(held) if held.bytes != bytes => Err(MisuseKind::WrongSize { allocated_bytes: held.bytes }),
            Some(_) => self.blocks.remove(&ptr).ok_or(MisuseKind::DoubleFree),
        }
    }

    /// Begins a free on a stream that does not capture. An event recorded from now on covers this free and
    /// all earlier ones.
    pub(super) fn begin_free(&mut self, stream: StreamId) -> Ticket {
        let index = self.place((stream, Side::Ordinary));
        let place = &mut self.places[index];
        place.tickets += 1;
        place.pending += 1;
        Ticket { place: index, epoch: place.tickets }
    }

    /// Ends such a free: the stream owns the block until the event is reached. Without an event, no stream
    /// gets the block before a wait for the device.
    pub(super) fn end_free(&mut self, held: Held, ticket: Ticket, event: Option<Event>) {
        self.places[ticket.place].pending -= 1;
        match event {
            _ if self.has_ended => self.free_unowned(held),
            Some(_) => self.heap.free(held.chunk, owner_of(ticket.place), ticket.epoch),
            None => self.parking.park(held.chunk, vec![Wait::Device], None),
        }
        event.into_iter().for_each(|event| self.keep_event(event, ticket));
    }

    /// Keeps the event that covers more of a place's frees; the other event becomes spare.
    fn keep_event(&mut self, event: Event, ticket: Ticket) {
        let known = &mut self.places[ticket.place].event;
        let unneeded = match known {
            Some((_, epoch)) if *epoch >= ticket.epoch => Some(event),
            _ => known.replace((event, ticket.epoch)).map(|(event, _)| event),
        };
        self.spare.extend(unneeded);
    }

    /// Frees a block in the capture that allocated it. No work outside of the capture can have used the
    /// block. So it belongs to the stream in this capture, and to the scope once no capture is open.
    pub(super) fn free_captured(&mut self, held: Held, stream: StreamId, capture: u64) {
        if self.has_ended {
            return self.free_unowned(held);
        }
        let place = self.place((stream, Side::Captured(capture)));
        self.heap.free(held.chunk, owner_of(place), CAPTURED);
    }

    /// Keeps a block until the work that it waits for is done.
    pub(super) fn park(&mut self, held: Held, waits: Vec<Wait>, capture: Option<(StreamId, u64)>) {
        if self.has_ended {
            return self.free_unowned(held);
        }
        self.parking.park(held.chunk, waits, capture);
    }

    /// Keeps a block that was freed in a graph outside the scope until the scope ends.
    pub(super) fn withhold(&mut self, held: Held) {
        if self.has_ended {
            return self.free_unowned(held);
        }
        self.withheld.push(held.chunk);
    }

    /// No order is needed: memory of an ended scope goes upstream only after a wait for the device.
    fn free_unowned(&mut self, held: Held) {
        self.heap.free(held.chunk, ANY_STREAM, EPOCH);
    }

    /// Returns the place of a stream on one side. A stream without one gets a vacant or a new place.
    fn place(&mut self, key: (StreamId, Side)) -> usize {
        let known = self.places.iter().position(|place| place.key == Some(key));
        let place = known.or_else(|| self.places.iter().position(|place| place.key.is_none()));
        let place = place.unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        self.places[place].key = Some(key);
        self.heap.has_one_stream = self.places.iter().filter(|place| place.key.is_some()).count() <= 1;
        place
    }

    // --- Streams that are open ---

    pub(super) fn open(&mut self, stream: NamedStream) {
        self.open.push(stream);
    }

    pub(super) fn open_streams(&self) -> &[NamedStream] {
        &self.open
    }

    /// Closes the scope for a stream. After the last stream, blocks that were freed in the capture that
    /// allocated them are free for the next capture: the graphs never run at once. Blocks used by work
    /// outside of captures still wait for that work.
    pub(super) fn begin_close(&mut self, stream: StreamId) -> Closing {
        self.open.retain(|open| open.id != stream);
        let mut streams = self.parking.unrecorded();
        if !self.open.is_empty() {
            streams.retain(|named| named.id == stream);
        } else {
            self.parking.note_captures_ended();
            for index in 0..self.places.len() {
                if matches!(self.places[index].key, Some((_, Side::Captured(_)))) {
                    self.vacate(index, CAPTURED);
                }
            }
        }
        Closing { streams, parked: self.parking.next() }
    }

    /// Notes the event, if any, that was recorded on one of these streams.
    pub(super) fn end_close(&mut self, closing: &Closing, stream: StreamId, event: Option<Event>) {
        let fence = event.map(|event| self.add_fence(event));
        self.parking.note_record(stream, fence, closing.parked);
    }

    /// Numbers an event that parked blocks wait for.
    pub(super) fn add_fence(&mut self, event: Event) -> u64 {
        let fence = self.parking.new_fence();
        self.fences.push((fence, event));
        fence
    }

    // --- Work that is done ---

    /// Returns an unused event, if there is one.
    pub(super) fn take_spare_event(&mut self) -> Option<Event> {
        self.spare.pop()
    }

    pub(super) fn keep_spare_event(&mut self, event: Event) {
        self.spare.push(event);
    }

    /// Takes the events that show whose work is done.
    pub(super) fn begin_queries(&mut self) -> Vec<Query> {
        let of_places = self.places.iter_mut().enumerate().filter_map(|(place, known)| {
            let (event, epoch) = known.event.take()?;
            Some((event, Covers::Place(Ticket { place, epoch })))
        });
        let of_places: Vec<_> = of_places.collect();
        let of_fences = self.fences.drain(..).map(|(fence, event)| (event, Covers::Fence(fence)));
        let all = of_places.into_iter().chain(of_fences);
        all.map(|(event, covers)| Query { event, is_reached: false, covers }).collect()
    }

    /// Notes the answers. Blocks whose work is done are unowned, or belong to their capture while that goes
    /// on.
    pub(super) fn end_queries(&mut self, queries: Vec<Query>) {
        for Query { event, is_reached, covers } in queries {
            match covers {
                Covers::Place(ticket) if is_reached => {
                    self.spare.push(event);
                    self.vacate(ticket.place, ticket.epoch);
                }
                Covers::Place(ticket) => self.keep_event(event, ticket),
                Covers::Fence(fence) if is_reached => {
                    self.spare.push(event);
                    self.parking.note_reached(fence);
                }
                Covers::Fence(fence) => self.fences.push((fence, event)),
            }
        }
        self.free_ready();
    }

    /// Notes the blocks freed so far on ordinary streams, and the parked ones.
    pub(super) fn begin_device_wait(&self) -> DeviceWait {
        let places = self.places.iter().enumerate();
        let ordinary = places.filter(|(_, known)| matches!(known.key, Some((_, Side::Ordinary))));
        let places = ordinary.map(|(place, known)| Ticket { place, epoch: known.tickets }).collect();
        DeviceWait { places, parked: self.parking.next() }
    }

    /// Notes that the wait for the device is over.
    pub(super) fn end_device_wait(&mut self, wait: &DeviceWait) {
        wait.places.iter().for_each(|ticket| self.vacate(ticket.place, ticket.epoch));
        self.parking.note_device(wait.parked);
        self.free_ready();
    }

    fn free_ready(&mut self) {
        for block in self.parking.take_ready() {
            let (owner, epoch) = match block.capture {
                Some((stream, capture)) => {
                    (owner_of(self.place((stream, Side::Captured(capture)))), CAPTURED)
                }
                None => (ANY_STREAM, EPOCH),
            };
            self.heap.free(block.chunk, owner, epoch);
        }
    }

    /// Makes a place's blocks unowned if they were freed up to a ticket. A place without blocks becomes
    /// vacant.
    fn vacate(&mut self, place: usize, upto: Epoch) {
        self.heap.migrate(owner_of(place), upto, ANY_STREAM, EPOCH);
        let known = &mut self.places[place];
        if known.pending == 0 && self.heap.free_bytes(owner_of(place)) == 0 {
            known.key = None;
        }
    }

    // --- Spans ---

    /// Returns whether a span starts at this address.
    pub(super) fn is_span(&self, ptr: DevicePtr) -> bool {
        self.heap.regions().binary_search_by_key(&ptr.address(), |region| region.base).is_ok()
    }

    /// The bytes of all spans.
    pub(super) fn bytes_held(&self) -> u64 {
        self.heap.bytes_reserved
    }

    /// Removes an ended scope's spans without live blocks. The caller waits for the device and then returns
    /// them to upstream, or puts them back.
    pub(super) fn remove_free_spans(&mut self) -> Vec<(DevicePtr, u64)> {
        let parked = self.parking.take_all().into_iter().map(|block| block.chunk);
        for chunk in parked.chain(self.withheld.drain(..)) {
            self.heap.free(chunk, ANY_STREAM, EPOCH);
        }
        (0..self.places.len()).for_each(|index| self.vacate(index, CAPTURED));
        let next = || self.heap.remove_free_region(|_| true);
        let spans = std::iter::from_fn(next);
        spans.map(|(region, ..)| (DevicePtr::new(region.base), region.bytes)).collect()
    }

    /// Puts a removed span back.
    pub(super) fn restore(&mut self, span: DevicePtr, bytes: u64) {
        self.heap.add_region(span.address(), bytes, ANY_STREAM, EPOCH);
    }

    /// Removes all spans, with or without live blocks.
    pub(super) fn remove_all_spans(&mut self) -> Vec<(DevicePtr, u64)> {
        let spans = self.heap.remove_all_regions();
        spans.into_iter().map(|region| (DevicePtr::new(region.base), region.bytes)).collect()
    }

    /// Removes all events: an ended scope has no use for them.
    pub(super) fn remove_events(&mut self) -> Vec<Event> {
        let of_places = self.places.iter_mut().filter_map(|place| place.event.take());
        let of_places: Vec<Event> = of_places.map(|(event, _)| event).collect();
        let of_fences = self.fences.drain(..).map(|(_, event)| event);
        of_places.into_iter().chain(of_fences).chain(self.spare.drain(..)).collect()
    }

    // --- Reports ---

    /// Returns the live blocks, from this allocation on, in the order of their allocation.
    pub(super) fn blocks(&self, scope: u64, since: u64) -> Vec<BlockInfo> {
        let mut blocks: Vec<_> = self.blocks.iter().filter(|(_, held)| held.number >= since).collect();
        blocks.sort_by_key(|(_, held)| held.number);
        blocks.into_iter().map(|(ptr, held)| info(*ptr, held, scope)).collect()
    }

    /// Returns the known data of the block that starts at this address.
    pub(super) fn block_at(&self, ptr: DevicePtr, scope: u64) -> Option<BlockInfo> {
        self.blocks.get(&ptr).map(|held| info(ptr, held, scope))
    }

    /// Returns the spans with their blocks. A freed block that no stream may take yet waits.
    pub(super) fn segments(&self, scope: u64) -> Vec<MemorySegment> {
        let block = |chunk: &Chunk| {
            let held = self.blocks.get(&DevicePtr::new(chunk.addr)).filter(|_| chunk.is_in_use());
            let requested = held.map_or(0, |held| held.bytes);
            let mut block = MemoryBlock::new(chunk.addr, chunk.bytes, requested);
            block.scope = Some(scope);
            block.stream = held.map(|held| held.stream.stream.handle());
            if held.is_none() && chunk.is_in_use() {
                (block.state, block.requested_bytes) = (BlockState::Waiting, chunk.bytes);
            }
            block
        };
        let spans = self.heap.regions().iter();
        spans.map(|span| MemorySegment::new(self.heap.region_chunks(span).map(block).collect())).collect()
    }

    pub(super) fn report(&self, scope: u64) -> ScopeMemory {
        let mut report = ScopeMemory::default();
        report.id = scope;
        report.open_streams = self.open.len();
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
    info.stream = Some(held.stream.stream.handle());
    info.scope = Some(scope);
    info
}

/// Returns the owner of a place's free blocks.
fn owner_of(place: usize) -> Owner {
    place as Owner + 1
}
