//! Streams and events by handle. As in CUDA, a handle is reused after its stream or event ends.

use millpond_core::StreamRef;
use millpond_core::driver::Event;
use rustc_hash::FxHashMap;

use super::capture::CaptureId;
use super::clock::{Clock, Epoch, Slot};
use super::order::LEGACY;

const FIRST_STREAM: u64 = 0x51_0000_0000;
const FIRST_EVENT: u64 = 0x52_0000_0000;
const STRIDE: u64 = 0x80;

/// A table from handles to values. The handle freed last is reused first.
#[derive(Debug)]
struct Handles<T> {
    first: u64,
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Handles<T> {
    const fn new(first: u64) -> Self {
        Self { first, entries: Vec::new(), free: Vec::new() }
    }

    /// The handle that the next [`insert`](Self::insert) returns.
    fn next(&self) -> u64 {
        self.first + *self.free.last().unwrap_or(&self.entries.len()) as u64 * STRIDE
    }

    fn insert(&mut self, value: T) -> u64 {
        let handle = self.next();
        match self.free.pop() {
            Some(index) => self.entries[index] = Some(value),
            None => self.entries.push(Some(value)),
        }
        handle
    }

    fn index(&self, handle: u64) -> usize {
        let offset = handle.wrapping_sub(self.first);
        if offset.is_multiple_of(STRIDE) { (offset / STRIDE) as usize } else { usize::MAX }
    }

    fn get(&self, handle: u64) -> Option<&T> {
        self.entries.get(self.index(handle))?.as_ref()
    }

    fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let index = self.index(handle);
        self.entries.get_mut(index)?.as_mut()
    }

    fn remove(&mut self, handle: u64) -> Option<T> {
        let index = self.index(handle);
        let value = self.entries.get_mut(index)?.take()?;
        self.free.push(index);
        Some(value)
    }

    /// Removes all values.
    fn clear(&mut self) -> Vec<T> {
        let ended: Vec<usize> = (0..self.entries.len()).filter(|at| self.entries[*at].is_some()).collect();
        self.free.extend(&ended);
        ended.into_iter().filter_map(|at| self.entries[at].take()).collect()
    }

    const fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    id: u64,
    slot: Slot,
}

/// The point recorded by an event's last record.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) epoch: Epoch,
    pub(crate) clock: Clock,
    /// The capture in which the event was recorded, if any.
    pub(crate) captured_in: Option<CaptureId>,
}

#[derive(Debug, Default)]
struct EventEntry {
    /// The record. It is kept when the event ends, to reuse its memory.
    record: Option<Record>,
}

/// The existing streams and events.
#[derive(Debug)]
pub(crate) struct Names {
    streams: Handles<Stream>,
    events: Handles<EventEntry>,
    per_thread: FxHashMap<u64, Slot>,
    /// The clocks of ended events, for reuse.
    spare: Vec<Clock>,
    first_id: u64,
    created: u64,
}

impl Names {
    /// `first_id` is the first unique id for this device's streams.
    pub(crate) fn new(first_id: u64) -> Self {
        Self {
            streams: Handles::new(FIRST_STREAM),
            events: Handles::new(FIRST_EVENT),
            per_thread: FxHashMap::default(),
            spare: Vec::new(),
            first_id,
            created: 0,
        }
    }

    // --- Streams ---

    pub(crate) fn next_stream_handle(&self) -> u64 {
        self.streams.next()
    }

    pub(crate) fn add_stream(&mut self, slot: Slot) -> StreamRef {
        let id = self.first_id + self.created;
        self.created += 1;
        let handle = self.streams.insert(Stream { id, slot });
        StreamRef::from_raw_parts(handle, id)
    }

    /// The slot of an existing stream. A per-thread stream has one only after
    /// [`add_per_thread`](Self::add_per_thread).
    #[inline]
    pub(crate) fn slot(&self, stream: StreamRef) -> Option<Slot> {
        if stream.is_legacy() {
            return Some(LEGACY);
        }
        let id = stream.id().get();
        if stream.is_per_thread() {
            return self.per_thread.get(&id).copied();
        }
        self.streams.get(stream.handle()).filter(|found| found.id == id).map(|found| found.slot)
    }

    pub(crate) fn add_per_thread(&mut self, stream: StreamRef, slot: Slot) {
        self.per_thread.insert(stream.id().get(), slot);
    }

    /// The stream with this raw handle.
    pub(crate) fn stream(&self, handle: u64) -> Option<StreamRef> {
        match handle {
            0..=2 => Some(StreamRef::from_raw_parts(handle, 0)),
            _ => self.streams.get(handle).map(|found| StreamRef::from_raw_parts(handle, found.id)),
        }
    }

    pub(crate) fn remove_stream(&mut self, stream: StreamRef) {
        self.streams.remove(stream.handle());
    }

    pub(crate) const fn live_streams(&self) -> usize {
        self.streams.len()
    }

    // --- Events ---

    pub(crate) fn add_event(&mut self) -> Event {
        Event(self.events.insert(EventEntry::default()))
    }

    pub(crate) fn has_event(&self, event: Event) -> bool {
        self.events.get(event.0).is_some()
    }

    /// The event's last record.
    pub(crate) fn record(&self, event: Event) -> Option<&Record> {
        self.events.get(event.0)?.record.as_ref()
    }

    pub(crate) fn set_record(
        &mut self,
        event: Event,
        epoch: Epoch,
        clock: &Clock,
        captured_in: Option<CaptureId>,
    ) {
        let Some(entry) = self.events.get_mut(event.0) else { return };
        let mut own = match entry.record.take() {
            Some(record) => record.clock,
            None => self.spare.pop().unwrap_or_default(),
        };
        own.copy_from(clock);
        entry.record = Some(Record { epoch, clock: own, captured_in });
    }

    /// Calls `each` with the point of every event's last record.
    pub(crate) fn for_each_epoch(&self, mut each: impl FnMut(Epoch)) {
        let events = self.events.entries.iter().flatten();
        events.filter_map(|entry| entry.record.as_ref()).for_each(|record| each(record.epoch));
    }

    pub(crate) fn remove_event(&mut self, event: Event) -> bool {
        let Some(entry) = self.events.remove(event.0) else { return false };
        self.spare.extend(entry.record.map(|record| record.clock));
        true
    }

    /// Removes all streams and events; returns the streams' slots.
    pub(crate) fn clear(&mut self) -> Vec<Slot> {
        self.events.clear();
        self.streams.clear().into_iter().map(|stream| stream.slot).collect()
    }

    pub(crate) const fn live_events(&self) -> usize {
        self.events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_handle_ended_is_the_next_given() {
        let mut handles = Handles::new(1000);
        let [a, b, c] = [1, 2, 3].map(|value| handles.insert(value));
        assert_eq!([a, b, c], [1000, 1000 + STRIDE, 1000 + 2 * STRIDE]);
        assert_eq!((handles.remove(a), handles.remove(c), handles.remove(c)), (Some(1), Some(3), None));
        assert_eq!((handles.next(), handles.insert(4), handles.insert(5)), (c, c, a));
        assert_eq!((handles.get(c), handles.get(b + 1), handles.get(7)), (Some(&4), None, None));
        assert_eq!(handles.len(), 3);
    }
}
