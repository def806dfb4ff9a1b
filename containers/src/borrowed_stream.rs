//! A stream that another value, or another library, owns.

use std::fmt;
use std::marker::PhantomData;

use millpond_core::driver::call;
use millpond_core::{DriverHandle, Result, StreamId, StreamRef};

use crate::Event;

/// A stream with another owner: a borrow of a [`Stream`](crate::Stream), a default stream, or a stream of
/// another library. Dropping a `BorrowedStream` does not destroy the stream.
///
/// ```
/// use millpond_containers::{BorrowedStream, Stream};
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
///
/// fn finish(stream: BorrowedStream<'_>) -> millpond_core::Result<()> {
///     stream.synchronize()
/// }
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// finish(stream.borrow())?;
/// finish(BorrowedStream::legacy(device))?;
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone)]
pub struct BorrowedStream<'a> {
    driver: DriverHandle,
    stream: StreamRef,
    /// The identity on the thread that made this value: on another thread, the per-thread default stream is
    /// another stream.
    id: StreamId,
    owner: PhantomData<&'a ()>,
}

impl<'a> BorrowedStream<'a> {
    pub(crate) fn of(driver: DriverHandle, stream: StreamRef) -> Self {
        Self { driver, stream, id: stream.id(), owner: PhantomData }
    }

    /// Returns the legacy default stream of the driver's device.
    pub fn legacy(driver: DriverHandle) -> Self {
        Self::of(driver, StreamRef::LEGACY)
    }

    /// Returns the per-thread default stream of the driver's device. Each thread has its own stream.
    pub fn per_thread(driver: DriverHandle) -> Self {
        Self::of(driver, StreamRef::PER_THREAD)
    }

    /// Returns the stream with this raw handle (`CUstream` as a number).
    ///
    /// # Errors
    /// The driver's errors.
    ///
    /// # Safety
    /// The handle names a stream of the driver's device, and the stream lives as long as `'a`. If this driver
    /// did not make the stream, the rule of [`StreamRef::foreign`] also applies: the stream must live as long
    /// as a [`StreamRef`] of it is passed to calls. Safe code can get and keep such a `StreamRef` with
    /// [`as_ref`](Self::as_ref).
    pub unsafe fn from_raw(driver: DriverHandle, handle: u64) -> Result<Self> {
        // SAFETY: the caller's promise.
        let stream = call(&*driver, |driver| unsafe { driver.stream_ref(handle) })?;
        Ok(Self::of(driver, stream))
    }

    /// Returns the stream as a [`StreamRef`], the argument type of calls. The `StreamRef` may outlive the
    /// borrow:
    /// - If the driver made the stream, calls with the `StreamRef` fail after the stream is destroyed.
    /// - A default stream is never destroyed.
    /// - If another library made the stream, the caller of [`from_raw`](Self::from_raw) has guaranteed that
    ///   the stream lives.
    pub fn as_ref(&self) -> StreamRef {
        self.stream
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

impl From<&BorrowedStream<'_>> for StreamRef {
    fn from(stream: &BorrowedStream<'_>) -> Self {
        stream.stream
    }
}

/// Two borrows are equal if they name the same stream of the same device. The per-thread default streams of
/// two threads differ.
impl PartialEq for BorrowedStream<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.driver.device() == other.driver.device() && self.id == other.id
    }
}

impl Eq for BorrowedStream<'_> {}

/// Prints the stream as a log does; see [`StreamRef`].
impl fmt::Display for BorrowedStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

impl fmt::Debug for BorrowedStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedStream")
            .field("device", &self.driver.device())
            .field("stream", &self.stream)
            .finish()
    }
}
