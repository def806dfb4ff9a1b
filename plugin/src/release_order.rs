use millpond_core::driver::{Event, EventFlags};
use millpond_core::{DriverError, DriverHandle, StreamId, StreamRef};
use parking_lot::Mutex;

use crate::current_stream;

/// A stream that uses a block, with its identity at the time: the per-thread stream is another one on
/// the thread of a late finalizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamUse {
    stream: StreamRef,
    id: StreamId,
}

impl StreamUse {
    /// The stream as a use to keep; `None` for the legacy default stream, which every block waits for anyway.
    pub(crate) fn of(stream: StreamRef) -> Option<Self> {
        (!stream.is_legacy()).then(|| Self { stream, id: stream.id() })
    }
}

impl PartialEq for StreamUse {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// Finds the stream in whose order a block may go back, long after it was taken, on any thread.
///
/// The streams that used the block may have been destroyed by then. So a block goes back in the order of
/// the legacy default stream, which comes after all blocking streams by itself and is made to wait for the
/// others: by an event on a stream that is surely alive, and by waiting for the device where nothing is
/// known.
#[derive(Debug)]
pub(crate) struct ReleaseOrder {
    driver: DriverHandle,
    /// Recorded and waited for again and again: a wait that is enqueued keeps what it waits for.
    event: Mutex<Option<Event>>,
}

impl ReleaseOrder {
    pub(crate) fn new(driver: DriverHandle) -> Self {
        Self { driver, event: Mutex::new(None) }
    }

    /// The stream to give a block back on after `uses`.
    ///
    /// # Errors
    /// The driver's, if the block cannot be ordered now, for instance while a stream captures a graph.
    pub(crate) fn after(&self, uses: &[StreamUse]) -> Result<StreamRef, DriverError> {
        let scope = current_stream();
        if let [only] = uses
            && only.id == scope.id()
        {
            return Ok(scope); // alive, as it is this thread's stream now
        }
        let mut device_wide = false;
        for StreamUse { stream, .. } in uses {
            // Per-thread streams are blocking: the legacy stream comes after them by itself.
            if !stream.is_per_thread() && !self.join(*stream)? {
                device_wide = true;
            }
        }
        if device_wide {
            self.driver.synchronize()?;
        }
        Ok(StreamRef::LEGACY)
    }

    /// Makes the legacy stream wait for `stream` if that is surely alive, and says whether it did.
    fn join(&self, stream: StreamRef) -> Result<bool, DriverError> {
        let mut slot = self.event.lock();
        let event = match *slot {
            Some(event) => event,
            None => *slot.insert(self.driver.event_create(EventFlags::default())?),
        };
        let recorded = self.driver.event_record_if_alive(event, stream)?;
        if recorded {
            self.driver.stream_wait_event(StreamRef::LEGACY, event)?;
        }
        Ok(recorded)
    }

    /// Ends the event, before the context goes.
    pub(crate) fn clear(&self) {
        if let Some(event) = self.event.lock().take() {
            // SAFETY: created by `join` on this driver and taken out of the slot, so nobody names it again.
            if let Err(error) = unsafe { self.driver.event_destroy(event) } {
                tracing::debug!(target: "millpond::plugin", %error, "could not end an event");
            }
        }
    }
}

impl Drop for ReleaseOrder {
    fn drop(&mut self) {
        self.clear();
    }
}
