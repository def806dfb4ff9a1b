//! A scope as its owner sees it.

use std::fmt;
use std::sync::Arc;

use millpond_core::{
    BlockInfo, DeviceMemoryResource, Error, ErrorKind, Result, ScopeMemory, StreamId, StreamRef, find_trait,
};
use parking_lot::Mutex;

use super::memory::Memory;

/// Keeps memory for captured graphs. While a stream is open in the scope, the scope serves the stream's
/// allocations. The blocks belong to the scope until the scope is dropped, even after they are freed.
///
/// # Which requests the scope serves
/// The scope serves requests on two kinds of streams: streams that were opened with [`begin`](Self::begin),
/// and streams that joined the capture of an open stream. The second kind needs CUDA 11.3, because older
/// drivers do not number captures. Requests on all other streams bypass the scope.
///
/// The scope allocates its memory in large spans from the resource below its layer, outside of the capture.
/// So the graph gets no nodes for allocations, waits, or records of events.
///
/// # Reuse
/// If a capture allocates and frees a block, later requests on the same stream in that capture reuse the
/// block. When no stream is open in the scope any more, all such blocks are free for the scope's next
/// capture. So several graphs can share a scope. Together they need no more memory than the largest of these
/// graphs.
///
/// A capture may also free a block that it did not allocate. Such a block was allocated before the capture,
/// or an earlier capture left the block live. Work outside of the capture may still use the block, so other
/// requests get the block only after that work is done. When the scope closes for a stream, the scope records
/// an event on the stream. A later allocation checks whether the device has reached the event.
///
/// If a stream was made by another library and was not opened in the scope, the scope cannot record an event
/// on the stream. In this case, the scope waits for the whole device before it reports that memory is out.
/// Before CUDA 11.3, the scope does this for all blocks, because captures have no numbers.
///
/// # Duties of the program
///
/// - If a capture frees a block that work outside of captures also uses, order this outside work in one of
///   two ways. One way is to run the work on a stream that is open in the scope, or on the stream that
///   allocated the block. The other way is to make one of these streams, or the stream of the free, wait for
///   the outside work. A wait inside a graph is not enough, because it holds only for the graph.
/// - If a capture allocates a block, use the block outside of that capture only after the capture has ended.
/// - Never run two graphs of a scope at the same time, even on different streams. If an open stream uses
///   blocks of the scope outside of a capture, that work counts as a graph.
/// - If a block is still live when its capture ends, the block leaves the capture, like the output of a
///   graph. A launch of the same graph may overwrite this block. A launch of a graph that was captured
///   *earlier* in the scope may also overwrite it. If you launch the graphs in the order of their captures,
///   each graph finds the outputs of the earlier graphs.
///
/// [`ScopedStream::end`] returns the blocks that left the capture. Free such a block like any other block, on
/// any stream. The block then returns to its scope. After the work before the free is done, a later capture
/// of the scope may reuse the block. If you free the block on a stream that captures outside the scope, the
/// block belongs to the graph of that capture. No request gets this block before the scope ends.
///
/// # The end of a scope
/// Clones share a scope. The scope ends when the last clone is dropped and no stream is open in the scope.
/// Then the scope waits for all work on the device, so that earlier launches are done, and returns its memory
/// to the resource below. Blocks that are still live stay valid. The scope returns the spans of these blocks
/// when the blocks are freed.
///
/// Do not launch a graph after its scope has ended. A scope may outlive the resource that created it. Such a
/// scope also keeps the memory of that resource.
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
    /// Creates a scope in the outermost layer `capture_scopes` of a stack. The new scope holds no memory.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the stack has no such layer.
    pub fn of(resource: &dyn DeviceMemoryResource) -> Result<Self> {
        let layer = find_trait::<dyn CaptureScopes>(resource).ok_or_else(|| {
            let why = "no layer of the stack creates capture scopes; add +capture_scopes";
            let error = Error::new(ErrorKind::Unsupported, why);
            error.on_device(resource.driver().device()).in_stack(resource)
        })?;
        Ok(layer.new_scope())
    }

    pub(super) fn new(host: Arc<dyn Host>, scope: Arc<Scope>) -> Self {
        Self(Arc::new(Owner { host, scope }))
    }

    /// Returns the number of the scope, counted from 1. No two scopes of a process have the same number.
    pub fn id(&self) -> u64 {
        self.0.scope.id
    }

    /// Opens the scope for a stream. From now on, the scope serves all requests on the stream, from any
    /// thread. Call this method before or after the capture begins. After the capture has ended, close the
    /// scope for the stream with [`ScopedStream::end`].
    ///
    /// A scope may be open for several streams, in one capture or in simultaneous captures. Simultaneous
    /// captures do not share freed blocks. The stream must stay alive until the returned value is dropped.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the stream is already open in a scope of the same
    /// layer, and [`Poisoned`](ErrorKind::Poisoned) if the device is lost.
    pub fn begin(&self, stream: StreamRef) -> Result<ScopedStream> {
        let since = self.0.host.open(&self.0.scope, stream)?;
        Ok(ScopedStream { owner: Arc::clone(&self.0), stream: stream.id(), since })
    }

    /// Returns the live blocks of the scope, in the order in which they were allocated.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.0.scope.memory.lock().blocks(self.id(), 0)
    }

    /// Returns a report of the memory that the scope holds now.
    pub fn memory(&self) -> ScopeMemory {
        self.0.scope.memory.lock().report(self.id())
    }
}

impl fmt::Debug for CaptureScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureScope").field("memory", &self.memory()).finish_non_exhaustive()
    }
}

/// A stream that is open in a [`CaptureScope`]. If any thread [ends](Self::end) or drops this value, the
/// scope closes for the stream.
#[must_use = "the stream's requests are served from the scope only while this lives"]
pub struct ScopedStream {
    owner: Arc<Owner>,
    stream: StreamId,
    /// The scope's number of allocations before this value.
    since: u64,
}

impl ScopedStream {
    /// Closes the scope for the stream. Returns the blocks that leave the capture: blocks that the scope
    /// allocated while the stream was open, and that are still live.
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

/// A layer that creates capture scopes. [`CaptureScope::of`] finds such a layer in a stack.
pub trait CaptureScopes {
    /// Creates a scope, which holds no memory yet.
    fn new_scope(&self) -> CaptureScope;

    /// Returns the memory of each scope that holds memory or may still allocate, in the order of the scopes'
    /// numbers.
    fn scopes(&self) -> Vec<ScopeMemory>;

    /// Returns the number of streams that are open in any scope of the layer.
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
