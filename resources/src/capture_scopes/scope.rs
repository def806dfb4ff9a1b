//! A scope as its owner sees it.

use std::fmt;
use std::sync::Arc;

use millpond_core::{
    BlockInfo, DeviceMemoryResource, Error, ErrorKind, Result, ScopeMemory, StreamId, StreamRef, find_trait,
};
use parking_lot::Mutex;

use super::memory::Memory;

/// Memory that belongs to captured graphs. Blocks that a stream allocates while it is open in the scope stay
/// with the scope until it is dropped, even if they are freed.
///
/// # Which requests it serves
/// The scope serves streams that [`begin`](Self::begin) opened, and streams that were forked into the capture
/// of such a stream (if the driver numbers captures: CUDA 11.3). All other requests bypass it. Its memory
/// comes from below its layer, in large spans that are allocated outside of the capture. So the graph gets no
/// nodes for allocations, waits, or records.
///
/// # Reuse
/// If a block is allocated and freed in one capture, later requests of the same stream in that capture reuse
/// it. Once no stream is open in the scope, all such blocks are free for its next capture. So several graphs
/// may share a scope, and need no more memory than the largest of them.
///
/// If a capture frees a block that it did not allocate, work outside of the capture may still use the block:
/// it was allocated before the capture, or left an earlier one. Other requests get the block only when that
/// work is done. When the scope closes for a stream, it records an event there; a later allocation checks
/// whether the device has reached the event. The scope cannot record on streams from elsewhere, which were
/// not opened in it. For these it waits for the whole device before it reports that memory is out. Without
/// numbers of captures (before CUDA 11.3), this applies to all blocks.
///
/// # Duties of the program
///
/// - A capture may free a block that work outside of captures uses. That work must be on a stream that is
///   open in the scope, on the stream that allocated the block, or before one of these or the stream of the
///   free in stream order. A captured order does not count, because it holds for the graph alone.
/// - If a capture allocates a block, use it outside of that capture only after the capture has ended.
/// - The graphs of a scope must never run at once, on whichever streams they are launched. Work that an open
///   stream does outside of a capture with blocks of the scope counts as a graph.
/// - A block may leave the capture: it is still live when the capture ends, like the output of a graph. It
///   keeps its contents until its own graph, or one captured *before* it in the scope, is launched: such a
///   graph may use the same memory while it runs. Graphs that are launched in the order of their captures
///   find the outputs of earlier ones.
///
/// [`ScopedStream::end`] returns the blocks that left. Free such a block like any other, on any stream. It
/// returns to its scope, and a later capture of the scope gets it once the work before its free is done. If a
/// block is freed on a stream that captures outside the scope, it stays with that graph: it is withheld until
/// the scope ends.
///
/// # The end of a scope
/// Clones share a scope, and open streams hold it: it ends with the last of them. The end waits for all work
/// of the device, so that earlier launches are done, and then gives the memory back. Blocks that are still
/// live stay valid; their spans go back when they are freed. Do not launch a graph after its scope has ended.
/// A scope may outlive the resource that it came from, and also holds the resource's memory.
///
/// ```
/// use millpond_core::driver::{CaptureMode, StreamFlags};
/// use millpond_core::{DeviceMemoryResourceExt, Driver};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CaptureScope, CaptureScopesLayer, CudaMemoryResource, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stack = CudaMemoryResource::new(device.clone())
///     .layer(PoolLayer::new())?
///     .layer(CaptureScopesLayer::new())?
///     .into_any();
/// let stream = device.stream_create(StreamFlags::NON_BLOCKING)?;
///
/// let scope = CaptureScope::of(&stack)?;
/// let opened = scope.begin(stream)?;
/// device.begin_capture(stream, CaptureMode::Global)?;
/// let scratch = stack.allocate_bytes(1 << 20, stream)?;
/// let output = stack.allocate_bytes(1000, stream)?;
/// // … work on both …
/// # // SAFETY: the block came from this stack with this size, and its uses come before.
/// unsafe { stack.deallocate_bytes(scratch, 1 << 20, stream) };
/// device.end_capture(stream)?;
/// let left = opened.end();
/// assert_eq!((left.len(), left[0].address), (1, output.address()));
/// assert_eq!(stack.block_at(output).and_then(|block| block.scope), Some(scope.id()));
///
/// // … launches of the graph …
/// # // SAFETY: as above.
/// unsafe { stack.deallocate_bytes(output, 1000, stream) };
/// drop(scope);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CaptureScope(Arc<Owner>);

