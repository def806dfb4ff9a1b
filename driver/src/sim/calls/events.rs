//! Creates, records, queries and waits for events.

use millpond_core::driver::Event;
use millpond_core::{DriverError, StreamRef};

use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::clock::{Clock, Epoch, Slot};
use crate::sim::model::order::{LEGACY, Waits};
use crate::sim::model::violation::ViolationKind;
use crate::sim::model::work::Operation;
use crate::sim::state::State;

impl State {
    pub(crate) fn event_create(&mut self) -> Event {
        let event = self.names.add_event();
        self.note(event.0);
        event
    }

    pub(crate) fn event_destroy(&mut self, event: Event) -> Answer<()> {
        self.known_event(event, "cuEventDestroy")?;
        self.names.remove_event(event);
        Ok(())
    }

    fn known_event(&mut self, event: Event, call: &str) -> Answer<()> {
        if self.names.has_event(event) {
            return Ok(());
        }
        self.violation(ViolationKind::DeadHandle, || {
            format!("{call} names event {:#x}, which never existed or was destroyed", event.0)
        });
        Err(Refusal::new(DriverError::INVALID_HANDLE, format!("event {:#x} does not exist", event.0)))
    }

    pub(crate) fn event_record(&mut self, event: Event, stream: StreamRef) -> Answer<()> {
        self.known_event(event, "cuEventRecord")?;
        let slot = self.stream_slot(stream, "cuEventRecord")?;
        if slot == LEGACY {
            self.pass(self.profile.legacy_record_extra_ns());
        }
        self.order_by_legacy_rule(slot);
        let captured_in = self.captures.of(slot);
        self.names.set_record(event, self.order.end(slot), self.order.clock(slot), captured_in);
        Ok(())
    }

    /// Orders the end of a stream after the work that the legacy rule names.
    fn order_by_legacy_rule(&mut self, slot: Slot) {
        let mut waits = Waits::new();
        self.order.join_implicit(slot, &mut waits);
        if !waits.is_empty() {
            let epoch = self.order.advance(slot);
            self.submit((epoch, waits), Operation::Nothing, 0);
        }
    }

    /// The point that an event would record on the stream now.
    pub(crate) fn point(&mut self, stream: StreamRef) -> Answer<(Epoch, Clock)> {
        let slot = self.stream_slot(stream, "cuLaunchHostFunc")?;
        self.order_by_legacy_rule(slot);
        let mut clock = Clock::default();
        clock.copy_from(self.order.clock(slot));
        Ok((self.order.end(slot), clock))
    }

    /// Waits for a point. A lost device runs no work.
    pub(crate) fn wait_for_point(&mut self, (epoch, clock): &(Epoch, Clock)) {
        if !self.faults.is_lost() {
            self.work.finish(*epoch, &mut self.effects);
            self.order.host_learns(clock);
        }
    }

    /// Whether [`event_record`](Self::event_record) may be called; see the trait.
    pub(crate) fn is_surely_alive(&self, stream: StreamRef) -> bool {
        let is_free = |slot| !self.is_captured(slot);
        !stream.is_per_thread() && self.names.slot(stream).is_some_and(is_free)
    }

    pub(crate) fn stream_wait_event(&mut self, stream: StreamRef, event: Event) -> Answer<()> {
        self.known_event(event, "cuStreamWaitEvent")?;
        let slot = self.stream_slot(stream, "cuStreamWaitEvent")?;
        let mut waits = Waits::new();
        self.order.join_implicit(slot, &mut waits);
        match self.names.record(event) {
            None => self.violation(ViolationKind::UnrecordedEvent, || {
                format!("stream {stream} was made to wait for event {:#x}, which was never recorded", event.0)
            }),
            Some(record) => {
                if self.order.join_event(slot, record.epoch, &record.clock) {
                    waits.push(record.epoch);
                }
            }
        }
        if !waits.is_empty() {
            let epoch = self.order.advance(slot);
            self.submit((epoch, waits), Operation::Nothing, 0);
        }
        Ok(())
    }

    pub(crate) fn event_query(&mut self, event: Event) -> Answer<bool> {
        self.known_event(event, "cuEventQuery")?;
        let Some(record) = self.names.record(event) else { return Ok(true) };
        let done = self.work.is_done(record.epoch);
        if done {
            self.order.host_learns(&record.clock);
        }
        self.note(u64::from(done));
        Ok(done)
    }

    pub(crate) fn event_synchronize(&mut self, event: Event) -> Answer<()> {
        self.known_event(event, "cuEventSynchronize")?;
        let Some(record) = self.names.record(event) else { return Ok(()) };
        self.work.finish(record.epoch, &mut self.effects);
        self.order.host_learns(&record.clock);
        self.trim_pools();
        Ok(())
    }
}
