//! Points: events recorded on streams, by which other streams learn that work is done, or wait for it.
//!
//! No step here is needed to serve a request. So an error of the driver that does not mean that the device is
//! lost makes the resource do without the point, and is not the caller's.

use std::cmp::Reverse;

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::{DriverError, Error, Result, StreamId, StreamRef};

use super::backlog::Backlog;
use super::store::{ANYONE, Epoch, Owner, Request};
use super::streams::Slot;
use super::trace::event;
use super::{Core, State};

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

/// The last point that was recorded on a donor.
fn last_point(slot: &Slot, donor: Donor) -> Option<Point> {
    let (event, epoch) = slot.event.zip(slot.point)?;
    Some(Point { donor: Donor { epoch, ..donor }, event, seen: slot.point_seen.clone() })
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

impl Core {
    /// Asks how far the streams have come that could serve the request, or all; notes how far behind the last
    /// of them is. What is done becomes anyone's, so that neighbours join whoever gave them back: unless
    /// streams are far behind and it `may_stay` theirs.
    ///
    /// Where streams are many, those that own most are asked first, and the others only if that did not bring
    /// a block that fits: each costs two driver calls, and most own little.
    pub(super) fn collect_completed(
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
            done.iter().for_each(|point| self.came_to(point, request));
            let fits = |request| self.state.lock().store.find(ANYONE, Epoch::MAX, request).is_some();
            if request.is_some_and(fits) {
                break;
            }
        }
        Ok(())
    }

    /// Asks how far some streams have come: the points that are done, and by how many nanoseconds the stream
    /// that is furthest behind is so. Where streams that are far behind keep what they own (`may_stay`), it
    /// ends with the first of those.
    fn ask(
        &self,
        donors: Vec<(u64, Donor)>,
        stream: Option<StreamRef>,
        now_ns: u64,
        may_stay: bool,
    ) -> Result<(Vec<Point>, u64)> {
        let (mut done, mut recorded, mut behind_ns) = (Vec::new(), Vec::new(), 0);
        for (_, donor) in donors {
            if let Some((point, recorded_ns)) = self.recorded_point(donor) {
                if !self.is_over(&point)? {
                    behind_ns = now_ns.saturating_sub(recorded_ns).max(behind_ns);
                    if may_stay && Backlog::is_far(behind_ns) {
                        return Ok((done, behind_ns));
                    }
                    continue;
                }
                let covers_all = point.donor.epoch >= donor.epoch;
                done.push(point);
                if covers_all {
                    continue;
                }
            }
            recorded.extend(self.point_of(donor, stream)?);
        }
        // All are recorded before the first is asked for: the device takes a moment to come to each.
        for point in recorded {
            if self.is_over(&point)? {
                done.push(point);
            }
        }
        Ok((done, behind_ns))
    }

    /// The donor's last point, and when it was recorded.
    fn recorded_point(&self, donor: Donor) -> Option<(Point, u64)> {
        let mut state = self.state.lock();
        let (_, slot) = state.streams.find_mut(donor.id)?;
        Some((last_point(slot, donor)?, slot.recorded_ns))
    }

    /// The streams that have free blocks: where there is a request, some that could serve it.
    pub(super) fn donors(&self, request: Option<&Request>) -> Vec<Donor> {
        self.donors_by_bytes(request).into_iter().map(|(_, donor)| donor).collect()
    }

    /// The same with the bytes of each.
    fn donors_by_bytes(&self, request: Option<&Request>) -> Vec<(u64, Donor)> {
        let state = self.state.lock();
        let donors = state.streams.iter().map(|(owner, slot)| {
            let donor = Donor { id: slot.id, epoch: slot.epoch() };
            (state.store.free_bytes_for(request, owner), donor)
        });
        donors.filter(|(bytes, _)| *bytes > 0).collect()
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
            if let Some(point) = last_point(slot, donor).filter(|point| point.donor.epoch >= donor.epoch) {
                return Ok(Some(point));
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
        let now_ns = self.now_ns();
        {
            let mut state = self.state.lock();
            state.streams.settle(ticket, matches!(recorded, Ok(Some(_))), now_ns);
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
        Ok(self.recorded_point(donor).map(|(point, _)| point))
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

    /// Whether all work before the point is done; where the driver cannot say, it is not.
    fn is_over(&self, point: &Point) -> Result<bool> {
        self.driver
            .event_query(point.event)
            .or_else(|error| self.do_without(point.donor.id, error).map(|()| false))
    }

    /// As [`is_over`](Self::is_over); if so, the blocks that it covers become anyone's: where there is a
    /// request, those that could serve it.
    pub(super) fn is_done(&self, point: &Point, request: Option<&Request>) -> Result<bool> {
        let is_over = self.is_over(point)?;
        if is_over {
            self.came_to(point, request);
        }
        Ok(is_over)
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
