//! A scope as its owner has it.

use std::fmt;
use std::sync::Arc;

use millpond_core::{
    BlockInfo, DeviceMemoryResource, Error, ErrorKind, Result, ScopeMemory, StreamId, StreamRef, find_trait,
};
use parking_lot::Mutex;

use super::memory::Memory;

/// Memory that belongs to captured graphs: what a stream allocates while it is open in the scope stays with
/// the scope until that is dropped, whether it is freed or not.
///
/// # Which requests it serves
/// Those of streams that [`begin`](Self::begin) opened, and of streams that were forked into the capture of
/// such a stream (where the driver numbers captures: CUDA 11.3). All others go past it. Its memory comes from
/// below its layer, in large spans that are taken outside of the capture: no allocation becomes a node of the
/// graph, and no wait or record either.
///
/// # What is reused
/// A block that is allocated and freed in one capture is reused by later requests of the same stream of the
/// capture. Once the scope is open on no stream, all that was freed in this way is free for its next capture.
/// So several graphs may share a scope, and need no more memory than the largest of them.
///
/// A block that the capture frees and did not allocate may be in use by work outside of the capture: the
/// block was allocated before the capture, or left an earlier one. Others get the block only when that work
/// is done. When the scope is closed for a stream, it records an event there; an allocation finds out whether
/// the device has reached the event. Streams that cannot be recorded (they were not opened, and came from
/// elsewhere) are waited for with the whole device, before memory is out. Without numbers of captures (before
/// CUDA 11.3) all blocks count as such.
///
/// The program has these duties:
///
/// - work outside of captures that uses a block which a capture frees is on a stream that is open in the
///   scope, on the stream that allocated the block, or before one of these or the stream of the free in
///   stream order; an order that was captured does not count, as it holds for the graph alone;
/// - a block that a capture allocates is used outside of that capture only after the capture has ended;
/// - they never run at once, on whichever streams they are launched; what a stream that is open does outside
///   of a capture with blocks of the scope counts as a graph;
/// - a block that leaves the capture (it is still handed out when the capture ends, as the output of a graph)
///   keeps its contents until a graph is launched that was captured *before* it in the scope, or itself: such
///   a graph may use the same memory while it runs. Graphs that are launched in the order of their captures
///   find what earlier ones left.
///
/// [`ScopedStream::end`] says which blocks left. Such a block is freed as any other, on any stream; it goes
/// back to its scope, and a later capture of the scope gets it once the work before its free is done. A block
/// that is freed on a stream that captures for another scope, or for none, stays with that graph: it is
/// withheld until the scope ends.
///
/// # Its end
/// Clones share a scope, and streams that are open hold it: it ends with the last of them. Its end waits for
/// all work of the device, so that launches up to then are done, and gives the memory back. Blocks that are
/// still handed out stay valid, with their span; they go back when they are freed. A graph of the scope must
/// not be launched after its end, nor after that of the resource, whose memory a scope holds as well: a scope
/// may outlive the resource that it came from.
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
///     .layer(CaptureScopesLayer)?
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
    /// A new scope of the outermost layer `capture_scopes` in a stack. It holds no memory yet.
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

    /// The scope's number, from 1; no other scope of the process has it.
    pub fn id(&self) -> u64 {
        self.0.scope.id
    }

    /// Opens the scope for a stream: from now on its requests, on any thread, are served from the scope. Call
    /// it before or after the capture begins, and end it after the capture has ended.
    ///
    /// A scope may be open for several streams: of one capture, or of captures at the same time, which share
    /// nothing that is freed meanwhile. The stream must be alive until the returned value is dropped.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the stream is open in a scope of this layer, and
    /// [`Poisoned`](ErrorKind::Poisoned) if the device is lost.
    pub fn begin(&self, stream: StreamRef) -> Result<ScopedStream> {
        let since = self.0.host.open(&self.0.scope, stream)?;
        Ok(ScopedStream { owner: Arc::clone(&self.0), stream: stream.id(), since })
    }

    /// The blocks of the scope that are handed out, in the order of their allocation.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.0.scope.memory.lock().blocks(self.id(), 0)
    }

    /// The memory of the scope now.
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
    /// The allocations of the scope before.
    since: u64,
}

impl ScopedStream {
    /// Closes the scope for the stream, and returns the blocks that the scope handed out meanwhile and that
    /// are still handed out: they leave the capture.
    pub fn end(self) -> Vec<BlockInfo> {
        let scope = &self.owner.scope;
        scope.memory.lock().blocks(scope.id, self.since)
    }

    /// The number of the scope.
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
    /// A new scope, which holds no memory yet.
    fn new_scope(&self) -> CaptureScope;

    /// The memory of the scopes that have some or may still get some, in the order of their ids.
    fn scopes(&self) -> Vec<ScopeMemory>;

    /// The number of streams that are open in a scope.
    fn open_streams(&self) -> usize;
}

/// A scope's memory, under its lock. Neither upstream nor the driver is called under it.
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
    /// Serves a stream from the scope; returns the number of allocations before.
    fn open(&self, scope: &Arc<Scope>, stream: StreamRef) -> Result<u64>;
    /// Stops that.
    fn close(&self, scope: &Scope, stream: StreamId);
    /// Ends a scope that has no owner any more.
    fn end(&self, scope: &Arc<Scope>);
}

/// The clones of a scope and its open streams share it.
struct Owner {
    host: Arc<dyn Host>,
    scope: Arc<Scope>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.host.end(&self.scope);
    }
}
