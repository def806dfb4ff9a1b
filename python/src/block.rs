//! Blocks of memory that buffers share.
//!
//! Each block belongs to one stream, and is freed in the order of this stream. A use on another stream first
//! waits for the work submitted so far to the block's stream. The block's stream then waits for the use. So
//! the uses run one after another, and the free comes last.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::api::{PerProcess, api, generation};
use crate::device::{DeviceHandle, StreamHandle};
use crate::error::{Failure, check};
use crate::gil;
use crate::handle::{Links, ResourceHandle};
use crate::oracle::{Mistake, makes};
use crate::tensor::{CUDA, CUDA_HOST, Foreign};

/// The handle of the calling thread's per-thread default stream.
const PER_THREAD: usize = 2;

/// The origin of a block's memory.
#[derive(Debug)]
pub(crate) enum Source {
    /// A resource, which gets the memory back when the block is freed.
    Resource(Arc<ResourceHandle>),
    /// Another library, through DLPack. `lender` is set if the tensor is an export of a block from this
    /// module. It is dropped before the tensor, whose export hides both uses from the collector.
    Foreign { lender: Option<Arc<Block>>, tensor: Foreign, device: Arc<DeviceHandle> },
}

/// Memory that one or more buffers and exports use.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
    /// Dropped together with the block, unless [`end`](Self::end) has moved it out.
    pub(crate) source: ManuallyDrop<Source>,
    /// The stream on which the block was allocated, and in whose order it is freed. It is dropped as `source`
    /// is.
    pub(crate) stream: ManuallyDrop<Arc<StreamHandle>>,
    /// The thread that owns the stream, if `stream` is a per-thread default stream.
    thread: Option<ThreadId>,
    /// Whether another library may use the memory on an unknown stream.
    is_at_large: AtomicBool,
    /// Set if the garbage collector has to know of the buffers that use the block. Each of them keeps the
    /// resource's Python object.
    seen: OnceLock<Arc<Seen>>,
    made_in: usize,
}

/// A count of the exports of a block, for the garbage collector. An export that ends uses it after the block.
#[derive(Debug)]
struct Seen {
    /// The number of exports, plus 1 after the block's end.
    hidden: AtomicUsize,
    resource: Arc<Links>,
}

impl Seen {
    fn hide(&self) {
        if self.hidden.fetch_add(1, Ordering::AcqRel) == 0 {
            self.resource.count_block(false);
        }
    }
}

/// An owner of a block that the collector does not see. Its use of the block must end before this value does.
/// If that is the last use, the block is freed while it is hidden, and stays hidden.
#[derive(Debug)]
pub(crate) struct Hidden(Option<Arc<Seen>>);

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Some(seen) = &self.0
            && seen.hidden.fetch_sub(1, Ordering::AcqRel) == 1
        {
            seen.resource.count_block(true);
        }
    }
}

/// Blocks that have no owner, but that unfinished work on unknown streams may still use.
struct Kept {
    blocks: Mutex<Vec<Block>>,
    count: AtomicUsize,
}

/// A forked child does not touch its parent's blocks.
static KEPT: PerProcess<Kept> =
    PerProcess([const { Kept { blocks: Mutex::new(Vec::new()), count: AtomicUsize::new(0) } }; 8]);

/// Frees the kept blocks whose devices can be waited for now.
fn give_back_kept() {
    let kept = KEPT.get();
    if kept.count.load(Ordering::Acquire) == 0 {
        return;
    }
    // This thread owns the blocks while it waits. A block that is still in use is kept again.
    let blocks = std::mem::take(&mut *kept.blocks.lock());
    kept.count.fetch_sub(blocks.len(), Ordering::AcqRel);
    drop(blocks);
}

/// The consumer of an export.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Consumer {
    /// Work on this stream. The stream may end before the export does, so its identity is kept.
    Stream { raw: usize, id: u64, thread: Option<ThreadId> },
    /// The consumer named no stream.
    Unknown,
}

/// Returns the calling thread if the stream handle means a different stream on each thread.
fn thread_of(stream: usize) -> Option<ThreadId> {
    (stream == PER_THREAD).then(|| thread::current().id())
}

/// Returns the stream behind a handle that `thread` stored. A per-thread default stream has the same handle
/// on every thread. On any other thread, this returns the legacy default stream, which waits for the streams
/// of all threads.
fn stream_here(stream: *mut c_void, thread: Option<ThreadId>) -> *mut c_void {
    match thread {
        Some(thread) if thread != thread::current().id() && !makes(Mistake::Thread) => null_mut(),
        _ => stream,
    }
}

