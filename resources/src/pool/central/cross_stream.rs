//! Records, queries and waits for events of other streams, whose free blocks a request may then take.
//!
//! The pool can also serve a request by growth. So a driver error is reported to the caller only if the
//! device is lost; otherwise the pool goes on without that event.

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millpond_core::driver::{Event, EventFlags};
use millpond_core::{DriverError, Error, Result, StreamId, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::trace::event;
use crate::pool::central::{CentralCore, State};
use crate::stream_order::backlog::Backlog;
use crate::stream_order::streams::{PendingRecord, Slot};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{STREAMS_ASKED_AT_LEAST, STREAMS_ASKED_PERCENT};
use millpond_core::driver::{is_capturing, record_unless_capturing};

/// A stream whose free blocks another stream may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Donor {
    pub(crate) id: StreamId,
    /// Means the blocks that were freed in this epoch or before.
    pub(crate) epoch: Epoch,
}

/// An event that was recorded on a donor's stream.
#[derive(Clone, Debug)]
pub(crate) struct RecordedEvent {
    pub(crate) donor: Donor,
    pub(crate) event: Event,
    /// What the donor had waited for when the event was recorded. The event may be recorded again after the
    /// donor has waited for more, which a stream that waits for this record must not inherit.
    pub(crate) seen: Vec<(Owner, Epoch)>,
}

/// Returns the donor's last recorded event.
fn last_recorded_event(slot: &Slot, donor: Donor) -> Option<RecordedEvent> {
    let (event, epoch) = slot.event.zip(slot.recorded_epoch)?;
    Some(RecordedEvent { donor: Donor { epoch, ..donor }, event, seen: slot.recorded_seen.clone() })
}

/// Returns how many streams to ask first; if that is not all, sorts them by the bytes that they own, the most
/// first.
fn sort_largest_first(donors: &mut [(u64, Donor)]) -> usize {
    if donors.len() <= STREAMS_ASKED_AT_LEAST {
        return donors.len();
    }
    donors.sort_by_key(|(bytes, _)| Reverse(*bytes));
    let all: u64 = donors.iter().map(|(bytes, _)| bytes).sum();
    let mut before = 0;
    let is_needed = |(bytes, _): &&(u64, Donor)| {
        let is_needed = before * 100 < all * STREAMS_ASKED_PERCENT;
        before += bytes;
        is_needed
    };
    donors.iter().take_while(is_needed).count().max(STREAMS_ASKED_AT_LEAST)
}

