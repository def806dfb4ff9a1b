//! Calls to the driver whose errors the caller handles, and a stream of a resource's own.

use millpond_core::driver::{Driver, DriverError, DriverResult, Event, StreamFlags};
use millpond_core::{StreamId, StreamRef};
use parking_lot::Mutex;

/// Makes a call whose error the caller handles; notes in the device's health if it is lost.
pub(crate) fn ask<T>(
    driver: &dyn Driver,
    body: impl FnOnce(&dyn Driver) -> DriverResult<T>,
) -> DriverResult<T> {
    body(driver).inspect_err(|error| driver.health().note(error))
}

/// Whether work that is submitted to the stream now would be a part of a graph, or end its capture.
pub(crate) fn is_capturing(driver: &dyn Driver, stream: StreamRef) -> DriverResult<bool> {
    match ask(driver, |driver| driver.stream_is_capturing(stream)) {
        Err(error) if error.is_capture_refusal() => Ok(true),
        Err(error) if error.is_unsupported() => Ok(false),
        answer => answer,
    }
}

/// Records the event on a stream that is certainly alive, unless the stream captures a graph.
///
/// # Errors
/// What the driver reports; [`DriverError::CAPTURED_EVENT`] if a capture began during the call.
pub(crate) fn record_unless_capturing(
    driver: &dyn Driver,
    event: Event,
    stream: StreamRef,
) -> DriverResult<bool> {
    if is_capturing(driver, stream)? {
        return Ok(false);
    }
    driver.event_record(event, stream)?;
    // If a capture began before the record, the record is a part of it.
    if is_capturing(driver, stream)? {
        return Err(DriverError::new(DriverError::CAPTURED_EVENT, "cuEventRecord"));
    }
    Ok(true)
}

/// A stream under the identity that it had when it was named. On another thread the reference of a per-thread
/// stream names another stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedStream {
    pub(crate) id: StreamId,
    pub(crate) stream: StreamRef,
}

impl NamedStream {
    pub(crate) fn of(stream: StreamRef) -> Self {
        Self { id: stream.id(), stream }
    }

    /// The stream, if the calling thread can name it.
    pub(crate) fn here(self) -> Option<StreamRef> {
        (self.stream.id() == self.id).then_some(self.stream)
    }
}

/// A stream of a resource's own, created when it is first needed. It is never captured, and no default
/// stream waits for it.
#[derive(Debug, Default)]
pub(crate) struct OwnStream(Mutex<Option<StreamRef>>);

impl OwnStream {
    pub(crate) fn get(&self, driver: &dyn Driver) -> DriverResult<StreamRef> {
        let known = *self.0.lock();
        if let Some(stream) = known {
            return Ok(stream);
        }
        // Without the lock: the driver is foreign code, and may call back.
        let made = ask(driver, |driver| driver.stream_create(StreamFlags::NON_BLOCKING))?;
        let first = *self.0.lock().get_or_insert(made);
        if first != made {
            // SAFETY: the stream was made above, and nothing else has it.
            let _ = ask(driver, |driver| unsafe { driver.stream_destroy(made) });
        }
        Ok(first)
    }

    /// Destroys the stream, if it was created. Its work goes on to its end.
    pub(crate) fn destroy(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let Some(stream) = self.0.get_mut().take() else { return Ok(()) };
        // SAFETY: nothing else has the stream, since its resource ends.
        ask(driver, |driver| unsafe { driver.stream_destroy(stream) })
    }
}
