//! Streams that a resource keeps: the streams of its callers, and one that it creates.

use millpond_core::driver::{Driver, DriverResult, StreamFlags, ask};
use millpond_core::{StreamId, StreamRef};
use parking_lot::Mutex;

/// A stream, with its id at the time when it was named. On another thread, the reference of a per-thread
/// stream means a different stream.
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

/// A stream that belongs to a resource, created on first use. It is never captured, and no default stream
/// waits for it.
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

    /// Destroys the stream, if it was created. Work already submitted on it completes.
    pub(crate) fn destroy(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let Some(stream) = self.0.get_mut().take() else { return Ok(()) };
        // SAFETY: nothing else has the stream, since its resource ends.
        ask(driver, |driver| unsafe { driver.stream_destroy(stream) })
    }
}
