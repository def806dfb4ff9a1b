//! Finds out which work of other streams is done, so that a request may take their free blocks.
//!
//! The pool makes an [`Inquiry`] under the lock ([`State::inquire`]), asks the driver without it
//! ([`CentralCore::query`]), and notes the answers under the lock ([`State::learn`]). Growth can also serve a
//! request. So the pool reports a driver error to the caller only if the device is lost; otherwise it goes on
//! without that stream's event.

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millpond_core::driver::{CaptureModeGuard, Event, EventFlags, is_capturing, record_unless_capturing};
use millpond_core::{DriverError, Error, Result, StreamId, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::observe::observe;
use crate::pool::central::trace::event;
use crate::pool::central::turns::Turns;
use crate::pool::central::{CentralCore, State};
use crate::stream_order::backlog::Backlog;
use crate::stream_order::streams::{PendingRecord, Slot};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{FEW_STREAMS, STREAMS_ASKED_PERCENT};

/// A stream whose free blocks another stream may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Donor {
    pub(crate) id: StreamId,
    /// Stands for the blocks freed in this epoch or before.
    pub(crate) epoch: Epoch,
    /// The bytes that made it a donor: all its free blocks, or the best fit.
    pub(crate) bytes: u64,
}

/// An event that was recorded on a donor's stream.
#[derive(Clone, Debug)]
pub(crate) struct RecordedEvent {
    pub(crate) donor: Donor,
    pub(crate) event: Event,
    /// The epochs that the donor had waited for when the event was recorded. The event may be recorded again
    /// after the donor has waited for more. A stream that waits for this record must not inherit the later
    /// waits.
    pub(crate) seen: Vec<(Owner, Epoch)>,
    recorded_ns: u64,
}

/// A record of a donor's event that is under way, and its outcome.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Record {
    pub(super) pending: PendingRecord,
    donor: Donor,
    stream: StreamRef,
    recorded_ns: u64,
    /// Whether the stream's own next call makes the record if this one does not.
    may_be_left: bool,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Recorded,
    /// The stream may be destroyed, or captures a graph: its own next call makes the record.
    LeftToStream,
    Failed,
}

/// Whether an event covers a donor's epoch.
pub(crate) enum Begun {
    Recorded(RecordedEvent),
    Pending(Record),
    /// No event now: the stream's own next call makes the record, or the stream is forgotten.
    Left,
}

/// Questions about other streams for the driver, and its answers.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    /// Recorded events, and the epoch that an event should cover.
    known: Vec<(RecordedEvent, Epoch)>,
    /// Records to make. After all of them are made, the pool asks which ones the device has reached.
    records: Vec<Record>,
    /// Streams that the pool asks only if no block fits after this inquiry: they own little, and each costs
    /// two calls.
    later: Vec<Donor>,
    /// Whether blocks of streams stay owned while any stream is far behind.
    may_stay: bool,
    now_ns: u64,
    /// How far the stream that is furthest behind is behind the host.
    behind_ns: u64,
    /// Events that the device has reached.
    done: Vec<RecordedEvent>,
    /// Streams whose reached event does not cover all of their blocks.
    uncovered: Vec<Donor>,
    /// The error that says that the device is lost.
    lost: Option<Error>,
}

#[cfg(test)]
impl RecordedEvent {
    pub(crate) fn of_donor(donor: Donor) -> Self {
        Self { donor, event: Event(1), seen: Vec::new(), recorded_ns: 0 }
    }
}

/// Returns the donor's last recorded event.
fn last_recorded_event(slot: &Slot, donor: Donor) -> Option<RecordedEvent> {
    let (event, epoch) = slot.event.zip(slot.recorded_epoch)?;
    let (seen, recorded_ns) = (slot.recorded_seen.clone(), slot.recorded_ns);
    Some(RecordedEvent { donor: Donor { epoch, ..donor }, event, seen, recorded_ns })
}

/// Takes the streams to ask first out of `donors`: if there are many, the ones that own most bytes.
fn take_first(donors: &mut Vec<Donor>) -> Vec<Donor> {
    if donors.len() <= FEW_STREAMS {
        return std::mem::take(donors);
    }
    donors.sort_by_key(|donor| Reverse(donor.bytes));
    let all: u64 = donors.iter().map(|donor| donor.bytes).sum();
    let mut before = 0;
    let is_needed = |donor: &&Donor| {
        let is_needed = before * 100 < all * STREAMS_ASKED_PERCENT;
        before += donor.bytes;
        is_needed
    };
    let first = donors.iter().take_while(is_needed).count().max(FEW_STREAMS);
    let later = donors.split_off(first);
    std::mem::replace(donors, later)
}

