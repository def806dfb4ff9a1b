//! Orders the release of a block after all streams that used it.

use millpond_core::driver::{CaptureModeGuard, Event, EventFlags};
use millpond_core::{DriverError, DriverHandle, Error, Result, StreamId, StreamRef};
use parking_lot::Mutex;

use crate::current_stream;
use millpond_core::driver::call;

/// A stream that uses a block, with its identity at the time: the per-thread stream is another stream on the
/// thread of a late finalizer.
#[derive(Clone, Copy, Debug)]
struct StreamUse {
    stream: StreamRef,
    id: StreamId,
}

/// All streams that use a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// The legacy default stream, and with it perhaps blocking streams that were never announced.
    legacy: bool,
    others: Vec<StreamUse>,
}

impl Uses {
    /// The uses of a block that is allocated on `stream`.
    pub(crate) fn of(stream: StreamRef) -> Self {
        let mut uses = Self::default();
        uses.add(stream);
        uses
    }

    /// Adds a stream that is alive and uses the block.
    pub(crate) fn add(&mut self, stream: StreamRef) {
        let id = stream.id();
        if stream.is_legacy() {
            self.legacy = true;
        } else if self.others.iter().all(|known| known.id != id) {
            self.others.push(StreamUse { stream, id });
        }
    }
}

/// Finds the stream in whose order a block may go back, long after it was taken, on any thread.
///
/// The streams that used the block may have been destroyed by then. So a block goes back in the order of the
/// legacy default stream, which comes after all blocking streams implicitly and is made to wait for the
/// others: by an event on a stream that is known to be alive, and by waiting for the device otherwise.
#[derive(Debug)]
pub(crate) struct ReleaseOrder {
    driver: DriverHandle,
    /// A spare event. It is recorded and waited for repeatedly, by one thread at a time: an enqueued wait
    /// keeps the record that it waits for.
    event: Mutex<Option<Event>>,
}

impl ReleaseOrder {
    pub(crate) fn new(driver: DriverHandle) -> Self {
        Self { driver, event: Mutex::new(None) }
    }

    /// The stream to give a block back on after `uses`.
    ///
    /// # Errors
    /// Those of the driver, if the block cannot be ordered now, for instance while a stream captures a graph.
    pub(crate) fn after(&self, uses: &Uses) -> Result<StreamRef> {
        let scope = current_stream();
        if let [only] = uses.others[..]
            && !uses.legacy
            && only.id == scope.id()
        {
            return Ok(scope); // alive, as it is this thread's stream now
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut device_wide = false;
        for StreamUse { stream, .. } in &uses.others {
            // Per-thread streams are blocking: the legacy stream comes after them implicitly.
            if !stream.is_per_thread() && !self.join(*stream)? {
                device_wide = true;
            }
        }
        if device_wide && !call(&*self.driver, |driver| driver.synchronize_beside_captures())? {
            let refused = DriverError::new(DriverError::STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize");
            return Err(Error::from(refused).on_device(self.driver.device()));
        }
        Ok(StreamRef::LEGACY)
    }

    /// Makes the legacy stream wait for `stream` if that is known to be alive; returns whether it did.
    fn join(&self, stream: StreamRef) -> Result<bool> {
        // The event is this thread's until it is put back, and the driver is called without the lock.
        let spare = self.event.lock().take();
        let event = match spare {
            Some(event) => event,
            None => call(&*self.driver, |driver| driver.event_create(EventFlags::default()))?,
        };
        let joined = call(&*self.driver, |driver| {
            // While a blocking stream captures a graph, a wait of the legacy stream would end the capture.
            match driver.stream_is_capturing(StreamRef::LEGACY) {
                Err(error) if !error.is_unsupported() => return Err(error),
                Ok(_) | Err(_) => {}
            }
            let recorded = driver.event_record_if_alive(event, stream)?;
            if recorded {
                driver.stream_wait_event(StreamRef::LEGACY, event)?;
            }
            Ok(recorded)
        });
        let extra = self.event.lock().replace(event);
        self.destroy(extra);
        joined
    }

    /// Destroys the event before the context is lost.
    pub(crate) fn clear(&self) {
        let event = self.event.lock().take();
        self.destroy(event);
    }

    fn destroy(&self, event: Option<Event>) {
        if let Some(event) = event {
            // SAFETY: created by `join` on this driver and taken out of the slot, so it is not named again.
            if let Err(error) = call(&*self.driver, |driver| unsafe { driver.event_destroy(event) }) {
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