/// Returns whether both handles mean the same stream on this thread. The handles 0 and 1 both mean the legacy
/// default stream.
fn is_same(stream: *mut c_void, other: *mut c_void) -> bool {
    stream.addr().max(1) == other.addr().max(1)
}

impl Block {
    pub(crate) fn new(
        resource: Arc<ResourceHandle>,
        bytes: u64,
        stream: Arc<StreamHandle>,
    ) -> Result<Arc<Self>, Failure> {
        stream.check_on(resource.device()?)?;
        give_back_kept();
        let mut ptr = std::ptr::null_mut();
        // An empty block takes no memory, as in RMM: adaptors count neither a request nor a free.
        if bytes > 0 {
            // SAFETY: the handle and the stream are live; the result may be written.
            check(unsafe { (api().allocate)(resource.raw, bytes, 0, stream.ptr(), &raw mut ptr) })?;
        }
        Ok(Self::of(ptr.addr(), bytes, Source::Resource(resource), stream))
    }

    /// Takes a block from the calling thread's cache. If the cache has no such block, returns the resource.
    /// With `if_default`, the resource must still be the default of the current device.
    ///
    /// The call never waits for the device, nor for a thread that waits for the GIL. So the caller may hold
    /// the GIL.
    pub(crate) fn new_cached(
        resource: Arc<ResourceHandle>,
        if_default: bool,
        bytes: u64,
        stream: &Arc<StreamHandle>,
    ) -> Result<Arc<Self>, Arc<ResourceHandle>> {
        let mut ptr = std::ptr::null_mut();
        let place = &raw mut ptr;
        // SAFETY: the handle is live; the result may be written.
        if unsafe { (api().allocate_cached)(resource.raw, if_default, bytes, stream.ptr(), place) } {
            Ok(Self::of(ptr.addr(), bytes, Source::Resource(resource), stream.clone()))
        } else {
            Err(resource)
        }
    }

    fn of(address: usize, bytes: u64, source: Source, stream: Arc<StreamHandle>) -> Arc<Self> {
        let (thread, is_at_large) = (thread_of(stream.raw), AtomicBool::new(false));
        let (source, stream) = (ManuallyDrop::new(source), ManuallyDrop::new(stream));
        let seen = OnceLock::new();
        Arc::new(Self { address, bytes, source, stream, thread, is_at_large, seen, made_in: generation() })
    }

    /// Makes a block over memory of another library.
    pub(crate) fn foreign(
        tensor: Foreign,
        bytes: u64,
        device: Arc<DeviceHandle>,
        lender: Option<Arc<Self>>,
        stream: Arc<StreamHandle>,
    ) -> Arc<Self> {
        Self::of(tensor.address(), bytes, Source::Foreign { lender, tensor, device }, stream)
    }

    pub(crate) fn device(&self) -> Result<&Arc<DeviceHandle>, Failure> {
        match &*self.source {
            Source::Resource(resource) => resource.device(),
            Source::Foreign { device, .. } => Ok(device),
        }
    }

    /// Returns whether the device and the host can access the memory at the block's address.
    pub(crate) fn accessibility(&self) -> Result<(bool, bool), Failure> {
        match &*self.source {
            Source::Resource(resource) => resource.accessibility(),
            Source::Foreign { tensor, .. } => Ok((true, tensor.device_type() != CUDA)),
        }
    }

    /// Returns whether this is pinned host memory.
    pub(crate) fn is_pinned(&self) -> Result<bool, Failure> {
        match &*self.source {
            Source::Resource(resource) => Ok(resource.text()?.starts_with("pinned_host")),
            Source::Foreign { tensor, .. } => Ok(tensor.device_type() == CUDA_HOST),
        }
    }

    /// Notes that every owner is now a buffer that keeps the resource's Python object. If the collector has
    /// to know of these buffers, returns the resource.
    pub(crate) fn show(&self) -> Option<Arc<ResourceHandle>> {
        let Source::Resource(resource) = &*self.source else { return None };
        if !resource.counts_blocks() {
            return None;
        }
        self.seen.get_or_init(|| {
            let resource = resource.links().clone();
            resource.count_block(true);
            Arc::new(Seen { hidden: AtomicUsize::new(0), resource })
        });
        Some(resource.clone())
    }

    /// Notes an owner that the collector does not see, such as an export.
    pub(crate) fn hide(&self) -> Hidden {
        let seen = self.seen.get().cloned();
        if let Some(seen) = &seen {
            seen.hide();
        }
        Hidden(seen)
    }