impl State {
    /// Returns the streams that own free blocks; with a request, only the ones that could serve it.
    pub(crate) fn donors(&self, request: Option<&Request>) -> Vec<Donor> {
        let donor = |(owner, slot): (Owner, &Slot)| {
            let bytes = self.heaps.free_bytes(request, owner);
            (bytes > 0).then(|| Donor { id: slot.id, epoch: slot.epoch(), bytes })
        };
        self.streams.iter().filter_map(donor).collect()
    }

    /// Returns the questions about streams that own free blocks; with a request, only about streams that
    /// could serve it. With `may_stay`, blocks of streams stay owned while any stream is far behind.
    pub(crate) fn inquire(&mut self, request: Option<&Request>, may_stay: bool) -> Inquiry {
        let mut donors = self.donors(request);
        let first = if request.is_some() { take_first(&mut donors) } else { std::mem::take(&mut donors) };
        self.inquire_of(first, donors, may_stay)
    }

    fn inquire_of(&mut self, donors: Vec<Donor>, later: Vec<Donor>, may_stay: bool) -> Inquiry {
        let mut inquiry = Inquiry { later, may_stay, ..Inquiry::default() };
        for donor in donors {
            match self.pick(donor) {
                Some(recorded) => inquiry.known.push((recorded, donor.epoch)),
                None => self.begin_in(&mut inquiry, donor),
            }
        }
        inquiry
    }

    fn begin_in(&mut self, inquiry: &mut Inquiry, donor: Donor) {
        match self.begin_record(donor) {
            Begun::Recorded(recorded) => inquiry.known.push((recorded, donor.epoch)),
            Begun::Pending(record) => inquiry.records.push(record),
            Begun::Left => {}
        }
    }

    /// Begins a record that covers the donor's epoch, unless an event covers it already.
    pub(crate) fn begin_record(&mut self, donor: Donor) -> Begun {
        let Some((_, slot)) = self.streams.find_mut(donor.id) else { return Begun::Left };
        if let Some(recorded) = last_recorded_event(slot, donor)
            && recorded.donor.epoch >= donor.epoch
        {
            observe!(self, picked, self, &recorded);
            return Begun::Recorded(recorded);
        }
        if slot.id.is_per_thread() && slot.id != StreamRef::PER_THREAD.id() {
            slot.set_record_requested(true);
            return Begun::Left;
        }
        let (mut pending, stream) = (slot.pending_record(), slot.stream);
        observe!(self, begun, self, &pending);
        pending.event = pending.event.or_else(|| self.streams.take_spare_event());
        Begun::Pending(Record::new(pending, stream, donor))
    }

    /// Returns a pending record for the stream's call, if another stream requested one.
    pub(super) fn take_requested_record(&mut self, owner: Owner) -> Option<PendingRecord> {
        let pending = self.streams.slot_mut(owner).take_requested_record()?;
        observe!(self, begun, self, &pending);
        Some(pending)
    }

    /// Forgets streams that own no free block, once there are many, if the caller's call is the only one.
    pub(super) fn forget_idle_streams(&mut self, turns: &Turns) {
        // No thread uses the events of the forgotten streams, since only a call on the slow path or a pending
        // record would.
        if !turns.is_alone() {
            return;
        }
        let Self { heaps, streams, .. } = self;
        streams.sweep(|owner| heaps.free_bytes(None, owner));
        heaps.set_streams(streams.len());
        observe!(self, forgot, self);
    }

    /// Ends a record; returns its event if it was made.
    pub(crate) fn settle(&mut self, record: Record) -> Option<RecordedEvent> {
        let recorded = record.recorded_event();
        let Record { pending, donor, recorded_ns, outcome, .. } = record;
        #[cfg(all(test, not(millpond_loom)))]
        let (epoch, has_event) = (pending.epoch, pending.event.is_some());
        let is_recorded = self.streams.settle(pending, recorded.is_some(), recorded_ns);
        observe!(self, settled, self, Donor { epoch, ..donor }, recorded.is_some(), has_event);
        if outcome == Outcome::LeftToStream
            && let Some((_, slot)) = self.streams.find_mut(donor.id)
        {
            slot.set_record_requested(true);
        }
        recorded.filter(|_| is_recorded)
    }