impl CaptureScope {
    /// Makes a new scope in the outermost layer `capture_scopes` of a stack. It holds no memory yet.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the stack has no such layer.
    pub fn of(resource: &dyn DeviceMemoryResource) -> Result<Self> {
        let layer = find_trait::<dyn CaptureScopes>(resource).ok_or_else(|| {
            let why = "no layer of the stack makes scopes; add +capture_scopes";
            let error = Error::new(ErrorKind::Unsupported, why);
            error.on_device(resource.driver().device()).in_stack(resource)
        })?;
        Ok(layer.new_scope())
    }

    pub(super) fn new(host: Arc<dyn Host>, scope: Arc<Scope>) -> Self {
        Self(Arc::new(Owner { host, scope }))
    }

    /// Returns the scope's number, from 1. No other scope of the process has it.
    pub fn id(&self) -> u64 {
        self.0.scope.id
    }

    /// Opens the scope for a stream: from now on, the scope serves the stream's requests on any thread. Call
    /// it before or after the capture begins. End it after the capture has ended.
    ///
    /// A scope may be open for several streams, of one capture or of simultaneous captures. Simultaneous
    /// captures do not share freed blocks. The stream must stay alive until the returned value is dropped.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the stream is already open in a scope of this
    /// layer, and [`Poisoned`](ErrorKind::Poisoned) if the device is lost.
    pub fn begin(&self, stream: StreamRef) -> Result<ScopedStream> {
        let since = self.0.host.open(&self.0.scope, stream)?;
        Ok(ScopedStream { owner: Arc::clone(&self.0), stream: stream.id(), since })
    }

    /// Returns the live blocks of the scope, in the order of their allocation.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.0.scope.memory.lock().blocks(self.id(), 0)
    }

    /// Returns the present memory of the scope.
    pub fn memory(&self) -> ScopeMemory {
        self.0.scope.memory.lock().report(self.id())
    }
}

impl fmt::Debug for CaptureScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureScope").field("memory", &self.memory()).finish_non_exhaustive()
    }
}

/// A stream that is open in a [`CaptureScope`], until this value is [ended](Self::end) or dropped, on any
/// thread.
#[must_use = "the stream's requests are served from the scope only while this lives"]
pub struct ScopedStream {
    owner: Arc<Owner>,
    stream: StreamId,
    /// The scope's number of allocations before this value.
    since: u64,
}

impl ScopedStream {
    /// Closes the scope for the stream. Returns the blocks that the scope handed out meanwhile and that are
    /// still live: they leave the capture.
    pub fn end(self) -> Vec<BlockInfo> {
        let scope = &self.owner.scope;
        scope.memory.lock().blocks(scope.id, self.since)
    }

    /// Returns the number of the scope.
    pub fn scope(&self) -> u64 {
        self.owner.scope.id
    }
}

impl Drop for ScopedStream {
    fn drop(&mut self) {
        self.owner.host.close(&self.owner.scope, self.stream);
    }
}

impl fmt::Debug for ScopedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, stream, since } = self;
        let mut debug = f.debug_struct("ScopedStream");
        debug.field("scope", &owner.scope.id).field("stream", stream).field("since", since);
        debug.finish()
    }
}

/// A layer that makes scopes; [`CaptureScope::of`] finds it.
pub trait CaptureScopes {
    /// Makes a new scope, which holds no memory yet.
    fn new_scope(&self) -> CaptureScope;

    /// Returns the memory of the scopes that have some, or may still get some, in the order of their ids.
    fn scopes(&self) -> Vec<ScopeMemory>;

    /// Returns the number of streams that are open in a scope.
    fn open_streams(&self) -> usize;
}

/// A scope: its memory, under its lock. Nothing calls upstream or the driver under that lock.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) id: u64,
    pub(super) memory: Mutex<Memory>,
}

impl Scope {
    pub(super) fn new(id: u64) -> Self {
        Self { id, memory: Mutex::new(Memory::new()) }
    }
}

/// The layer behind a scope.
pub(super) trait Host: Send + Sync {
    /// Starts to serve a stream from the scope. Returns the number of earlier allocations.
    fn open(&self, scope: &Arc<Scope>, stream: StreamRef) -> Result<u64>;
    /// Stops serving a stream from the scope.
    fn close(&self, scope: &Scope, stream: StreamId);
    /// Ends a scope whose last owner is gone.
    fn end(&self, scope: &Arc<Scope>);
}

/// Shared by the clones of a scope and its open streams.
struct Owner {
    host: Arc<dyn Host>,
    scope: Arc<Scope>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.host.end(&self.scope);
    }
}