    /// Notes that the block ends, so that no Python object keeps it any more.
    fn end_seen(&mut self) {
        if let Some(seen) = self.seen.take() {
            seen.hide();
        }
    }

    /// Returns the block whose free counts. If this module's own memory came back through DLPack, that is the
    /// original block, because its order decides.
    fn root(&self) -> &Self {
        match &*self.source {
            Source::Foreign { lender: Some(lender), .. } => lender.root(),
            _ => self,
        }
    }

    /// Returns the stream on which the block is freed, under its handle on this thread.
    fn own_stream(&self) -> *mut c_void {
        stream_here(self.stream.ptr(), self.thread)
    }

    /// Submits work on `stream` that uses the block. The work first waits for the work submitted so far to
    /// the block's own stream. Then the block's own stream waits for the new work.
    pub(crate) fn on<T>(
        &self,
        stream: &StreamHandle,
        submit: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let root = self.root();
        stream.check_on(root.device()?)?;
        let own = root.own_stream();
        if root.address == 0 || is_same(own, stream.ptr()) {
            return submit();
        }
        let device = root.device()?;
        if !makes(Mistake::Before) {
            // SAFETY: the device's handle and both streams are live.
            check(unsafe { (api().stream_follow)(device.0, stream.ptr(), own) })?;
        }
        let submitted = submit();
        if makes(Mistake::After) {
            return submitted;
        }
        // A failed submission counts too: part of it may be running.
        // SAFETY: as above.
        let followed = check(unsafe { (api().stream_follow)(device.0, own, stream.ptr()) });
        if followed.is_err() {
            root.use_anywhere();
        }
        submitted.and_then(|done| followed.map(|()| done))
    }

    /// Makes a consumer's stream wait for the work submitted so far to the block's stream.
    pub(crate) fn lend(&self, consumer: usize) -> Result<Consumer, Failure> {
        let root = self.root();
        let (device, own, stream) = (root.device()?, root.own_stream(), without_provenance_mut(consumer));
        if root.address != 0 && !is_same(own, stream) {
            // SAFETY: the device's handle and both streams are live.
            check(unsafe { (api().stream_follow)(device.0, stream, own) })?;
        }
        let mut id = 0;
        // SAFETY: as above; the result may be written.
        check(unsafe { (api().stream_id)(device.0, stream, &raw mut id) })?;
        Ok(Consumer::Stream { raw: consumer, id, thread: thread_of(consumer) })
    }

    /// Makes the block's stream wait for the work that an export's consumer submitted.
    pub(crate) fn follow(&self, consumer: Consumer) {
        let root = self.root();
        if root.address == 0 || root.made_in != generation() || makes(Mistake::Export) {
            return;
        }
        let Consumer::Stream { raw, id, thread } = consumer else {
            if root.wait_for_device().is_err() {
                root.use_anywhere();
            }
            return;
        };
        let (own, other) = (root.own_stream(), stream_here(without_provenance_mut(raw), thread));
        if is_same(own, other) {
            // On a third thread, the legacy default stream stands for the streams of two threads. They do not
            // wait for each other.
            let are_two = root.thread.is_some() && thread.is_some() && root.thread != thread;
            if are_two && !makes(Mistake::Third) && root.wait_for_device().is_err() {
                root.use_anywhere();
            }
            return;
        }
        let followed = root.device().and_then(|device| {
            // SAFETY: the device's handle and the block's stream are live; the library checks whether the
            // other stream is.
            check(unsafe { (api().stream_follow_if_alive)(device.0, own, other, id) })
        });
        if followed.is_err() {
            root.use_anywhere();
        }
    }

    /// Notes that unknown streams may use the memory. The block's end then waits for the device.
    pub(crate) fn use_anywhere(&self) {
        self.root().is_at_large.store(true, Ordering::Relaxed);
    }

    /// Returns the handle of the stream that follows all uses, as other libraries name it.
    pub(crate) fn ordered_stream(&self) -> usize {
        self.root().own_stream().addr().max(1)
    }