    /// Notes the driver's answers: how far behind the host the streams are, and which blocks are unowned now.
    /// Returns the next questions, if there are any.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn learn(
        &mut self,
        mut inquiry: Inquiry,
        request: Option<&Request>,
    ) -> Result<Option<Inquiry>> {
        for record in std::mem::take(&mut inquiry.records) {
            self.settle(record);
        }
        if let Some(error) = inquiry.lost {
            return Err(error);
        }
        inquiry.known.clear();
        observe!(self, learned);
        for donor in std::mem::take(&mut inquiry.uncovered) {
            self.begin_in(&mut inquiry, donor);
        }
        if !inquiry.known.is_empty() || !inquiry.records.is_empty() {
            return Ok(Some(inquiry));
        }
        self.backlog.note(inquiry.now_ns, inquiry.behind_ns);
        if inquiry.may_stay && self.backlog.is_long() {
            return Ok(None);
        }
        inquiry.done.iter().for_each(|recorded| self.complete(recorded, request));
        let fits = request.is_some_and(|it| self.heaps.find(ANY_STREAM, Epoch::MAX, it).is_some());
        let later = inquiry.later;
        Ok((!fits && !later.is_empty()).then(|| self.inquire_of(later, Vec::new(), inquiry.may_stay)))
    }

    /// Forgets a stream's recorded event.
    pub(super) fn skip(&mut self, donor: StreamId) {
        if let Some((_, slot)) = self.streams.find_mut(donor) {
            slot.recorded_epoch = None;
        }
        observe!(self, skipped, self, donor);
    }

    /// Returns a stream's last recorded event.
    pub(super) fn pick(&mut self, donor: Donor) -> Option<RecordedEvent> {
        let recorded = last_recorded_event(self.streams.find_mut(donor.id)?.1, donor)?;
        observe!(self, picked, self, &recorded);
        Some(recorded)
    }

    /// Makes the blocks that a reached event covers unowned; with a request, only the ones that could serve
    /// it.
    pub(crate) fn complete(&mut self, recorded: &RecordedEvent, request: Option<&Request>) {
        if let Some((owner, slot)) = self.streams.find_mut(recorded.donor.id) {
            let epoch = recorded.donor.epoch;
            let is_all = self.heaps.disown(request, owner, epoch);
            // Otherwise the event is still needed for the remaining blocks.
            if is_all && slot.recorded_epoch == Some(epoch) {
                slot.recorded_epoch = None;
            }
            observe!(self, completed, self, recorded, is_all);
        }
    }
}

impl Inquiry {
    /// Returns whether there is nothing to ask.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.records.is_empty() && self.later.is_empty()
    }
}

impl Record {
    pub(crate) fn new(pending: PendingRecord, stream: StreamRef, donor: Donor) -> Self {
        Self { pending, donor, stream, recorded_ns: 0, may_be_left: true, outcome: Outcome::Failed }
    }

    /// Returns the event, if it was recorded.
    pub(super) fn recorded_event(&self) -> Option<RecordedEvent> {
        let PendingRecord { epoch, seen, event, .. } = &self.pending;
        let event = event.filter(|_| self.outcome == Outcome::Recorded)?;
        let donor = Donor { epoch: *epoch, ..self.donor };
        Some(RecordedEvent { donor, event, seen: seen.clone(), recorded_ns: self.recorded_ns })
    }
}

impl CentralCore {
    /// Asks the driver which work of other streams is completed, and makes the completed blocks unowned, so
    /// that neighbours of different streams join. `stream` is the stream of the call in progress.
    pub(crate) fn collect_completed(&self, stream: Option<StreamRef>, may_stay: bool) -> Result<()> {
        let mut next = Some(self.state.lock().inquire(None, may_stay));
        while let Some(mut inquiry) = next {
            self.query(&mut inquiry, stream);
            next = self.state.lock().learn(inquiry, None)?;
        }
        Ok(())
    }

    /// Asks the driver. If it panics, the records under way are settled as failed.
    pub(crate) fn query(&self, inquiry: &mut Inquiry, stream: Option<StreamRef>) {
        let asked = catch_unwind(AssertUnwindSafe(|| self.query_driver(inquiry, stream)));
        match asked {
            Ok(Ok(())) => {}
            Ok(Err(error)) => inquiry.lost = Some(error),
            Err(panic) => {
                self.settle_all(inquiry);
                resume_unwind(panic);
            }
        }
    }

    /// Settles the records of an abandoned inquiry.
    pub(crate) fn settle_all(&self, inquiry: &mut Inquiry) {
        let mut state = self.state.lock();
        for record in std::mem::take(&mut inquiry.records) {
            state.settle(record);
        }
    }