impl CentralCore {
    /// Asks the driver which work of other streams is completed, and makes the completed blocks unowned, so
    /// that neighbours of different streams join. With a request, it asks only streams that could serve it.
    /// Notes how far behind the host the streams are. With `may_stay`, blocks of streams stay owned while any
    /// stream is far behind.
    ///
    /// If there are many streams, it first asks those that own most bytes, and the others only if no block
    /// fits then: each stream costs two driver calls, and most own little.
    pub(crate) fn collect_completed(
        &self,
        request: Option<&Request>,
        stream: Option<StreamRef>,
        may_stay: bool,
    ) -> Result<()> {
        let now_ns = self.now_ns();
        let mut donors = self.donors_by_bytes(request);
        let first = if request.is_some() { sort_largest_first(&mut donors) } else { donors.len() };
        let others = donors.split_off(first);
        // An empty second group must not count for the backlog.
        for donors in std::iter::once(donors).chain(Some(others).filter(|others| !others.is_empty())) {
            let (done, behind_ns) = self.ask(donors, stream, now_ns, may_stay)?;
            let keeps = {
                let backlog = &mut self.state.lock().backlog;
                backlog.note(now_ns, behind_ns);
                may_stay && backlog.is_long()
            };
            if keeps {
                break;
            }
            done.iter().for_each(|recorded_event| self.complete(recorded_event, request));
            let fits = |request| self.state.lock().heaps.find(ANY_STREAM, Epoch::MAX, request).is_some();
            if request.is_some_and(fits) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the events of some streams that are done, and how many nanoseconds the stream that is furthest
    /// behind is behind the host. If blocks `may_stay` owned, stops at the first stream that is far behind.
    fn ask(
        &self,
        donors: Vec<(u64, Donor)>,
        stream: Option<StreamRef>,
        now_ns: u64,
        may_stay: bool,
    ) -> Result<(Vec<RecordedEvent>, u64)> {
        let (mut done, mut recorded, mut behind_ns) = (Vec::new(), Vec::new(), 0);
        for (_, donor) in donors {
            if let Some((recorded_event, recorded_ns)) = self.last_record(donor) {
                if !self.is_reached(&recorded_event)? {
                    behind_ns = now_ns.saturating_sub(recorded_ns).max(behind_ns);
                    if may_stay && Backlog::is_far(behind_ns) {
                        return Ok((done, behind_ns));
                    }
                    continue;
                }
                let covers_all = recorded_event.donor.epoch >= donor.epoch;
                done.push(recorded_event);
                if covers_all {
                    continue;
                }
            }
            recorded.extend(self.recorded_event_of(donor, stream)?);
        }
        // Record all events before the first query: the device takes a moment to reach each.
        for recorded_event in recorded {
            if self.is_reached(&recorded_event)? {
                done.push(recorded_event);
            }
        }
        Ok((done, behind_ns))
    }

    /// Returns the donor's last recorded event, and when it was recorded, in nanoseconds.
    fn last_record(&self, donor: Donor) -> Option<(RecordedEvent, u64)> {
        let mut state = self.state.lock();
        let (_, slot) = state.streams.find_mut(donor.id)?;
        Some((last_recorded_event(slot, donor)?, slot.recorded_ns))
    }

    /// Returns the streams that own free blocks; with a request, only those that could serve it.
    pub(crate) fn donors(&self, request: Option<&Request>) -> Vec<Donor> {
        self.donors_by_bytes(request).into_iter().map(|(_, donor)| donor).collect()
    }

    /// Returns the same streams, each with the bytes of its free blocks.
    fn donors_by_bytes(&self, request: Option<&Request>) -> Vec<(u64, Donor)> {
        let state = self.state.lock();
        let donors = state.streams.iter().filter_map(|(owner, slot)| {
            let bytes = state.heaps.free_bytes_for(request, owner);
            (bytes > 0).then(|| (bytes, Donor { id: slot.id, epoch: slot.epoch() }))
        });
        donors.collect()
    }

    /// Returns an event that covers the donor's epoch; records it if needed. `stream` is the stream of the
    /// call in progress, if there is one, which is certainly alive.
    ///
    /// Returns `None` if the donor's stream may be destroyed, or captures a graph: then it requests a record,
    /// which the stream's own next call makes.
    pub(crate) fn recorded_event_of(
        &self,
        donor: Donor,
        stream: Option<StreamRef>,
    ) -> Result<Option<RecordedEvent>> {
        let (pending_record, donors_stream) = {
            let mut state = self.state.lock();
            let Some((_, slot)) = state.streams.find_mut(donor.id) else { return Ok(None) };
            if let Some(recorded_event) = last_recorded_event(slot, donor)
                .filter(|recorded_event| recorded_event.donor.epoch >= donor.epoch)
            {
                return Ok(Some(recorded_event));
            }
            if slot.id.is_per_thread() && slot.id != StreamRef::PER_THREAD.id() {
                slot.set_record_requested(true);
                return Ok(None);
            }
            (slot.pending_record(), slot.stream)
        };
        let (epoch, seen) = (pending_record.epoch, pending_record.seen.clone());
        let (pending_record, (recorded, now_ns)) = self.settle_if_panics(pending_record, || {
            let recorded = self.event_of(donor.id).and_then(|event| {
                let done = match stream {
                    Some(stream) if stream.id() == donor.id => {
                        record_unless_capturing(&*self.driver, event, stream)
                    }
                    _ => self.driver.event_record_if_alive(event, donors_stream),
                };
                Ok(done?.then_some(event))
            });
            (recorded, self.now_ns())
        });
        {
            let mut state = self.state.lock();
            state.streams.settle(pending_record, matches!(recorded, Ok(Some(_))), now_ns);
            if let (Ok(None), Some((_, slot))) = (&recorded, state.streams.find_mut(donor.id)) {
                slot.set_record_requested(true);
            }
        }
        match recorded {
            Ok(event) => {
                Ok(event.map(|event| RecordedEvent { donor: Donor { epoch, ..donor }, event, seen }))
            }
            Err(error) => self.skip_stream(donor.id, error).map(|()| None),
        }
    }

    /// Makes the driver calls of a record. If they panic, the record is settled as one that failed.
    pub(crate) fn settle_if_panics<T>(
        &self,
        pending_record: PendingRecord,
        record: impl FnOnce() -> T,
    ) -> (PendingRecord, T) {
        match catch_unwind(AssertUnwindSafe(record)) {
            Ok(recorded) => (pending_record, recorded),
            Err(panic) => {
                self.state.lock().streams.settle(pending_record, false, 0);
                resume_unwind(panic)
            }
        }
    }

    /// Returns [`recorded_event_of`](Self::recorded_event_of), or, if none can be recorded, the donor's last
    /// one, which covers an earlier epoch.
    pub(crate) fn recorded_event_or_last(
        &self,
        donor: Donor,
        stream: Option<StreamRef>,
    ) -> Result<Option<RecordedEvent>> {
        if let Some(recorded_event) = self.recorded_event_of(donor, stream)? {
            return Ok(Some(recorded_event));
        }
        Ok(self.last_record(donor).map(|(recorded_event, _)| recorded_event))
    }

    /// Returns the event of a stream that has a pending record; creates it if needed.
    pub(crate) fn event_of(&self, id: StreamId) -> Result<Event, DriverError> {
        const NOT_FORGOTTEN: &str = "the table keeps a stream with a pending record";
        let spare = {
            let mut state = self.state.lock();
            let (_, slot) = state.streams.find_mut(id).expect(NOT_FORGOTTEN);
            match slot.event {
                Some(event) => return Ok(event),
                None => state.streams.take_spare_event(),
            }
        };
        let fresh = match spare {
            Some(event) => event,
            None => self.driver.event_create(EventFlags::default())?,
        };
        let mut state = self.state.lock();
        let (_, slot) = state.streams.find_mut(id).expect(NOT_FORGOTTEN);
        let event = *slot.event.get_or_insert(fresh);
        if event != fresh {
            state.streams.keep_event(fresh);
        }
        Ok(event)
    }

    /// Returns whether all work before the recorded event is done; `false` if the driver cannot say.
    fn is_reached(&self, recorded_event: &RecordedEvent) -> Result<bool> {
        self.driver
            .event_query(recorded_event.event)
            .or_else(|error| self.skip_stream(recorded_event.donor.id, error).map(|()| false))
    }

    /// Returns [`is_reached`](Self::is_reached), and if so, [completes](Self::complete) the event.
    pub(crate) fn complete_if_reached(
        &self,
        recorded_event: &RecordedEvent,
        request: Option<&Request>,
    ) -> Result<bool> {
        let is_reached = self.is_reached(recorded_event)?;
        if is_reached {
            self.complete(recorded_event, request);
        }
        Ok(is_reached)
    }

    /// Makes the blocks that a reached event covers unowned; with a request, only those that could serve it.
    pub(crate) fn complete(&self, recorded_event: &RecordedEvent, request: Option<&Request>) {
        let mut state = self.state.lock();
        let State { heaps, streams, .. } = &mut *state;
        if let Some((owner, slot)) = streams.find_mut(recorded_event.donor.id) {
            let epoch = recorded_event.donor.epoch;
            let is_all = heaps.migrate_for(request, owner, epoch, ANY_STREAM, 0);
            // Otherwise the event is still needed for the remaining blocks.
            if is_all && slot.recorded_epoch == Some(epoch) {
                slot.recorded_epoch = None;
            }
        }
    }

    /// Forgets the donor's recorded event after an error, unless the device is lost.
    pub(crate) fn skip_stream(&self, donor: StreamId, error: DriverError) -> Result<()> {
        self.health.note(&error);
        if self.health.is_lost() {
            return Err(Error::from(error));
        }
        if let Some((_, slot)) = self.state.lock().streams.find_mut(donor) {
            slot.recorded_epoch = None;
        }
        event!(self, WARN, "going on without another stream's blocks", call = error.call(), %error);
        Ok(())
    }

    /// Returns whether the stream captures a graph, or work on it would disturb a capture elsewhere.
    pub(crate) fn is_capturing(&self, stream: StreamRef) -> Result<bool> {
        is_capturing(&*self.driver, stream).or_else(|error| match error.is_sticky() {
            true => Err(self.driver_error(error)),
            // After any other error, treat the stream as if it captures.
            false => Ok(true),
        })
    }
}

#[cfg(test)]
mod tests {
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::CudaMemoryResource;
    use crate::{PoolMemoryResource, PoolOptions};

    /// Of many streams, those are asked first that own most of the bytes together.
    #[test]
    fn streams_with_most_bytes_are_asked_first() {
        let sorted = |bytes: &[u64]| {
            let donor = |bytes: &u64| (*bytes, Donor { id: StreamRef::LEGACY.id(), epoch: 0 });
            let mut donors: Vec<(u64, Donor)> = bytes.iter().map(donor).collect();
            let first = sort_largest_first(&mut donors);
            (first, donors.into_iter().map(|(bytes, _)| bytes).collect::<Vec<u64>>())
        };
        let few: Vec<u64> = (1..=STREAMS_ASKED_AT_LEAST as u64).collect();
        assert_eq!(sorted(&few), (few.len(), few.clone()), "all of a few, in any order");
        let rising: Vec<u64> = (1..=100).collect();
        // The largest 45 own 3510 of 5050 bytes, which is less than 70 %.
        assert_eq!(sorted(&rising), (46, rising.iter().rev().copied().collect()));
        assert_eq!(sorted(&[10; 40]).0, 28);
        let mut one = vec![1; 40];
        one[30] = 1000;
        let (first, donors) = sorted(&one);
        assert_eq!((first, donors[0]), (STREAMS_ASKED_AT_LEAST, 1000));
    }

    #[test]
    fn one_collection_counts_once_for_the_backlog() {
        let upstream = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = PoolMemoryResource::new(upstream, PoolOptions::default()).expect("an empty pool");
        let resource = &pool.central;
        let notes_until_short = |note: &dyn Fn()| {
            resource.state.lock().backlog.note(0, u64::MAX);
            let mut notes = 0;
            while resource.state.lock().backlog.is_long() {
                note();
                notes += 1;
            }
            notes
        };
        let expected = notes_until_short(&|| resource.state.lock().backlog.note(0, 0));
        for may_stay in [false, true] {
            let collect = || resource.collect_completed(None, None, may_stay).expect("the device is there");
            assert_eq!(notes_until_short(&collect), expected, "may stay: {may_stay}");
        }
    }
}
