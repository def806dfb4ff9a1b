//! The table of streams: each stream's owner number, epoch and event, and the streams it is ordered after.

use std::sync::Arc;

use millpond_core::driver::Event;
use millpond_core::{StreamId, StreamRef};
use rustc_hash::FxHashMap;

use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::tuning::FEW_STREAMS;

/// The part of a stream's state that threads use without the lock. The table keeps the stream while a thread
/// or a stream cache holds its cell.
#[derive(Debug)]
pub(crate) struct StreamCell {
    pub(crate) owner: Owner,
    /// The epoch of a block that is freed now.
    epoch: AtomicU64,
    /// Another stream wants this stream's blocks, and its thread could not record the event. This stream's
    /// next call records it.
    record_requested: AtomicBool,
}

impl StreamCell {
    /// Returns the epoch of a block that is freed now.
    ///
    /// The recorded event that ends an epoch covers every free that reads the epoch here. The epoch ends
    /// before the event is recorded, so a thread that still reads it submitted its work before the record:
    /// the driver's lock on the stream orders the two.
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns whether the stream's next call should record its event.
    #[inline]
    pub(crate) fn is_record_requested(&self) -> bool {
        self.record_requested.load(Ordering::Relaxed)
    }
}

/// The state of one stream.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Slot {
    pub(crate) id: StreamId,
    pub(crate) stream: StreamRef,
    pub(crate) cell: Arc<StreamCell>,
    /// The number of calls on this stream that took the lock; counts only the first few.
    pub(crate) calls: u32,
    /// The stream's event, once one is needed. A later record covers everything that an earlier one covers.
    pub(crate) event: Option<Event>,
    /// The latest epoch that the recorded event covers. `None` before the first record and after an error,
    /// and also once the device has reached the event and its blocks are unowned.
    pub(crate) recorded_epoch: Option<Epoch>,
    /// When the event was recorded, in nanoseconds of the pool's clock.
    pub(crate) recorded_ns: u64,
    /// The epochs of other streams that the stream was ordered after when its event was recorded.
    pub(crate) recorded_seen: Vec<(Owner, Epoch)>,
    /// The latest epochs of other streams that this stream's next work is ordered after.
    seen: Vec<(Owner, Epoch)>,
    /// The number of pending records. Each is a thread that is about to record the event.
    pending_records: u32,
}

impl Slot {
    fn new(stream: StreamRef, owner: Owner) -> Self {
        let cell = StreamCell { owner, epoch: AtomicU64::new(1), record_requested: AtomicBool::new(false) };
        Self {
            id: stream.id(),
            stream,
            cell: Arc::new(cell),
            calls: 0,
            event: None,
            recorded_epoch: None,
            recorded_ns: 0,
            recorded_seen: Vec::new(),
            seen: Vec::new(),
            pending_records: 0,
        }
    }

    /// Returns the streams that this one is ordered after, each with an epoch up to which it is.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (Owner, Epoch)> {
        self.seen.iter().copied()
    }

    /// Ends the current epoch and returns it. Blocks freed from now on belong to the next.
    pub(crate) fn end_epoch(&mut self) -> Epoch {
        self.cell.epoch.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns the current epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        self.cell.epoch()
    }

    /// Sets whether the stream's next call should record its event.
    pub(crate) fn set_record_requested(&self, is_requested: bool) {
        self.cell.record_requested.store(is_requested, Ordering::Relaxed);
    }

    /// Returns a pending record for the stream's call, if another stream requested one.
    pub(crate) fn take_requested_record(&mut self) -> Option<PendingRecord> {
        if !self.cell.is_record_requested() {
            return None;
        }
        self.set_record_requested(false);
        Some(self.pending_record())
    }

    /// Ends the current epoch. The caller then records the event that covers it, and settles the pending
    /// record. The order after other streams is noted here, because a wait inserted meanwhile may come after
    /// the recorded event.
    pub(crate) fn pending_record(&mut self) -> PendingRecord {
        self.pending_records += 1;
        PendingRecord { id: self.id, epoch: self.end_epoch(), seen: self.seen.clone(), event: self.event }
    }
}

