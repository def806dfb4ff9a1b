//! A fixed set of streams, used in turn.

use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_core::driver::StreamFlags;
use millpond_core::{DriverHandle, Error, Result};

use crate::Stream;

/// Holds a fixed number of streams of one device. A program that borrows its streams from this pool creates
/// no further streams while it works.
///
/// The pool lends its streams in turn: after [`len`](Self::len) calls, it lends the first stream again.
/// Dropping the pool destroys the streams.
///
/// ```
/// use millpond_containers::StreamPool;
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
///
/// let streams = StreamPool::new(SimDevice::new(SimConfig::h200()), 4, StreamFlags::NON_BLOCKING)?;
/// assert_ne!(streams.get().as_ref(), streams.get().as_ref());
/// assert_eq!(streams.get_at(1).as_ref(), streams.get_at(5).as_ref());
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamPool {
    streams: Vec<Stream>,
    next: AtomicUsize,
}

impl StreamPool {
    /// A usual number of streams for a pool, for callers of [`new`](Self::new).
    pub const DEFAULT_LEN: usize = 16;

    /// Creates a pool of `len` streams on the driver's device.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `len` is 0; also the driver's
    /// errors.
    pub fn new(driver: DriverHandle, len: usize, flags: StreamFlags) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid_argument("a pool of 0 streams cannot lend a stream; use 1 or more"));
        }
        let streams = (0..len).map(|_| Stream::new(driver.clone(), flags)).collect::<Result<_>>()?;
        Ok(Self { streams, next: AtomicUsize::new(0) })
    }

    /// Returns the next stream in turn. If several threads call this method at the same time, they get
    /// different streams, unless there are more threads than streams.
    pub fn get(&self) -> &Stream {
        self.get_at(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the stream with the index `number` modulo [`len`](Self::len).
    pub fn get_at(&self, number: usize) -> &Stream {
        &self.streams[number % self.streams.len()]
    }

    /// Returns the number of streams in the pool, which is at least 1.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.streams.len()
    }
}
