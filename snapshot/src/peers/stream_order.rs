//! Orders streams, for models that reuse memory on any stream.

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::{Driver, StreamId, StreamRef};

/// Makes a stream wait for what other streams freed before. While one stream alone is seen, it calls nothing.
#[derive(Debug, Default)]
pub(super) struct StreamOrder {
    streams: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    id: StreamId,
    /// Recorded behind its last free.
    event: Option<Event>,
    /// How often that was recorded.
    frees: u64,
    /// How many records of the other streams this one has waited for.
    waited: Vec<u64>,
}

impl StreamOrder {
    fn number(&mut self, driver: &dyn Driver, stream: StreamRef) -> DriverResult<usize> {
        let id = stream.id();
        if let Some(at) = self.streams.iter().position(|seen| seen.id == id) {
            return Ok(at);
        }
        if self.streams.len() == 1 {
            // The first stream recorded nothing so far.
            driver.synchronize()?;
        }
        self.streams.push(Seen { id, event: None, frees: 0, waited: Vec::new() });
        Ok(self.streams.len() - 1)
    }

    /// Notes a free on a stream.
    pub(super) fn freed(&mut self, driver: &dyn Driver, stream: StreamRef) -> DriverResult<()> {
        let at = self.number(driver, stream)?;
        if self.streams.len() == 1 {
            return Ok(());
        }
        let event = match self.streams[at].event {
            Some(event) => event,
            None => driver.event_create(EventFlags::default())?,
        };
        self.streams[at].event = Some(event);
        driver.event_record(event, stream)?;
        self.streams[at].frees += 1;
        Ok(())
    }

    /// Makes a stream wait for all frees on others.
    pub(super) fn wait(&mut self, driver: &dyn Driver, stream: StreamRef) -> DriverResult<()> {
        let at = self.number(driver, stream)?;
        let others = self.streams.len();
        self.streams[at].waited.resize(others, 0);
        for other in (0..others).filter(|other| *other != at) {
            let Seen { event, frees, .. } = self.streams[other];
            if let Some(event) = event.filter(|_| self.streams[at].waited[other] < frees) {
                driver.stream_wait_event(stream, event)?;
                self.streams[at].waited[other] = frees;
            }
        }
        Ok(())
    }

    /// Destroys the events.
    pub(super) fn release(&mut self, driver: &dyn Driver) {
        for event in self.streams.drain(..).filter_map(|seen| seen.event) {
            // SAFETY: the event is ours, and is not used again.
            let _ = unsafe { driver.event_destroy(event) };
        }
    }
}