    /// Waits on the host until the work that uses the block is done. Fails while the stream captures.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        let root = self.root();
        // SAFETY: the device's handle and the stream are live.
        check(unsafe { (api().stream_synchronize)(root.device()?.0, root.own_stream()) })
    }

    /// Waits on the host for the work that uses the block, except captured work, which has not run yet. Ends
    /// no capture.
    fn wait_beside_captures(&self) -> Result<(), Failure> {
        let root = self.root();
        // SAFETY: the device's handle and the stream are live.
        check(unsafe { (api().stream_synchronize_beside_captures)(root.device()?.0, root.own_stream()) })
    }

    pub(crate) fn wait_for_device(&self) -> Result<(), Failure> {
        // SAFETY: the device's handle is live.
        check(unsafe { (api().device_wait)(self.device()?.0) })
    }

    /// Waits for work on unknown streams. Returns whether the block may be used again.
    fn is_over(&self) -> bool {
        if !self.is_at_large.load(Ordering::Relaxed) || makes(Mistake::Unknown) {
            return true;
        }
        // A lost device runs no more work.
        !makes(Mistake::Wait) && self.wait_for_device().map_or_else(|failure| failure.is_lost(), |()| true)
    }

    /// Frees the memory. If work on unknown streams may still use it, returns `false`. The call needs no GIL.
    /// A forked child does not free its parent's memory.
    fn release(&self) -> bool {
        if self.made_in != generation() || self.address == 0 {
            return true;
        }
        match &*self.source {
            Source::Resource(resource) => {
                if !self.is_over() {
                    return false;
                }
                let ptr = without_provenance_mut(self.address);
                // SAFETY: the block is from this resource, with these bytes. It is freed once, after all its
                // uses, and its stream outlives it. The resource counts a refusal.
                unsafe { (api().deallocate)(resource.raw, ptr, self.bytes, 0, self.own_stream()) };
            }
            // Another library does not know the streams of this module.
            Source::Foreign { lender: None, .. } => {
                if !self.is_over() {
                    return false;
                }
                // A lost device runs no more work.
                let is_done =
                    || self.wait_beside_captures().map_or_else(|failure| failure.is_lost(), |()| true);
                if !makes(Mistake::Foreign) && !is_done() {
                    return false;
                }
            }
            Source::Foreign { .. } => {}
        }
        true
    }

    /// Keeps the block for a later call, because the device cannot be waited for now: for instance, a stream
    /// is capturing a graph.
    ///
    /// # Safety
    /// The block is not used any more, not even by its drop.
    #[cold]
    unsafe fn keep(&mut self) {
        // SAFETY: the caller's promise.
        let (source, stream) =
            unsafe { (std::ptr::read(&raw const self.source), std::ptr::read(&raw const self.stream)) };
        let Self { address, bytes, thread, made_in, .. } = *self;
        let (is_at_large, seen) = (AtomicBool::new(true), OnceLock::new());
        let kept = Self { address, bytes, source, stream, thread, is_at_large, seen, made_in };
        let all = KEPT.get();
        all.blocks.lock().push(kept);
        all.count.fetch_add(1, Ordering::Release);
    }
}

impl Block {
    /// Ends a block that has no other owner. The caller holds the GIL. Before any wait, the call releases the
    /// GIL.
    pub(crate) fn end(self, py: Python<'_>) {
        let may_be_kept =
            self.address != 0 && self.made_in == generation() && !self.is_at_large.load(Ordering::Relaxed);
        let is_back = match &*self.source {
            Source::Resource(resource) if may_be_kept => {
                let ptr = without_provenance_mut(self.address);
                // SAFETY: as in `release`; if the cache refuses the block, `release` follows.
                unsafe { (api().deallocate_cached)(resource.raw, ptr, self.bytes, self.own_stream()) }
            }
            _ => false,
        };
        if !is_back {
            return py.detach(|| drop(self));
        }
        let mut this = ManuallyDrop::new(self);
        // The drop would do this, but it does not run.
        this.end_seen();
        // SAFETY: each is taken once, and the block is not dropped.
        let (source, stream) =
            unsafe { (ManuallyDrop::take(&mut this.source), ManuallyDrop::take(&mut this.stream)) };
        // The last user of a resource or a stream ends it, and this may take long.
        if let Source::Resource(resource) = source
            && let Some(last) = Arc::into_inner(resource)
        {
            py.detach(|| drop(last));
        }
        if let Some(last) = Arc::into_inner(stream) {
            py.detach(|| drop(last));
        }
    }
}

impl Drop for Block {
    /// A block may end with or without the GIL: in a capsule, in a view of the host, or on a thread that used
    /// it.
    fn drop(&mut self) {
        self.end_seen();
        gil::released(|| {
            // SAFETY: `end` never drops a block after it took these out. A kept block is dropped later.
            unsafe {
                if self.release() {
                    ManuallyDrop::drop(&mut self.source);
                    ManuallyDrop::drop(&mut self.stream);
                } else {
                    self.keep();
                }
            }
        });
    }
}
