//! Begins and ends captures of graphs, and detects them.

use std::fmt;
use std::sync::Arc;

use millpond_core::StreamRef;
use millpond_core::driver::{CaptureMode, DriverError, DriverResult, Event};

use super::{CudaDriver, abi};

impl CudaDriver {
    /// Begins to capture the work that is submitted to the stream (`cuStreamBeginCapture`).
    ///
    /// # Errors
    /// Those of the driver.
    pub fn begin_capture(&self, stream: StreamRef, mode: CaptureMode) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the stream is alive (`StreamRef`).
        unsafe { self.functions().stream_begin_capture(stream.handle(), abi::capture_mode(mode)) }
    }

    /// Ends the capture that the stream began (`cuStreamEndCapture`).
    ///
    /// # Errors
    /// [`DriverError::STREAM_CAPTURE_INVALIDATED`] if a call ended the capture before, and others of the
    /// driver.
    pub fn end_capture(self: &Arc<Self>, stream: StreamRef) -> DriverResult<Graph> {
        let _context = self.enter()?;
        let mut handle = 0;
        // SAFETY: the stream is alive (`StreamRef`); `handle` takes the result.
        unsafe { self.functions().stream_end_capture(stream.handle(), &raw mut handle) }?;
        Ok(Graph { driver: Arc::clone(self), handle })
    }

    /// Whether the stream captures, or belongs to the legacy default stream while a blocking one does.
    fn is_captured(&self, handle: u64) -> DriverResult<bool> {
        let _context = self.enter()?;
        let mut status = 0;
        // SAFETY: every caller names a living stream; `status` takes the result.
        match unsafe { self.functions().stream_is_capturing(handle, &raw mut status) } {
            Ok(()) => Ok(status != 0),
            Err(error) if error.is_capture_refusal() => Ok(true),
            Err(error) if error.is_unsupported() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records the event on a living stream, unless the stream captures.
    ///
    /// Another thread may begin a capture while this runs. Then the record may have become a part of it,
    /// which cannot be detected: the event counts as captured.
    pub(super) fn record_outside_captures(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        if self.is_captured(stream.handle())? {
            return Ok(false);
        }
        self.record_on_living(event, stream)?;
        if self.is_captured(stream.handle())? {
            return Err(DriverError::new(DriverError::CAPTURED_EVENT, "cuEventRecord")
                .with_detail("a capture began on the stream at this moment"));
        }
        Ok(true)
    }

    /// Whether a stream captures, as far as streams can be queried: the living ones that were made here, and
    /// through the legacy default stream all blocking ones.
    pub(super) fn sees_captures(&self) -> DriverResult<bool> {
        if self.is_captured(StreamRef::LEGACY.handle())? {
            return Ok(true);
        }
        // Each entry's lock, held during the query of its stream, keeps `stream_destroy` out.
        for alive in &self.streams {
            if self.is_captured(*alive.key())? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A captured graph, for inspection through its handle. It is destroyed when dropped.
pub struct Graph {
    driver: Arc<CudaDriver>,
    handle: u64,
}

impl Graph {
    /// The raw handle (`CUgraph` as a number).
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is this value's own.
        if let Err(error) = unsafe { self.driver.functions().graph_destroy(self.handle) } {
            tracing::debug!(target: "millpond::driver", %error, "a graph could not be destroyed");
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("handle", &format_args!("{:#x}", self.handle)).finish_non_exhaustive()
    }
}
