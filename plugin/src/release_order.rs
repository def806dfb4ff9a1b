//! Orders the free of a block after the work of all streams that used the block.

use millpond_core::driver::{CaptureModeGuard, Event, EventFlags};
use millpond_core::{DriverError, DriverHandle, Error, Result, StreamId, StreamRef};
use parking_lot::Mutex;

use crate::current_stream;
use millpond_core::driver::call;

/// A stream that uses a block, with the stream's identity at the time of the use. On the thread of a late
/// finalizer, the handle of the per-thread stream means another stream.
#[derive(Clone, Copy, Debug)]
struct StreamUse {
    stream: StreamRef,
    id: StreamId,
}

/// All streams that use a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// The legacy default stream. Blocking streams that were never announced may also have used the block.
    legacy: bool,
    others: Vec<StreamUse>,
}

impl Uses {
    /// Returns the uses of a block that is allocated on `stream`.
    pub(crate) fn of(stream: StreamRef) -> Self {
        let mut uses = Self::default();
        uses.add(stream);
        uses
    }

    /// Adds a live stream that uses the block.
    pub(crate) fn add(&mut self, stream: StreamRef) {
        let id = stream.id();
        if stream.is_legacy() {
            self.legacy = true;
        } else if self.others.iter().all(|known| known.id != id) {
            self.others.push(StreamUse { stream, id });
        }
    }
}

/// Finds the stream in whose order a block can be freed. The free may come long after the allocation, and on
/// any thread.
///
/// By then, the streams that used the block may be destroyed. So a block is freed in the order of the legacy
/// default stream, which waits for all blocking streams implicitly. For every other stream, it waits for an
/// event. If that stream may be destroyed, the host waits for the device instead.
#[derive(Debug)]
pub(crate) struct ReleaseOrder {
    driver: DriverHandle,
    /// A spare event. One thread at a time records it and waits for it. A wait that was enqueued still waits
    /// for its own record.
    event: Mutex<Option<Event>>,
}

impl ReleaseOrder {
    pub(crate) fn new(driver: DriverHandle) -> Self {
        Self { driver, event: Mutex::new(None) }
    }

    /// Returns the stream on which a block can be freed after `uses`.
    ///
    /// # Errors
    /// Returns an error of the driver if the free cannot be ordered now, for instance while a stream captures
    /// a graph.
    pub(crate) fn after(&self, uses: &Uses) -> Result<StreamRef> {
        let scope = current_stream();
        if let [only] = uses.others[..]
            && !uses.legacy
            && only.id == scope.id()
        {
            return Ok(scope); // alive, because it is this thread's stream now
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut device_wide = false;
        for StreamUse { stream, .. } in &uses.others {
            // Per-thread default streams are blocking streams, so the legacy default stream runs after them
            // implicitly.
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

    /// If `stream` is known to be alive, makes the legacy default stream wait for it. Returns whether it did.
    fn join(&self, stream: StreamRef) -> Result<bool> {
        // This thread owns the event until it puts the event back. It calls the driver without the lock.
        let spare = self.event.lock().take();
        let event = match spare {
            Some(event) => event,
            None => call(&*self.driver, |driver| driver.event_create(EventFlags::default()))?,
        };
        let joined = call(&*self.driver, |driver| {
            // While a blocking stream captures a graph, a wait of the legacy default stream would end the
            // capture.
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
            // SAFETY: `join` created the event on this driver, and it was taken out of the slot, so it is not
            // named again.
            if let Err(error) = call(&*self.driver, |driver| unsafe { driver.event_destroy(event) }) {
                tracing::debug!(target: "millpond::plugin", %error, "could not destroy an event");
            }
        }
    }
}

impl Drop for ReleaseOrder {
    fn drop(&mut self) {
        self.clear();
    }
}
