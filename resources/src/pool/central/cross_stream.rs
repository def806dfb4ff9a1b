//! Points: events recorded on streams, by which other streams learn that work is done, or wait for it.
//!
//! No step here is needed to serve a request. So an error of the driver that does not mean that the device is
//! lost makes the resource do without the recorded event, and is not the caller's.

use std::cmp::Reverse;

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::{DriverError, Error, Result, StreamId, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::trace::event;
use crate::pool::central::{CentralCore, State};
use crate::stream_order::backlog::Backlog;
use crate::stream_order::streams::Slot;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// Another stream whose blocks are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Donor {
    pub(crate) id: StreamId,
    /// Blocks of this epoch and before are meant.
    pub(crate) epoch: Epoch,
}

/// A donor's recorded event, recorded.
#[derive(Clone, Debug)]
pub(crate) struct RecordedEvent {
    pub(crate) donor: Donor,
    pub(crate) event: Event,
    /// What the donor was ordered after at this record or before. The event may be recorded again at any
    /// time, by when the donor may have seen more: that must not be inherited from this recorded event.
    pub(crate) seen: Vec<(Owner, Epoch)>,
}

/// The last recorded event that was recorded on a donor.
fn last_recorded_event(slot: &Slot, donor: Donor) -> Option<RecordedEvent> {
    let (event, epoch) = slot.event.zip(slot.recorded_epoch)?;
    Some(RecordedEvent { donor: Donor { epoch, ..donor }, event, seen: slot.recorded_seen.clone() })
}

/// Up to this many streams are all asked at once, however little some of them own.
const FEW: usize = 16;

/// Where streams are more, those are asked first that own this percentage of the bytes together.
const MOST: u64 = 70;

/// Sorts streams by what they own, the most first, where they are many; says how many to ask first.
fn richest(donors: &mut [(u64, Donor)]) -> usize {
    if donors.len() <= FEW {
        return donors.len();
    }
    donors.sort_by_key(|(bytes, _)| Reverse(*bytes));
    let all: u64 = donors.iter().map(|(bytes, _)| bytes).sum();
    let mut before = 0;
    let is_one = |(bytes, _): &&(u64, Donor)| {
        let is_one = before * 100 < all * MOST;
        before += bytes;
        is_one
    };
    donors.iter().take_while(is_one).count().max(FEW)
}

impl CentralCore {
    /// Asks how far the streams have come that could serve the request, or all; notes how far behind the last
    /// of them is. What is done becomes unowned, so that neighbours join whoever gave them back: unless
    /// streams are far behind and it `may_stay` theirs.
    ///
    /// Where streams are many, those that own most are asked first, and the others only if that did not bring
    /// a block that fits: each costs two driver calls, and most own little.
    pub(crate) fn collect_completed(
        &self,
        request: Option<&Request>,
        stream: Option<StreamRef>,
        may_stay: bool,
    ) -> Result<()> {
        let now_ns = self.now_ns();
        let mut donors = self.donors_by_bytes(request);
        let first = if request.is_some() { richest(&mut donors) } else { donors.len() };
        let others = donors.split_off(first);
        // A look counts once for the backlog where there are no others.
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

    /// Asks how far some streams have come: the recorded events that are done, and by how many nanoseconds
    /// the stream that is furthest behind is so. Where streams that are far behind keep what they own
    /// (`may_stay`), it ends with the first of those.
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
        // All are recorded before the first is asked for: the device takes a moment to come to each.
        for recorded_event in recorded {
            if self.is_reached(&recorded_event)? {
                done.push(recorded_event);
            }
        }
        Ok((done, behind_ns))
    }

    /// The donor's last recorded event, and when it was recorded.
    fn last_record(&self, donor: Donor) -> Option<(RecordedEvent, u64)> {
        let mut state = self.state.lock();
        let (_, slot) = state.streams.find_mut(donor.id)?;
        Some((last_recorded_event(slot, donor)?, slot.recorded_ns))
    }

    /// The streams that have free blocks: where there is a request, some that could serve it.
    pub(crate) fn donors(&self, request: Option<&Request>) -> Vec<Donor> {
        self.donors_by_bytes(request).into_iter().map(|(_, donor)| donor).collect()
    }

    /// The same with the bytes of each.
    fn donors_by_bytes(&self, request: Option<&Request>) -> Vec<(u64, Donor)> {
        let state = self.state.lock();
        let donors = state.streams.iter().filter_map(|(owner, slot)| {
            let bytes = state.heaps.free_bytes_for(request, owner);
            (bytes > 0).then(|| (bytes, Donor { id: slot.id, epoch: slot.epoch() }))
        });
        donors.collect()
    }