/// An unfinished record of a stream's event; see [`Slot::pending_record`]. The table keeps the stream
/// meanwhile.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
#[must_use]
pub(crate) struct PendingRecord {
    pub(crate) id: StreamId,
    pub(crate) epoch: Epoch,
    pub(crate) seen: Vec<(Owner, Epoch)>,
    /// The stream's event; if it has none yet, the caller creates one.
    pub(crate) event: Option<Event>,
}

fn raise(known: &mut Vec<(Owner, Epoch)>, owner: Owner, epoch: Epoch) {
    match known.iter_mut().find(|(other, _)| *other == owner) {
        Some((_, old)) => *old = epoch.max(*old),
        None => known.push((owner, epoch)),
    }
}

/// The streams of a pool, each with an [`Owner`] number. When new streams come, the table forgets streams
/// that own no free block, so that a million short-lived streams do not fill it.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Streams {
    /// Indexed by owner. `None` at [`ANY_STREAM`] and for forgotten streams.
    slots: Vec<Option<Slot>>,
    by_id: FxHashMap<StreamId, Owner>,
    vacant: Vec<Owner>,
    /// The stream of the last call; the next call mostly uses it again.
    last: Option<(StreamId, Owner)>,
    /// The number of streams at which the next sweep forgets idle ones.
    sweep_at: usize,
    /// Events of forgotten streams.
    spare_events: Vec<Event>,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self { slots: vec![None], sweep_at: FEW_STREAMS, ..Self::default() }
    }

    /// Returns the owner number of a stream. Adds the stream if it is new.
    pub(crate) fn owner_of(&mut self, stream: StreamRef) -> Owner {
        let id = stream.id();
        if let Some((last, owner)) = self.last
            && last == id
        {
            return owner;
        }
        let owner = match self.by_id.get(&id) {
            Some(owner) => *owner,
            None => self.add(stream),
        };
        self.last = Some((id, owner));
        owner
    }

    fn add(&mut self, stream: StreamRef) -> Owner {
        let owner = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as Owner
        });
        let slot = Slot::new(stream, owner);
        self.by_id.insert(slot.id, owner);
        self.slots[owner as usize] = Some(slot);
        owner
    }

    /// Forgets the streams that own no free block, once there are many. Only their order after other streams
    /// is lost. The caller must not use any stream's event meanwhile: the event of a forgotten stream passes
    /// to another.
    pub(crate) fn sweep(&mut self, free_bytes: impl Fn(Owner) -> u64) {
        // A pending record names owners. A sweep would give their numbers to other streams.
        let is_pending = |slot: &Slot| slot.pending_records > 0;
        if self.by_id.len() < self.sweep_at || self.slots.iter().flatten().any(is_pending) {
            return;
        }
        self.last = None;
        let mut gone = Vec::new();
        for owner in 1..self.slots.len() as Owner {
            let is_idle = |slot: &mut Slot| Arc::strong_count(&slot.cell) == 1 && free_bytes(owner) == 0;
            if let Some(slot) = self.slots[owner as usize].take_if(is_idle) {
                self.by_id.remove(&slot.id);
                self.spare_events.extend(slot.event);
                self.vacant.push(owner);
                gone.push(owner);
            }
        }
        for slot in self.slots.iter_mut().flatten() {
            slot.seen.retain(|(owner, _)| !gone.contains(owner));
            slot.recorded_seen.retain(|(owner, _)| !gone.contains(owner));
        }
        self.sweep_at = FEW_STREAMS.max(self.by_id.len() * 2);
    }

    pub(crate) fn slot(&self, owner: Owner) -> &Slot {
        self.slots[owner as usize].as_ref().expect("the owner is a known stream")
    }

    /// Returns the raw handle of a stream, unless the table has forgotten it.
    pub(crate) fn handle_of(&self, owner: Owner) -> Option<u64> {
        self.slots.get(owner as usize)?.as_ref().map(|slot| slot.stream.handle())
    }

    pub(crate) fn slot_mut(&mut self, owner: Owner) -> &mut Slot {
        self.slots[owner as usize].as_mut().expect("the owner is a known stream")
    }

    /// Returns the slot of a stream that may have been forgotten since the lock was last held.
    pub(crate) fn find_mut(&mut self, id: StreamId) -> Option<(Owner, &mut Slot)> {
        let owner = *self.by_id.get(&id)?;
        self.slots[owner as usize].as_mut().map(|slot| (owner, slot))
    }

    /// Returns all known streams.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Owner, &Slot)> {
        (0..).zip(&self.slots).filter_map(|(owner, slot)| Some((owner, slot.as_ref()?)))
    }

    /// Returns all known streams.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Owner, &mut Slot)> {
        (0..).zip(&mut self.slots).filter_map(|(owner, slot)| Some((owner, slot.as_mut()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Ends a pending record: its event was recorded, at `now_ns` at the latest, or was not. Returns whether
    /// it was recorded and is the stream's event.
    ///
    /// Two threads may each have created the stream's first event. The second event is kept for another
    /// stream, and its record does not count, because that stream may record it again at any time.
    pub(crate) fn settle(&mut self, pending_record: PendingRecord, recorded: bool, now_ns: u64) -> bool {
        let (_, slot) =
            self.find_mut(pending_record.id).expect("a stream with a pending record is not forgotten");
        slot.pending_records -= 1;
        let is_its_event = match pending_record.event {
            None => false,
            Some(event) => *slot.event.get_or_insert(event) == event,
        };
        let recorded = recorded && is_its_event;
        if recorded && slot.recorded_epoch.is_none_or(|old| old < pending_record.epoch) {
            slot.recorded_epoch = Some(pending_record.epoch);
            slot.recorded_seen = pending_record.seen;
            slot.recorded_ns = now_ns;
        }
        if !is_its_event {
            self.spare_events.extend(pending_record.event);
        }
        recorded
    }

    /// Notes that `waiter` waits for a recorded event of `donor` that covers `epoch`. The waiter is then also
    /// ordered after everything that the donor was ordered after at the record (`inherited`), but not after
    /// later waits of the donor.
    pub(crate) fn waited(&mut self, waiter: Owner, donor: Owner, epoch: Epoch, inherited: &[(Owner, Epoch)]) {
        let seen = &mut self.slot_mut(waiter).seen;
        raise(seen, donor, epoch);
        for (owner, epoch) in inherited {
            if *owner != waiter && *owner != ANY_STREAM {
                raise(seen, *owner, *epoch);
            }
        }
    }

    pub(crate) fn take_spare_event(&mut self) -> Option<Event> {
        self.spare_events.pop()
    }

    /// Panics if the streams break an invariant. No other thread may call the resource meanwhile.
    pub(crate) fn validate(&self, free_bytes: impl Fn(Owner) -> u64) {
        let known = self.iter().count();
        assert_eq!(known, self.by_id.len(), "I4: streams by owner and by identity");
        assert_eq!(known + self.vacant.len() + 1, self.slots.len(), "I4: each owner is known or vacant");
        for owner in &self.vacant {
            assert!(self.slots[*owner as usize].is_none(), "I4: {owner} is known and vacant");
            assert_eq!(free_bytes(*owner), 0, "I4: {owner} was forgotten, and owns blocks");
        }
        for (owner, slot) in self.iter() {
            assert_eq!(self.by_id.get(&slot.id), Some(&owner), "I4: {owner} belongs to another stream");
            assert_eq!(slot.cell.owner, owner, "I4: the cell of {owner} has another owner");
            assert_eq!(slot.pending_records, 0, "I6: a record of {owner} is pending");
            let recorded = slot.recorded_epoch.unwrap_or(0);
            assert!(recorded < slot.epoch(), "I2: the event of {owner} covers an epoch that is not over");
            assert!(
                recorded == 0 || slot.event.is_some(),
                "I6: {owner} has a recorded epoch without an event"
            );
            for (other, epoch) in slot.seen.iter().chain(&slot.recorded_seen) {
                assert!(*other != ANY_STREAM && *other != owner, "I3: {owner} was made to wait for {other}");
                let current = self.slots[*other as usize].as_ref().map_or(0, Slot::epoch);
                assert!(
                    *epoch < current,
                    "I3: {owner} has seen epoch {epoch} of {other}, which is at {current}"
                );
            }
        }
    }

    /// Takes all events, for the caller to destroy.
    pub(crate) fn drain_events(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.spare_events);
        events.extend(self.iter_mut().filter_map(|(_, slot)| slot.event.take()));
        events
    }
}

/// For the comparison with the model (`pool/central/tie/`).
#[cfg(all(test, not(millpond_loom)))]
impl Streams {
    /// Returns a table of its own with the same contents.
    pub(crate) fn copy(&self) -> Self {
        let mut copy = self.clone();
        for (_, slot) in copy.iter_mut() {
            let (epoch, record_requested) = (slot.epoch().into(), slot.cell.is_record_requested().into());
            slot.cell = Arc::new(StreamCell { owner: slot.cell.owner, epoch, record_requested });
        }
        copy
    }

    /// Lets the next sweep forget idle streams, however few there are.
    pub(crate) fn sweep_soon(&mut self) {
        self.sweep_at = 0;
    }
}

#[cfg(all(test, not(millpond_loom)))]
impl Slot {
    pub(crate) fn pending_records(&self) -> u32 {
        self.pending_records
    }
}

/// Returns a cell for models in other modules.
#[cfg(all(test, millpond_loom))]
pub(crate) fn stream_cell_for_models(stream: StreamRef, owner: Owner) -> Arc<StreamCell> {
    Slot::new(stream, owner).cell
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use super::*;

    /// `validate()` finds a record that was never settled.
    #[test]
    #[should_panic(expected = "I6: a record of 1 is pending")]
    fn validate_finds_a_pending_record() {
        let mut streams = Streams::new();
        let owner = streams.owner_of(StreamRef::LEGACY);
        streams.validate(|_| 0);
        _ = streams.slot_mut(owner).pending_record();
        streams.validate(|_| 0);
    }

    /// Two threads record a stream's event, and the later record may settle first. The event covers
    /// everything before the later record.
    #[test]
    fn the_latest_record_counts() {
        for first_settles_last in [false, true] {
            let mut streams = Streams::new();
            let owner = streams.owner_of(StreamRef::LEGACY);
            streams.slot_mut(owner).event = Some(Event(1));
            let mut records = [(); 2].map(|()| streams.slot_mut(owner).pending_record());
            let [first, latest] = [records[0].epoch, records[1].epoch];
            assert!(first < latest);
            if first_settles_last {
                records.reverse();
            }
            for (ns, record) in (1..).zip(records) {
                streams.settle(record, true, ns);
            }
            let slot = streams.slot(owner);
            assert_eq!(slot.recorded_epoch, Some(latest));
            assert_eq!(slot.recorded_ns, if first_settles_last { 1 } else { 2 });
            let failed = streams.slot_mut(owner).pending_record();
            streams.settle(failed, false, 9);
            assert_eq!(streams.slot(owner).recorded_epoch, Some(latest));
        }
    }

    const STREAMS: u64 = 3;

    fn streams() -> (Streams, Vec<Owner>) {
        let mut streams = Streams::new();
        let stream = |number| StreamRef::from_raw_parts(number << 8, number);
        let owners = (1..=STREAMS).map(|number| streams.owner_of(stream(number))).collect();
        (streams, owners)
    }

    fn seen(streams: &Streams, owner: Owner) -> Vec<(Owner, Epoch)> {
        let mut seen: Vec<(Owner, Epoch)> = streams.slot(owner).seen().collect();
        seen.sort_unstable();
        seen
    }

    /// A stream that waits for another inherits the other's order, except after itself and after work that is
    /// done anyway. It keeps the latest epoch of each stream.
    #[test]
    fn a_wait_inherits_the_order_of_others() {
        let (mut streams, owners) = streams();
        let [first, second, third] = owners[..] else { panic!("there are three") };
        streams.waited(first, second, 5, &[(first, 7), (ANY_STREAM, 3), (third, 2)]);
        assert_eq!(seen(&streams, first), [(second, 5), (third, 2)]);
        streams.waited(first, second, 4, &[(third, 6)]);
        assert_eq!(seen(&streams, first), [(second, 5), (third, 6)]);
        streams.waited(third, first, 1, &seen(&streams, first));
        assert_eq!(seen(&streams, third), [(first, 1), (second, 5)]);
        assert_eq!(seen(&streams, second), []);
    }

    /// A record notes the stream's order at the time when the record began.
    #[test]
    fn a_record_has_the_order_of_its_moment() {
        let (mut streams, owners) = streams();
        let [first, second, third] = owners[..] else { panic!("there are three") };
        streams.waited(first, second, 5, &[]);
        streams.slot_mut(first).event = Some(Event(1));
        let pending = streams.slot_mut(first).pending_record();
        streams.waited(first, third, 6, &[]);
        streams.settle(pending, true, 1);
        assert_eq!(streams.slot(first).recorded_seen, [(second, 5)]);
    }

    /// A record requested by another stream is made once, by the stream's next call.
    #[test]
    fn a_requested_record_is_taken_once() {
        let (mut streams, owners) = streams();
        let slot = streams.slot_mut(owners[0]);
        slot.event = Some(Event(1));
        assert!(slot.take_requested_record().is_none() && !slot.cell.is_record_requested());
        slot.set_record_requested(true);
        assert!(slot.cell.is_record_requested());
        let epoch = slot.epoch();
        let pending = slot.take_requested_record().expect("it was requested");
        assert_eq!((pending.epoch, slot.epoch()), (epoch, epoch + 1));
        assert!(slot.take_requested_record().is_none() && !slot.cell.is_record_requested());
        streams.settle(pending, true, 1);
        assert_eq!(streams.slot(owners[0]).recorded_epoch, Some(epoch));
        streams.validate(|_| 0);
    }

    /// Two events are created for one stream at once. One becomes the stream's. The other serves another
    /// stream, so its record does not count.
    #[test]
    fn a_stream_has_one_event() {
        let (mut streams, owners) = streams();
        let mut records = [(); 2].map(|()| streams.slot_mut(owners[0]).pending_record());
        for (number, record) in (1..).zip(&mut records) {
            record.event = Some(Event(number));
        }
        let epochs = [records[0].epoch, records[1].epoch];
        assert_eq!(records.map(|record| streams.settle(record, true, 1)), [true, false]);
        let slot = streams.slot(owners[0]);
        assert_eq!((slot.event, slot.recorded_epoch), (Some(Event(1)), Some(epochs[0])));
        let mut again = streams.slot_mut(owners[0]).pending_record();
        assert_eq!(again.event.take(), Some(Event(1)));
        assert!(!streams.settle(again, false, 2) && streams.slot(owners[0]).event.is_some());
        assert_eq!((streams.take_spare_event(), streams.take_spare_event()), (Some(Event(2)), None));
        streams.validate(|_| 0);
    }

    /// With many streams, a stream is forgotten if it owns nothing, no thread uses it, and no record of it is
    /// pending. Its number and event pass to another stream.
    #[test]
    fn idle_streams_are_forgotten_once_there_are_many() {
        let (mut streams, owners) = streams();
        let [owns, used, idle] = owners[..] else { panic!("there are three") };
        let cell = Arc::clone(&streams.slot(used).cell);
        let sweep = |streams: &mut Streams| streams.sweep(|owner| u64::from(owner == owns));
        let event = Event(1);
        streams.slot_mut(idle).event = Some(event);
        streams.waited(owns, idle, 0, &[]);
        sweep(&mut streams);
        assert_eq!(streams.len(), 3, "three are few");
        streams.sweep_at = 3;
        let pending = streams.slot_mut(owns).pending_record();
        sweep(&mut streams);
        assert_eq!(streams.len(), 3, "a record is pending");
        streams.settle(pending, false, 0);
        sweep(&mut streams);
        let left: Vec<Owner> = streams.iter().map(|(owner, _)| owner).collect();
        assert_eq!((left, streams.len()), (vec![owns, used], 2));
        assert_eq!(seen(&streams, owns), []);
        streams.validate(|owner| u64::from(owner == owns));
        assert_eq!(streams.owner_of(StreamRef::LEGACY), idle, "the number is given again");
        assert_eq!((streams.take_spare_event(), streams.take_spare_event()), (Some(event), None));
        streams.spare_events.push(event);
        assert_eq!(streams.drain_events(), [event]);
        assert!(cell.owner == used && streams.drain_events().is_empty());
    }
}

#[cfg(all(test, millpond_loom))]
mod models;
