//! A scope as its owner sees it.

use std::fmt;
use std::sync::Arc;

use millpond_core::{
    BlockInfo, DeviceMemoryResource, Error, ErrorKind, Result, ScopeMemory, StreamId, StreamRef, find_trait,
};
use parking_lot::Mutex;

use super::memory::Memory;

/// Memory that belongs to captured graphs. While a stream is open in the scope, the scope serves the stream's
/// allocations. The blocks stay with the scope until the scope is dropped, even after they are freed.
///
/// # Which requests it serves
/// The scope serves two kinds of streams: streams that [`begin`](Self::begin) opened, and streams that were
/// forked into the capture of an open stream. The second kind needs CUDA 11.3, because older drivers do not
/// number captures. Requests of all other streams bypass the scope.
///
/// The scope allocates its memory in large spans from the resource below its layer, outside of the capture.
/// So the graph gets no nodes for allocations, waits, or records.
///
/// # Reuse
/// If a capture allocates and frees a block, later requests of the same stream in that capture reuse the
/// block. Once no stream is open in the scope, all such blocks are free for the scope's next capture. So
/// several graphs may share a scope, and together need no more memory than the largest of them.
///
/// A capture may also free a block that it did not allocate. Such a block was allocated before the capture,
/// or an earlier capture left it live. Work outside of the capture may still use the block, so other requests
/// get it only after that work is done. When the scope closes for a stream, it records an event on the
/// stream. A later allocation checks whether the device has reached the event.
///
/// If a stream was made by another library and was not opened in the scope, the scope cannot record an event
/// on it. The scope then waits for the whole device before it reports that memory is out. Before CUDA 11.3,
/// this applies to all blocks, because captures have no numbers.
///
/// # Duties of the program
///
/// - A capture may free a block that work outside of captures uses. The program must order that work in one
///   of two ways. Either the work runs on a stream that is open in the scope, or on the stream that allocated
///   the block. Or it happens before later work of one of these streams or of the stream of the free. A
///   captured order does not count, because it holds for the graph alone.
/// - If a capture allocates a block, use the block outside of that capture only after the capture has ended.
/// - The graphs of a scope must never run at the same time, on whichever streams they are launched. If an
///   open stream uses blocks of the scope outside of a capture, that work counts as a graph.
/// - A block leaves the capture if it is still live when the capture ends, like the output of a graph. A
///   launch of its own graph may overwrite such a block. A launch of a graph that was captured *before* it in
///   the scope may overwrite it, too. If graphs are launched in the order of their captures, each graph finds
///   the outputs of the earlier ones.
///
/// [`ScopedStream::end`] returns the blocks that left the capture. Free such a block like any other, on any
/// stream. The block returns to its scope. After the work before its free is done, a later capture of the
/// scope may reuse it. If a block is freed on a stream that captures outside the scope, the block belongs to
/// the graph of that capture. No request gets this block before the scope ends.
///
/// # The end of a scope
/// Clones share a scope. The scope ends when the last clone is dropped and no stream is open in it. The scope
/// then waits for all work on the device, so that earlier launches are done, and returns its memory to the
/// resource below. Blocks that are still live stay valid. The scope returns their spans when the blocks are
/// freed. Do not launch a graph after its scope has ended. A scope may outlive the resource that made it. It
/// then also keeps that resource's memory.
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
    /// Makes a new scope in the outermost layer `capture_scopes` of a stack. The scope holds no memory yet.
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

    /// Returns the scope's number, counted from 1. It is unique in the process.
    pub fn id(&self) -> u64 {
        self.0.scope.id
    }

    /// Opens the scope for a stream. From now on, the scope serves the stream's requests on any thread. Call
    /// this before or after the capture begins. Close the scope for the stream after the capture has ended,
    /// with [`ScopedStream::end`].
    ///
    /// A scope may be open for several streams, in one capture or in simultaneous captures. Simultaneous
    /// captures do not share freed blocks. The stream must stay alive until the returned value is dropped.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the stream is already open in a scope of this
    /// layer, and [`Poisoned`](ErrorKind::Poisoned) if the device is lost.
    pub fn begin(&self, stream: StreamRef) -> Result<ScopedStream> {
        let since = self.0.host.open(&self.0.scope, stream)?;
        Ok(ScopedStream { owner: Arc::clone(&self.0), stream: stream.id(), since })
    }

    /// Returns the live blocks of the scope, in the order in which they were allocated.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.0.scope.memory.lock().blocks(self.id(), 0)
    }

    /// Returns the memory that the scope holds now.
    pub fn memory(&self) -> ScopeMemory {
        self.0.scope.memory.lock().report(self.id())
    }
}

impl fmt::Debug for CaptureScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureScope").field("memory", &self.memory()).finish_non_exhaustive()
    }
}

/// A stream that is open in a [`CaptureScope`]. Any thread may [end](Self::end) or drop this value. The scope
/// then closes for the stream.
#[must_use = "the stream's requests are served from the scope only while this lives"]
pub struct ScopedStream {
    owner: Arc<Owner>,
    stream: StreamId,
    /// The scope's number of allocations before this value.
    since: u64,
}

impl ScopedStream {
    /// Closes the scope for the stream. Returns the blocks that leave the capture: the scope allocated them
    /// while the stream was open, and they are still live.
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

/// A layer that makes scopes. [`CaptureScope::of`] finds the layer in a stack.
pub trait CaptureScopes {
    /// Makes a new scope, which holds no memory yet.
    fn new_scope(&self) -> CaptureScope;

    /// Returns the memory of each scope that holds memory or may still get some, in the order of their ids.
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