    /// A recorded event of the donor that covers the epoch; records one if need be. `stream` is that of the
    /// call, if there is one: it is alive.
    ///
    /// `None` where the donor's stream may be gone, or captures a graph: then its own next call is asked to
    /// record.
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
        let recorded = self.event_of(donor.id).and_then(|event| {
            let done = match stream {
                Some(stream) if stream.id() == donor.id => self.record(event, stream),
                _ => self.driver.event_record_if_alive(event, donors_stream),
            };
            Ok(done?.then_some(event))
        });
        let now_ns = self.now_ns();
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

    /// As [`recorded_event_of`](Self::recorded_event_of), or, where none can be recorded, the last that was:
    /// it covers what it says.
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

    /// Records the event on a stream that is surely alive, unless the stream captures a graph.
    ///
    /// # Errors
    /// What the driver reports; [`DriverError::CAPTURED_EVENT`] where a capture began at this very moment.
    pub(crate) fn record(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        if self.captures(stream)? {
            return Ok(false);
        }
        self.driver.event_record(event, stream)?;
        // The record may have become a part of a capture that began since.
        if self.captures(stream)? {
            return Err(DriverError::new(DriverError::CAPTURED_EVENT, "cuEventRecord"));
        }
        Ok(true)
    }

    /// The event of a stream that has a pending record out, made at first need.
    pub(crate) fn event_of(&self, id: StreamId) -> Result<Event, DriverError> {
        let spare = {
            let mut state = self.state.lock();
            let (_, slot) = state.streams.find_mut(id).expect("a stream with a ticket is not forgotten");
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
        let (_, slot) = state.streams.find_mut(id).expect("a stream with a ticket is not forgotten");
        let event = *slot.event.get_or_insert(fresh);
        if event != fresh {
            state.streams.keep_event(fresh);
        }
        Ok(event)
    }

    /// Whether all work before the recorded event is done; where the driver cannot say, it is not.
    fn is_reached(&self, recorded_event: &RecordedEvent) -> Result<bool> {
        self.driver
            .event_query(recorded_event.event)
            .or_else(|error| self.skip_stream(recorded_event.donor.id, error).map(|()| false))
    }

    /// As [`is_reached`](Self::is_reached); if so, the blocks that it covers become unowned: where there is a
    /// request, those that could serve it.
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

    /// All work before the recorded event is done: the blocks that it covers become unowned.
    pub(crate) fn complete(&self, recorded_event: &RecordedEvent, request: Option<&Request>) {
        let mut state = self.state.lock();
        let State { heaps, streams, .. } = &mut *state;
        if let Some((owner, slot)) = streams.find_mut(recorded_event.donor.id) {
            let epoch = recorded_event.donor.epoch;
            let is_all = heaps.migrate_for(request, owner, epoch, ANY_STREAM, 0);
            // Others may still ask for the rest.
            if is_all && slot.recorded_epoch == Some(epoch) {
                slot.recorded_epoch = None;
            }
        }
    }

    /// Goes on without the donor's recorded event, unless the device is lost.
    pub(crate) fn skip_stream(&self, donor: StreamId, error: DriverError) -> Result<()> {
        self.health.note(&error);
        if self.health.is_lost() {
            return Err(Error::from(error));
        }
        event!(self, WARN, "going on without another stream's blocks", call = error.call(), %error);
        if let Some((_, slot)) = self.state.lock().streams.find_mut(donor) {
            slot.recorded_epoch = None;
        }
        Ok(())
    }

    /// Whether the stream is capturing a graph, or a capture is going on that work on it would disturb.
    pub(crate) fn is_capturing(&self, stream: StreamRef) -> Result<bool> {
        self.captures(stream).or_else(|error| match error.is_sticky() {
            true => Err(self.driver_error(error)),
            // Whatever it is: the stream is better left alone.
            false => Ok(true),
        })
    }

    fn captures(&self, stream: StreamRef) -> DriverResult<bool> {
        match self.driver.stream_is_capturing(stream) {
            Err(error) if error.is_capture_refusal() => Ok(true),
            Err(error) if error.is_unsupported() => Ok(false),
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_driver::sim::{SimConfig, SimDevice};

    use crate::CudaMemoryResource;
    use crate::{PoolMemoryResource, PoolOptions};

    #[test]
    fn a_look_counts_once_for_the_backlog() {
        let upstream = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = PoolMemoryResource::new(upstream, PoolOptions::default()).expect("an empty pool");
        let resource = &pool.central;
        let looks_until_over = |look: &dyn Fn()| {
            resource.state.lock().backlog.note(0, u64::MAX);
            let mut looks = 0;
            while resource.state.lock().backlog.is_long() {
                look();
                looks += 1;
            }
            looks
        };
        let expected = looks_until_over(&|| resource.state.lock().backlog.note(0, 0));
        for may_stay in [false, true] {
            let ask = || resource.collect_completed(None, None, may_stay).expect("the device is there");
            assert_eq!(looks_until_over(&ask), expected, "may stay: {may_stay}");
        }
    }
}