    fn query_driver(&self, inquiry: &mut Inquiry, stream: Option<StreamRef>) -> Result<()> {
        let Inquiry { known, records, done, uncovered, now_ns, behind_ns, may_stay, .. } = inquiry;
        if *now_ns == 0 {
            *now_ns = self.now_ns();
        }
        for (recorded, wanted) in known.drain(..) {
            if !self.is_reached(&recorded)? {
                *behind_ns = now_ns.saturating_sub(recorded.recorded_ns).max(*behind_ns);
                if *may_stay && Backlog::is_far(*behind_ns) {
                    uncovered.clear();
                    return Ok(());
                }
                continue;
            }
            if recorded.donor.epoch < wanted {
                uncovered.push(Donor { epoch: wanted, ..recorded.donor });
            }
            done.push(recorded);
        }
        // All events are recorded before the first query, because the device takes a moment to reach each.
        for record in &mut *records {
            self.record(record, stream)?;
        }
        for record in &mut *records {
            let Some(recorded) = record.recorded_event() else { continue };
            match self.driver.event_query(recorded.event) {
                Ok(true) => done.push(recorded),
                Ok(false) => {}
                Err(error) => {
                    record.outcome = Outcome::Failed;
                    self.skip_stream(recorded.donor.id, error)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a record. `stream` is the stream of the call in progress, if there is one, and is certainly
    /// alive. On another thread's stream, an event is recorded only while that stream is alive.
    pub(super) fn record(&self, record: &mut Record, stream: Option<StreamRef>) -> Result<()> {
        let id = record.pending.id;
        let create = || self.driver.event_create(EventFlags::default());
        let done = record.pending.event.map_or_else(create, Ok).and_then(|event| {
            record.pending.event = Some(event);
            match stream {
                Some(stream) if stream.id() == id => record_unless_capturing(&*self.driver, event, stream),
                _ => self.driver.event_record_if_alive(event, record.stream),
            }
        });
        record.recorded_ns = self.now_ns();
        match done {
            Ok(true) => record.outcome = Outcome::Recorded,
            Ok(false) if record.may_be_left => record.outcome = Outcome::LeftToStream,
            Ok(false) => {}
            Err(error) => self.skip_stream(id, error)?,
        }
        Ok(())
    }

    /// Makes a record, and settles it. If that panics, the record has failed.
    fn record_and_settle(
        &self,
        mut record: Record,
        make: impl FnOnce(&mut Record) -> Result<()>,
    ) -> Result<Option<RecordedEvent>> {
        let made = catch_unwind(AssertUnwindSafe(|| make(&mut record)));
        let settled = self.state.lock().settle(record);
        made.unwrap_or_else(|panic| resume_unwind(panic)).map(|()| settled)
    }

    /// Returns an event that covers the donor's epoch; records it if needed. Returns `None` if the donor's
    /// stream may be destroyed, or captures a graph.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn recorded_event_of(
        &self,
        donor: Donor,
        stream: Option<StreamRef>,
    ) -> Result<Option<RecordedEvent>> {
        let begun = self.state.lock().begin_record(donor);
        match begun {
            Begun::Recorded(recorded) => Ok(Some(recorded)),
            Begun::Pending(record) => self.record_and_settle(record, |record| self.record(record, stream)),
            Begun::Left => Ok(None),
        }
    }

    /// Returns the event of [`recorded_event_of`](Self::recorded_event_of). If none can be recorded, returns
    /// the donor's last event, which covers an earlier epoch.
    pub(crate) fn recorded_event_or_last(
        &self,
        donor: Donor,
        stream: Option<StreamRef>,
    ) -> Result<Option<RecordedEvent>> {
        if let Some(recorded) = self.recorded_event_of(donor, stream)? {
            return Ok(Some(recorded));
        }
        Ok(self.state.lock().pick(donor))
    }

    /// Records the calling stream's event that another stream requested.
    #[cold]
    pub(crate) fn record_for_others(&self, pending: PendingRecord, stream: StreamRef) {
        let donor = Donor { id: pending.id, epoch: pending.epoch, bytes: 0 };
        let mut record = Record::new(pending, stream, donor);
        record.may_be_left = false;
        // Without the event the blocks stay with their stream, so an error fails no call. The loss of a
        // device is noted.
        let _ = self.record_and_settle(record, |record| {
            let _captures = CaptureModeGuard::relaxed(&*self.driver);
            if self.health.is_lost() { Ok(()) } else { self.record(record, Some(stream)) }
        });
    }

    /// Returns whether all work before the recorded event is done; `false` if the driver does not know.
    pub(crate) fn is_reached(&self, recorded: &RecordedEvent) -> Result<bool> {
        self.driver
            .event_query(recorded.event)
            .or_else(|error| self.skip_stream(recorded.donor.id, error).map(|()| false))
    }

    /// Forgets the donor's recorded event after an error, unless the device is lost.
    pub(crate) fn skip_stream(&self, donor: StreamId, error: DriverError) -> Result<()> {
        self.health.note(&error);
        if self.health.is_lost() {
            return Err(Error::from(error).on_device(self.driver.device()));
        }
        self.state.lock().skip(donor);
        event!(
            self, WARN,
            "continuing without the free blocks of another stream", call = error.call(), %error
        );
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
