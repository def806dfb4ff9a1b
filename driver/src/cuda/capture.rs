//! Begins and ends captures of graphs, and detects them.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::driver::{CaptureMode, DriverError, DriverResult, Event};
use millpond_core::{StreamId, StreamRef};

use super::{CudaDriver, abi};

/// The capture that a stream belongs to.
enum CaptureOf {
    None,
    /// The capture with this number.
    Active(u64),
    /// A capture that an illegal call ended before `cuStreamEndCapture`. CUDA reports no number for it.
    Invalid,
}

impl CudaDriver {
    /// Begins a capture of the work that is submitted to the stream (`cuStreamBeginCapture`).
    ///
    /// # Errors
    /// The driver's errors.
    pub fn begin_capture(&self, stream: StreamRef, mode: CaptureMode) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the stream is alive (`StreamRef`).
        unsafe { self.functions().stream_begin_capture(stream.handle(), abi::capture_mode(mode)) }
    }

    /// Ends the capture that began on the stream (`cuStreamEndCapture`).
    ///
    /// # Errors
    /// [`DriverError::STREAM_CAPTURE_INVALIDATED`] if another call has already ended the capture, and the
    /// driver's other errors.
    pub fn end_capture(self: &Arc<Self>, stream: StreamRef) -> DriverResult<Graph> {
        let _context = self.enter()?;
        let mut handle = 0;
        // SAFETY: the stream is alive (`StreamRef`); `handle` takes the result.
        unsafe { self.functions().stream_end_capture(stream.handle(), &raw mut handle) }?;
        Ok(Graph { driver: Arc::clone(self), handle })
    }

    /// [`Driver::stream_capture_id`](millpond_core::Driver::stream_capture_id) for the handle of a living
    /// stream.
    pub(super) fn capture_id(&self, stream: u64) -> DriverResult<Option<u64>> {
        match self.capture_of(stream)? {
            CaptureOf::None => Ok(None),
            CaptureOf::Active(id) => Ok(Some(id)),
            CaptureOf::Invalid => {
                let why = "a call that cannot be captured invalidated the stream's capture; end the capture, \
                           and capture again without that call";
                let code = DriverError::STREAM_CAPTURE_INVALIDATED;
                Err(DriverError::new(code, "cuStreamGetCaptureInfo").with_detail(why))
            }
        }
    }

    fn capture_of(&self, stream: u64) -> DriverResult<CaptureOf> {
        let _context = self.enter()?;
        let (mut status, mut id) = (0, 0);
        let none = ptr::null_mut();
        // SAFETY: the stream is alive; `status` and `id` take the results, and the others may be null.
        unsafe {
            self.functions().stream_get_capture_info(
                stream,
                &raw mut status,
                &raw mut id,
                none,
                none.cast(),
                none,
            )
        }?;
        Ok(match status {
            0 => CaptureOf::None,
            1 => CaptureOf::Active(id),
            _ => CaptureOf::Invalid,
        })
    }

    /// The living stream with this handle, if it captures. `cuStreamGetId` cannot name it: CUDA refuses the
    /// call and ends the capture. So a stream that millpond did not make is identified by its handle and its
    /// capture. If the capture is invalid, the identity is one that no other call returns.
    ///
    /// # Safety
    /// As for [`StreamRef::foreign`].
    pub(super) unsafe fn capturing_stream(&self, handle: u64) -> DriverResult<Option<StreamRef>> {
        static INVALID: AtomicU64 = AtomicU64::new(0);
        let capture = match self.capture_of(handle) {
            Ok(CaptureOf::None) => return Ok(None),
            Ok(CaptureOf::Active(id)) => id,
            // CUDA numbers captures from 1.
            Ok(CaptureOf::Invalid) => u64::MAX - INVALID.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.is_unsupported() => return Ok(None),
            Err(error) => return Err(error),
        };
        let own = self.streams.id(handle).map(StreamId::get);
        // SAFETY: if the stream was not made here, the caller vouches for it.
        Ok(Some(unsafe { self.named(handle, own.unwrap_or_else(|| id_in_capture(handle, capture))) }))
    }

    /// Whether the stream captures, or is the legacy default stream while a blocking stream captures.
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
    /// Another thread may begin a capture meanwhile. The record may then belong to that capture, which
    /// nothing can detect, so the event counts as captured.
    pub(super) fn record_outside_captures(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        if self.is_captured(stream.handle())? {
            return Ok(false);
        }
        self.record_on_living(event, stream)?;
        if self.is_captured(stream.handle())? {
            return Err(DriverError::new(DriverError::CAPTURED_EVENT, "cuEventRecord")
                .with_detail("another thread began a capture on the stream during this call"));
        }
        Ok(true)
    }

    /// Whether any stream captures, as far as queries can tell. They reach the living streams that this
    /// driver made and, through the legacy default stream, all blocking ones.
    pub(super) fn sees_captures(&self) -> DriverResult<bool> {
        if self.is_captured(StreamRef::LEGACY.handle())? {
            return Ok(true);
        }
        for stream in self.streams.all() {
            // While the stream is kept, `stream_destroy` waits.
            let kept = self.streams.keep(stream);
            if kept.is_some() && self.is_captured(stream.handle())? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A captured graph. Dropping this value destroys the graph.
///
/// Tests, tools and examples use this type to launch the graphs that they have captured.
pub struct Graph {
    driver: Arc<CudaDriver>,
    handle: u64,
}

impl Graph {
    /// Returns the raw handle of the graph (`CUgraph` as a number).
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns two numbers. The first is the number of nodes of the graph (`cuGraphGetNodes`). The second is
    /// the number of nodes that allocate or free memory in stream order (`cuGraphNodeGetType`).
    ///
    /// # Errors
    /// The driver's errors.
    pub fn node_counts(&self) -> DriverResult<(usize, usize)> {
        let _context = self.driver.enter()?;
        let functions = self.driver.functions();
        let mut count = 0;
        // SAFETY: the graph is alive; `count` takes the result.
        unsafe { functions.graph_get_nodes(self.handle, ptr::null_mut(), &raw mut count) }?;
        let mut nodes = vec![0; count as usize];
        if count > 0 {
            // SAFETY: as above, and there is room for `count` nodes.
            unsafe { functions.graph_get_nodes(self.handle, nodes.as_mut_ptr(), &raw mut count) }?;
        }
        let mut of_memory = 0;
        for node in &nodes {
            let mut kind = 0;
            // SAFETY: the node belongs to the living graph; `kind` takes the result.
            unsafe { functions.graph_node_get_type(*node, &raw mut kind) }?;
            of_memory += usize::from(abi::GRAPH_NODES_OF_MEMORY.contains(&kind));
        }
        Ok((nodes.len(), of_memory))
    }

    /// Creates an executable graph from this graph (`cuGraphInstantiateWithFlags`, since CUDA 11.4).
    ///
    /// # Errors
    /// The driver's errors.
    pub fn instantiate(&self) -> DriverResult<GraphExec> {
        let _context = self.driver.enter()?;
        let mut handle = 0;
        // SAFETY: the graph is alive; `handle` takes the result.
        unsafe { self.driver.functions().graph_instantiate(&raw mut handle, self.handle, 0) }?;
        Ok(GraphExec { driver: Arc::clone(&self.driver), handle })
    }
}

/// An executable graph. Dropping this value destroys the executable graph. A running launch still completes.
pub struct GraphExec {
    driver: Arc<CudaDriver>,
    handle: u64,
}

impl GraphExec {
    /// Submits the work of the graph to the stream (`cuGraphLaunch`).
    ///
    /// # Errors
    /// The driver's errors.
    ///
    /// # Safety
    /// The memory that the graph uses still exists. The work of the graph is ordered against all earlier and
    /// later uses of this memory.
    pub unsafe fn launch(&self, stream: StreamRef) -> DriverResult<()> {
        self.driver.check_alive(stream)?;
        let _context = self.driver.enter()?;
        // SAFETY: the graph and the stream are alive; the caller vouches for the memory.
        unsafe { self.driver.functions().graph_launch(self.handle, stream.handle()) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let destroy = || -> DriverResult<()> {
            let _context = self.driver.enter()?;
            // SAFETY: this value owns the executable graph.
            unsafe { self.driver.functions().graph_exec_destroy(self.handle) }
        };
        if let Err(error) = destroy() {
            tracing::debug!(target: "millpond::driver", %error, "cannot destroy an executable graph");
        }
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handle = format_args!("{:#x}", self.handle);
        f.debug_struct("GraphExec").field("handle", &handle).finish_non_exhaustive()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: this value owns the graph.
        if let Err(error) = unsafe { self.driver.functions().graph_destroy(self.handle) } {
            tracing::debug!(target: "millpond::driver", %error, "cannot destroy a graph");
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("handle", &format_args!("{:#x}", self.handle)).finish_non_exhaustive()
    }
}

/// Identifies a stream in a capture. Bits 60 and 61 distinguish the number from CUDA's own, which are small,
/// and from [`CudaDriver::identify`]'s.
fn id_in_capture(handle: u64, capture: u64) -> u64 {
    const HIGH: u64 = 3 << 60;
    // The factor of Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
    HIGH | (capture.rotate_left(40) ^ handle).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_stream_in_a_capture_is_neither_cudas_nor_another_streams() {
        let of_streams = [0x54 << 40, 0x55 << 40, 0x55 << 40 | 1].map(|handle| id_in_capture(handle, 1));
        let of_captures = [2, 3, u64::MAX].map(|capture| id_in_capture(0x55 << 40, capture));
        let mut ids = [of_streams, of_captures].concat();
        assert!(ids.iter().all(|id| id >> 60 == 3), "{ids:x?}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 6);
    }
}
