//! Points: events recorded on streams, by which other streams learn that work is done, or wait for it.
//!
//! No step here is needed to serve a request. So an error of the driver that does not mean that the device is
//! lost makes the resource do without the point, and is not the caller's.

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::{DriverError, Error, Result, StreamId, StreamRef};

use super::store::{ANYONE, Epoch, Owner, Request, Store};
use super::trace::event;
use super::{COLLECT_AFTER_LEAST, COLLECT_AFTER_MOST, Core, State};

/// Another stream whose blocks are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Donor {
    pub(super) id: StreamId,
    /// Blocks of this epoch and before are meant.
    pub(super) epoch: Epoch,
}

/// A donor's point, recorded.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) donor: Donor,
    pub(super) event: Event,
    /// What the donor was ordered after at this record or before. The event may be recorded again at any
    /// time, by when the donor may have seen more: that must not be inherited from this point.
    pub(super) seen: Vec<(Owner, Epoch)>,
}

impl<S: Store> Core<S> {
    /// Makes the blocks of all streams whose work is done anyone's, the requesting stream's too, so that
    /// neighbours join whoever gave them back.
    ///
    /// For a request, only where that could be served from what they have.
    pub(super) fn collect_completed(
        &self,
        request: Option<&Request>,
        stream: Option<StreamRef>,
    ) -> Result<()> {
        let donors = self.donors(request);
        {
            let mut state = self.state.lock();
            state.given_at_collection = state.given + state.store.given();
        }
        let mut done = false;
        for donor in donors {
            if let Some(point) = self.point_of(donor, stream)? {
                done |= self.is_done(&point, request)?;
            }
        }
        // While the device is busy, asking often brings nothing.
        let mut state = self.state.lock();
        state.collect_after =
            if done { COLLECT_AFTER_LEAST } else { (state.collect_after * 2).min(COLLECT_AFTER_MOST) };
        Ok(())
    }

    /// The streams that have free blocks: where there is a request, some that could serve it.
    pub(super) fn donors(&self, request: Option<&Request>) -> Vec<Donor> {
        let state = self.state.lock();
        let owns = |owner| state.store.free_bytes_for(request, owner) > 0;
        let owning = state.streams.iter().filter(|(owner, _)| owns(*owner));
        owning.map(|(_, slot)| Donor { id: slot.id, epoch: slot.epoch() }).collect()
    }

    /// A recorded point of the donor that covers the epoch; records one if need be. `stream` is that of the
    /// call, if there is one: it is alive.
    ///
    /// `None` where the donor's stream may be gone, or captures a graph: then its own next call is asked to
    /// record.
    pub(super) fn point_of(&self, donor: Donor, stream: Option<StreamRef>) -> Result<Option<Point>> {
        let (ticket, donors_stream) = {
            let mut state = self.state.lock();
            let Some((_, slot)) = state.streams.find_mut(donor.id) else { return Ok(None) };
            if let (Some(event), Some(epoch)) = (slot.event, slot.point)
                && epoch >= donor.epoch
            {
                let seen = slot.point_seen.clone();
                return Ok(Some(Point { donor: Donor { epoch, ..donor }, event, seen }));
            }
            if slot.id.is_per_thread() && slot.id != StreamRef::PER_THREAD.id() {
                slot.set_wanted(true);
                return Ok(None);
            }
            (slot.ticket(), slot.stream)
        };
        let (epoch, seen) = (ticket.epoch, ticket.seen.clone());
        let recorded = self.event_of(donor.id).and_then(|event| {
            let done = match stream {
                Some(stream) if stream.id() == donor.id => self.record(event, stream),
                _ => self.driver.event_record_if_alive(event, donors_stream),
            };
            Ok(done?.then_some(event))
        });
        {
            let mut state = self.state.lock();
            state.streams.settle(ticket, matches!(recorded, Ok(Some(_))));
            if let (Ok(None), Some((_, slot))) = (&recorded, state.streams.find_mut(donor.id)) {
                slot.set_wanted(true);
            }
        }
        match recorded {
            Ok(event) => Ok(event.map(|event| Point { donor: Donor { epoch, ..donor }, event, seen })),
            Err(error) => self.do_without(donor.id, error).map(|()| None),
        }
    }

    /// As [`point_of`](Self::point_of), or, where none can be recorded, the last that was: it covers what it
    /// says.
    pub(super) fn latest_point(&self, donor: Donor, stream: Option<StreamRef>) -> Result<Option<Point>> {
        if let Some(point) = self.point_of(donor, stream)? {
            return Ok(Some(point));
        }
        let mut state = self.state.lock();
        let Some((_, slot)) = state.streams.find_mut(donor.id) else { return Ok(None) };
        let point = slot.event.zip(slot.point).map(|(event, epoch)| {
            let seen = slot.point_seen.clone();
            Point { donor: Donor { epoch, ..donor }, event, seen }
        });
        Ok(point)
    }

    /// Records the event on a stream that is surely alive, unless the stream captures a graph.
    ///
    /// # Errors
    /// What the driver reports; [`DriverError::CAPTURED_EVENT`] where a capture began at this very moment.
    pub(super) fn record(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
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

    /// The event of a stream that has a ticket out, made at first need.
    pub(super) fn event_of(&self, id: StreamId) -> Result<Event, DriverError> {
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

    /// Whether all work before the point is done; if so, the blocks that it covers become anyone's: where
    /// there is a request, those that could serve it.
    pub(super) fn is_done(&self, point: &Point, request: Option<&Request>) -> Result<bool> {
        match self.driver.event_query(point.event) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return self.do_without(point.donor.id, error).map(|()| false),
        }
        self.came_to(point, request);
        Ok(true)
    }

    /// All work before the point is done: the blocks that it covers become anyone's.
    pub(super) fn came_to(&self, point: &Point, request: Option<&Request>) {
        let mut state = self.state.lock();
        let State { store, streams, .. } = &mut *state;
        if let Some((owner, slot)) = streams.find_mut(point.donor.id) {
            let epoch = point.donor.epoch;
            let is_all = store.migrate_for(request, owner, epoch, ANYONE, 0);
            // Others may still ask for the rest.
            if is_all && slot.point == Some(epoch) {
                slot.point = None;
            }
        }
    }

    /// Goes on without the donor's point, unless the device is lost.
    pub(super) fn do_without(&self, donor: StreamId, error: DriverError) -> Result<()> {
        self.health.note(&error);
        if self.health.is_lost() {
            return Err(Error::from(error));
        }
        event!(self, WARN, "going on without another stream's blocks", call = error.call(), %error);
        if let Some((_, slot)) = self.state.lock().streams.find_mut(donor) {
            slot.point = None;
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
