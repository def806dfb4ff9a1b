//! A stream that destroys itself when it is dropped.

use std::fmt;

use millpond_core::driver::StreamFlags;
use millpond_core::{DriverHandle, Result, StreamRef};

use crate::{BorrowedStream, Event};
use millpond_core::driver::call;

/// An owned stream. Dropping this value destroys the stream. Work that was already submitted to the stream
/// still runs to its end.
///
/// Calls accept the stream as a [`StreamRef`], which does not keep the stream alive. Drop a stream after the
/// buffers that use it. If a buffer's stream was destroyed, the buffer waits for the whole device at its next
/// use.
///
/// ```
/// use millpond_containers::Stream;
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
///
/// let stream = Stream::new(SimDevice::new(SimConfig::h200()), StreamFlags::NON_BLOCKING)?;
/// stream.synchronize()?;
/// assert!(stream.query()?);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct Stream {
    driver: DriverHandle,
    stream: StreamRef,
}

impl Stream {
    /// Creates a stream on the driver's device.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn new(driver: DriverHandle, flags: StreamFlags) -> Result<Self> {
        let stream = call(&*driver, |driver| driver.stream_create(flags))?;
        Ok(Self { driver, stream })
    }

    /// Returns the stream as a [`StreamRef`], the argument type of calls.
    pub fn as_ref(&self) -> StreamRef {
        self.stream
    }

    /// Returns a borrow of the stream. Dropping the borrow does not destroy the stream.
    pub fn borrow(&self) -> BorrowedStream<'_> {
        BorrowedStream::of(self.driver.clone(), self.stream)
    }

    /// Waits on the host until all work that was submitted to the stream is done.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn synchronize(&self) -> Result<()> {
        call(&*self.driver, |driver| driver.stream_synchronize(self.stream))
    }

    /// Returns whether all work that was submitted to the stream is done.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn query(&self) -> Result<bool> {
        call(&*self.driver, |driver| driver.stream_query(self.stream))
    }

    /// Makes later work on this stream wait for the event. The host does not wait.
    ///
    /// # Errors
    /// The errors of [`Event::make_wait`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.make_wait(self.stream)
    }
}

impl From<&Stream> for StreamRef {
    fn from(stream: &Stream) -> Self {
        stream.stream
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream came from this driver, and only this value destroys it.
        if let Err(error) = call(&*self.driver, |driver| unsafe { driver.stream_destroy(self.stream) }) {
            tracing::debug!(target: "millpond::containers", %error, "a stream could not be destroyed");
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("device", &self.driver.device()).field("stream", &self.stream).finish()
    }
}
