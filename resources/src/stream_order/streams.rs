use std::sync::Arc;

use millpond_core::driver::Event;
use millpond_core::{StreamId, StreamRef};
use rustc_hash::FxHashMap;

use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// What is asked about a stream without the lock. Its stream is not forgotten while somebody else holds it.
#[derive(Debug)]
pub(crate) struct StreamCell {
    pub(crate) owner: Owner,
    /// Blocks freed now are of this epoch.
    epoch: AtomicU64,
    /// Somebody else wants its blocks and could not record a recorded event: the stream's own next call does.
    wanted: AtomicBool,
}

impl StreamCell {
    /// The epoch of a block that is freed now.
    ///
    /// A free that reads an epoch here is covered by the recorded event that ends it: the epoch ends before
    /// the recorded event is recorded, so whoever still reads it has submitted his work before the record, as
    /// the driver's own lock on the stream orders the two.
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether the stream's own next call is to record a recorded event.
    #[inline]
    pub(crate) fn is_record_requested(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
}

/// What is known of one stream.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) id: StreamId,
    pub(crate) stream: StreamRef,
    pub(crate) cell: Arc<StreamCell>,
    /// Calls on this stream that came here, up to a few.
    pub(crate) calls: u32,
    /// The stream's event, once one was needed. Recording it again only moves it to a later recorded event,
    /// which covers everything that the earlier one did.
    pub(crate) event: Option<Event>,
    /// The latest epoch that the event is known to cover, unless that is known to be done, and all that it
    /// covers is unowned.
    pub(crate) recorded_epoch: Option<Epoch>,
    /// When the event was recorded, in nanoseconds of
    /// [`CentralCore::now_ns`](crate::pool::central::Core::now_ns).
    pub(crate) recorded_ns: u64,
    /// What the stream was ordered after when the recorded event was recorded.
    pub(crate) recorded_seen: Vec<(Owner, Epoch)>,
    /// Up to which epoch of which other stream this stream's next work is ordered after.
    seen: Vec<(Owner, Epoch)>,
    /// Tickets that are out: somebody is about to record the event.
    pending_records: u32,
}

impl Slot {
    fn new(stream: StreamRef, owner: Owner) -> Self {
        let cell = StreamCell { owner, epoch: AtomicU64::new(1), wanted: AtomicBool::new(false) };
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

    /// The streams that this one is ordered after, each up to an epoch.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (Owner, Epoch)> {
        self.seen.iter().copied()
    }

    /// Ends the present epoch: blocks given back from now on are of the next.
    pub(crate) fn end_epoch(&mut self) -> Epoch {
        self.cell.epoch.fetch_add(1, Ordering::AcqRel)
    }

    /// The present epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        self.cell.epoch()
    }

    /// Asks the stream's own next call to record a recorded event, or no longer.
    pub(crate) fn set_record_requested(&self, wanted: bool) {
        self.cell.wanted.store(wanted, Ordering::Relaxed);
    }

    /// A pending record for the stream's own call, if somebody else wants its blocks.
    pub(crate) fn take_requested_record(&mut self) -> Option<PendingRecord> {
        if !self.cell.is_record_requested() {
            return None;
        }
        self.set_record_requested(false);
        Some(self.pending_record())
    }

    /// Ends the present epoch for a caller who is about to record the recorded event that covers it, and then
    /// settles the pending record. What the stream is ordered after is noted now, since a wait inserted
    /// meanwhile may miss the recorded event.
    pub(crate) fn pending_record(&mut self) -> PendingRecord {
        self.pending_records += 1;
        PendingRecord { id: self.id, epoch: self.end_epoch(), seen: self.seen.clone() }
    }
}

/// The right to say that a recorded event was recorded; see [`Slot::pending_record`]. Its stream is not
/// forgotten meanwhile.
#[derive(Debug)]
#[must_use]
pub(crate) struct PendingRecord {
    pub(crate) id: StreamId,
    pub(crate) epoch: Epoch,
    pub(crate) seen: Vec<(Owner, Epoch)>,
}

fn raise(known: &mut Vec<(Owner, Epoch)>, owner: Owner, epoch: Epoch) {
    match known.iter_mut().find(|(other, _)| *other == owner) {
        Some((_, old)) => *old = epoch.max(*old),
        None => known.push((owner, epoch)),
    }
}

/// The streams that a resource knows, each with an [`Owner`]; those that own nothing are forgotten as others
/// come, so that a million streams leave no trace.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// By owner; `None` at [`ANY_STREAM`] and where a stream was forgotten.
    slots: Vec<Option<Slot>>,
    by_id: FxHashMap<StreamId, Owner>,
    vacant: Vec<Owner>,
    /// The stream of the last call, which is mostly that of this one.
    last: Option<(StreamId, Owner)>,
    /// Forget idle streams when there are this many.
    sweep_at: usize,
    /// Events of forgotten streams.
    spare_events: Vec<Event>,
}

const FIRST_SWEEP: usize = 32;

impl Streams {
    pub(crate) fn new() -> Self {
        Self { slots: vec![None], sweep_at: FIRST_SWEEP, ..Self::default() }
    }

    /// The owner that stands for this stream.
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

    /// Forgets the streams that own no free block, once there are many. They cost only what knowing their
    /// order was worth. The caller uses no stream's event meanwhile: a forgotten stream's goes to another.
    /// Returns the owners of the forgotten streams.
    pub(crate) fn sweep(&mut self, free_bytes: impl Fn(Owner) -> u64) -> Vec<Owner> {
        // A pending record names owners, which a sweep would give to other streams.
        let in_use = |slot: &Slot| slot.pending_records > 0;
        if self.by_id.len() < self.sweep_at || self.slots.iter().flatten().any(in_use) {
            return Vec::new();
        }
        self.last = None;
        let mut gone = Vec::new();
        for owner in 1..self.slots.len() as Owner {
            let idle = |slot: &mut Slot| Arc::strong_count(&slot.cell) == 1 && free_bytes(owner) == 0;
            if let Some(slot) = self.slots[owner as usize].take_if(idle) {
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
        self.sweep_at = FIRST_SWEEP.max(self.by_id.len() * 2);
        gone
    }

    pub(crate) fn slot(&self, owner: Owner) -> &Slot {
        self.slots[owner as usize].as_ref().expect("the owner of a known stream")
    }

    pub(crate) fn slot_mut(&mut self, owner: Owner) -> &mut Slot {
        self.slots[owner as usize].as_mut().expect("the owner of a known stream")
    }

    /// The slot of a stream that may have been forgotten since the lock was last held.
    pub(crate) fn find_mut(&mut self, id: StreamId) -> Option<(Owner, &mut Slot)> {
        let owner = *self.by_id.get(&id)?;
        self.slots[owner as usize].as_mut().map(|slot| (owner, slot))
    }

    /// All known streams.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Owner, &Slot)> {
        (0..).zip(&self.slots).filter_map(|(owner, slot)| Some((owner, slot.as_ref()?)))
    }

    /// All known streams.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Owner, &mut Slot)> {
        (0..).zip(&mut self.slots).filter_map(|(owner, slot)| Some((owner, slot.as_mut()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The event of the pending record's stream was recorded after the pending record was made, by `now_ns`,
    /// or was not.
    pub(crate) fn settle(&mut self, pending_record: PendingRecord, recorded: bool, now_ns: u64) {
        let (_, slot) = self.find_mut(pending_record.id).expect("a stream with a ticket is not forgotten");
        slot.pending_records -= 1;
        if recorded && slot.recorded_epoch.is_none_or(|old| old < pending_record.epoch) {
            slot.recorded_epoch = Some(pending_record.epoch);
            slot.recorded_seen = pending_record.seen;
            slot.recorded_ns = now_ns;
        }
    }

    /// `waiter` was made to wait for a recorded event of `donor` that covers `epoch`: it is now ordered after
    /// all that the donor was ordered after at that recorded event, too. (Not after what the donor has seen
    /// since: the recorded event may have been recorded again.)
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

    /// Keeps an event that turned out not to be needed.
    pub(crate) fn keep_event(&mut self, event: Event) {
        self.spare_events.push(event);
    }

    /// Panics where what is known of the streams is not right. No thread is in a call of the resource
    /// meanwhile.
    pub(crate) fn validate(&self, free_bytes: impl Fn(Owner) -> u64) {
        let known = self.iter().count();
        assert_eq!(known, self.by_id.len(), "I4: streams by number and by identity");
        assert_eq!(known + self.vacant.len() + 1, self.slots.len(), "I4: each number is known or vacant");
        for owner in &self.vacant {
            assert!(self.slots[*owner as usize].is_none(), "I4: {owner} is known and vacant");
            assert_eq!(free_bytes(*owner), 0, "I4: {owner} was forgotten, and owns blocks");
        }
        for (owner, slot) in self.iter() {
            assert_eq!(self.by_id.get(&slot.id), Some(&owner), "I4: {owner} is another stream's number");
            assert_eq!(slot.cell.owner, owner, "I4: a thread knows {owner} by another number");
            assert_eq!(slot.pending_records, 0, "I6: somebody is about to record a point of {owner}");
            let recorded_event = slot.recorded_epoch.unwrap_or(0);
            assert!(
                recorded_event < slot.epoch(),
                "I2: the point of {owner} covers an epoch that is not over"
            );
            assert!(
                slot.recorded_epoch.is_none() || slot.event.is_some(),
                "I6: {owner} has a point without an event"
            );
            for (other, epoch) in slot.seen.iter().chain(&slot.recorded_seen) {
                assert!(*other != ANY_STREAM && *other != owner, "I3: {owner} was made to wait for {other}");
                let there = self.slots[*other as usize].as_ref().map_or(0, Slot::epoch);
                assert!(*epoch < there, "I3: {owner} has seen epoch {epoch} of {other}, which is at {there}");
            }
        }
    }

    /// All events, to be destroyed.
    pub(crate) fn drain_events(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.spare_events);
        events.extend(self.iter_mut().filter_map(|(_, slot)| slot.event.take()));
        events
    }
}

/// What the models of other parts need of a stream.
#[cfg(all(test, millpond_loom))]
pub(crate) fn stream_cell_for_models(stream: StreamRef, owner: Owner) -> Arc<StreamCell> {
    Slot::new(stream, owner).cell
}

#[cfg(all(test, millpond_loom))]
mod models;
