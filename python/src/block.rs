//! Blocks of memory that buffers share.
//!
//! A block has one stream, in whose order it goes back. Every use on another stream follows what was
//! submitted to the block's own, which then follows the use: so uses come one after the other, and the free
//! comes last.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::api::{PerProcess, api, generation};
use crate::device::{DeviceHandle, StreamHandle};
use crate::error::{Failure, check};
use crate::gil;
use crate::handle::ResourceHandle;
use crate::oracle::{Mistake, makes};
use crate::tensor::{CUDA, CUDA_HOST, Foreign};

/// The handle of the calling thread's per-thread default stream.
const PER_THREAD: usize = 2;

/// Where the memory of a block is from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A resource, which gets it back.
    Resource(Arc<ResourceHandle>),
    /// Another library, by DLPack; or a block from here, the lender.
    Foreign { tensor: Foreign, device: Arc<DeviceHandle>, lender: Option<Arc<Block>> },
}

/// Memory that one or more buffers and exports use.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
    /// Dropped with the block, or taken out of it by [`end`](Self::end).
    pub(crate) source: ManuallyDrop<Source>,
    /// The stream that it was allocated on, and in whose order it goes back. As the source.
    pub(crate) stream: ManuallyDrop<Arc<StreamHandle>>,
    /// The thread whose per-thread default stream that is.
    thread: Option<ThreadId>,
    /// Whether work of another library may use the memory on a stream that is not known.
    is_at_large: AtomicBool,
    /// Whether the collector sees who keeps the block.
    seen: AtomicU32,
    made_in: usize,
}

/// Buffers that keep the resource's Python object keep the block.
const SHOWN: u32 = 1;
/// One export that keeps it, too.
const HIDDEN: u32 = 2;

/// Blocks that work on streams that are not known may still use, and that nothing else keeps.
struct Kept {
    blocks: Mutex<Vec<Block>>,
    count: AtomicUsize,
}

/// A forked child leaves its parent's alone.
static KEPT: PerProcess<Kept> =
    PerProcess([const { Kept { blocks: Mutex::new(Vec::new()), count: AtomicUsize::new(0) } }; 8]);

/// Gives kept blocks back, if their devices can be waited for now.
fn give_back_kept() {
    let kept = KEPT.get();
    if kept.count.load(Ordering::Acquire) == 0 {
        return;
    }
    // They are this thread's while it waits; a block that is still in use is kept again.
    let blocks = std::mem::take(&mut *kept.blocks.lock());
    kept.count.fetch_sub(blocks.len(), Ordering::AcqRel);
    drop(blocks);
}

/// Who uses memory that was exported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Consumer {
    /// Work of this stream. The stream may end before the export does, so its identity is kept.
    Stream { raw: usize, id: u64, thread: Option<ThreadId> },
    /// It did not say.
    Unknown,
}

/// The calling thread, if the handle means another stream on another thread.
fn thread_of(stream: usize) -> Option<ThreadId> {
    (stream == PER_THREAD).then(|| thread::current().id())
}

/// The stream behind a handle that `thread` stored. On another thread the handle of a per-thread default
/// stream names another stream; the legacy default stream waits for the streams of all threads.
fn stream_here(stream: *mut c_void, thread: Option<ThreadId>) -> *mut c_void {
    match thread {
        Some(thread) if thread != thread::current().id() && !makes(Mistake::Thread) => null_mut(),
        _ => stream,
    }
}

/// Whether both handles mean one stream on this thread: 0 and 1 are the legacy default stream.
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
        // No bytes take no memory, as in RMM: adaptors count neither a request nor a free.
        if bytes > 0 {
            // SAFETY: the handle is live, and so is the stream; the result may be written.
            check(unsafe { (api().allocate)(resource.raw, bytes, 0, stream.ptr(), &raw mut ptr) })?;
        }
        Ok(Self::of(ptr.addr(), bytes, Source::Resource(resource), stream))
    }

    /// A block that the calling thread has cached; with `if_default`, only if the resource is still the
    /// default of the current device. Such a call never waits for a thread that waits for the GIL, nor for
    /// the device, and may be made with the GIL held.
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
        let seen = AtomicU32::new(0);
        Arc::new(Self { address, bytes, source, stream, thread, is_at_large, seen, made_in: generation() })
    }

    /// Memory of another library.
    pub(crate) fn foreign(
        tensor: Foreign,
        bytes: u64,
        device: Arc<DeviceHandle>,
        lender: Option<Arc<Self>>,
        stream: Arc<StreamHandle>,
    ) -> Arc<Self> {
        Self::of(tensor.address(), bytes, Source::Foreign { tensor, device, lender }, stream)
    }

    pub(crate) fn device(&self) -> Result<&Arc<DeviceHandle>, Failure> {
        match &*self.source {
            Source::Resource(resource) => resource.device(),
            Source::Foreign { device, .. } => Ok(device),
        }
    }

    /// What reaches the memory at its address: the device, and the host.
    pub(crate) fn accessibility(&self) -> Result<(bool, bool), Failure> {
        match &*self.source {
            Source::Resource(resource) => resource.accessibility(),
            Source::Foreign { tensor, .. } => Ok((true, tensor.device_type() != CUDA)),
        }
    }

    /// Whether it is pinned memory of the host.
    pub(crate) fn is_pinned(&self) -> Result<bool, Failure> {
        match &*self.source {
            Source::Resource(resource) => Ok(resource.text()?.starts_with("pinned_host")),
            Source::Foreign { tensor, .. } => Ok(tensor.device_type() == CUDA_HOST),
        }
    }

    /// Says that buffers that keep the resource's Python object are the only owners. Returns the resource, if
    /// the collector has to know of these buffers.
    pub(crate) fn show(&self) -> Option<Arc<ResourceHandle>> {
        let Source::Resource(resource) = &*self.source else { return None };
        if !resource.counts_blocks() {
            return None;
        }
        if self.seen.fetch_or(SHOWN, Ordering::Relaxed) == 0 {
            resource.count_block(true);
        }
        Some(resource.clone())
    }

    /// Whether buffers that keep the resource's Python object are the only owners.
    pub(crate) fn is_seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed) == SHOWN
    }

    /// Says that the collector does not see all owners: an export is one.
    pub(crate) fn hide(&self) {
        if self.seen.fetch_add(HIDDEN, Ordering::Relaxed) == SHOWN {
            self.count(false);
        }
    }

    /// Says that an export has ended, whose use of the block is dropped next. A block that ends with it stays
    /// hidden: no Python object keeps it any more.
    pub(crate) fn unhide(self: &Arc<Self>) {
        if Arc::strong_count(self) > 1 && self.seen.fetch_sub(HIDDEN, Ordering::Relaxed) == SHOWN + HIDDEN {
            self.count(true);
        }
    }

    fn count(&self, is_more: bool) {
        if let Source::Resource(resource) = &*self.source {
            resource.count_block(is_more);
        }
    }

    /// The block that goes back: memory that came from here by DLPack has the order of its own block.
    fn root(&self) -> &Self {
        match &*self.source {
            Source::Foreign { lender: Some(lender), .. } => lender.root(),
            _ => self,
        }
    }

    /// The stream that the block goes back on, as this thread names it.
    fn own_stream(&self) -> *mut c_void {
        stream_here(self.stream.ptr(), self.thread)
    }

    /// Submits work on `stream` that uses the block: after what was submitted to the block's own stream,
    /// which then waits for it.
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
            // SAFETY: the device's handle is live, and so are both streams.
            check(unsafe { (api().stream_follow)(device.0, stream.ptr(), own) })?;
        }
        let submitted = submit();
        if makes(Mistake::After) {
            return submitted;
        }
        // Also if that failed: a part of it may be on its way.
        // SAFETY: as above.
        let followed = check(unsafe { (api().stream_follow)(device.0, own, stream.ptr()) });
        if followed.is_err() {
            root.use_anywhere();
        }
        submitted.and_then(|done| followed.map(|()| done))
    }

    /// Makes a consumer's stream, named by its handle, wait for what was submitted to the block's.
    pub(crate) fn lend(&self, consumer: usize) -> Result<Consumer, Failure> {
        let root = self.root();
        let (device, own, stream) = (root.device()?, root.own_stream(), without_provenance_mut(consumer));
        if root.address != 0 && !is_same(own, stream) {
            // SAFETY: the device's handle is live, and so are both streams.
            check(unsafe { (api().stream_follow)(device.0, stream, own) })?;
        }
        let mut id = 0;
        // SAFETY: as above; the result may be written.
        check(unsafe { (api().stream_id)(device.0, stream, &raw mut id) })?;
        Ok(Consumer::Stream { raw: consumer, id, thread: thread_of(consumer) })
    }

    /// Makes the block's stream wait for what an export's consumer submitted.
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
            return;
        }
        let followed = root.device().and_then(|device| {
            // SAFETY: the device's handle is live, and so is the block's stream; the library asks whether the
            // other one is.
            check(unsafe { (api().stream_follow_if_alive)(device.0, own, other, id) })
        });
        if followed.is_err() {
            root.use_anywhere();
        }
    }

    /// Lets work use the memory on streams that are not known: the end of the block waits for the device.
    pub(crate) fn use_anywhere(&self) {
        self.root().is_at_large.store(true, Ordering::Relaxed);
    }

    /// The stream that comes after all uses, as other libraries name it.
    pub(crate) fn ordered_stream(&self) -> usize {
        self.root().own_stream().addr().max(1)
    }

    /// Waits on the host for the work that uses the block.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        let root = self.root();
        // SAFETY: the device's handle is live, and so is the stream.
        check(unsafe { (api().stream_synchronize)(root.device()?.0, root.own_stream()) })
    }

    pub(crate) fn wait_for_device(&self) -> Result<(), Failure> {
        // SAFETY: the device's handle is live.
        check(unsafe { (api().device_wait)(self.device()?.0) })
    }

    /// Waits for work on streams that are not known. Whether the block may be used again.
    fn is_over(&self) -> bool {
        if !self.is_at_large.load(Ordering::Relaxed) || makes(Mistake::Unknown) {
            return true;
        }
        // A lost device runs no work any more.
        !makes(Mistake::Wait) && self.wait_for_device().map_or_else(|failure| failure.is_lost(), |()| true)
    }

    /// Gives the memory back; returns `false` if work on streams that are not known may still use it. It
    /// needs no GIL. A forked child leaves its parent's memory alone.
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
                // SAFETY: the block is from this resource, with these bytes, and goes back once, after all
                // its uses; its stream lives as long as it. A refusal is counted by the resource.
                unsafe { (api().deallocate)(resource.raw, ptr, self.bytes, 0, self.own_stream()) };
            }
            // Another library knows nothing of the streams here.
            Source::Foreign { lender: None, .. } => {
                if !self.is_over() {
                    return false;
                }
                let _ = self.wait();
            }
            Source::Foreign { .. } => {}
        }
        true
    }

    /// Keeps the block for a later call: the device cannot be waited for now, for instance since a stream
    /// captures a graph.
    ///
    /// # Safety
    /// The block is not used any more, not even by its drop.
    #[cold]
    unsafe fn keep(&mut self) {
        // SAFETY: the caller's promise.
        let (source, stream) =
            unsafe { (std::ptr::read(&raw const self.source), std::ptr::read(&raw const self.stream)) };
        let Self { address, bytes, thread, made_in, .. } = *self;
        let (is_at_large, seen) = (AtomicBool::new(true), AtomicU32::new(0));
        let kept = Self { address, bytes, source, stream, thread, is_at_large, seen, made_in };
        let all = KEPT.get();
        all.blocks.lock().push(kept);
        all.count.fetch_add(1, Ordering::Release);
    }
}

impl Block {
    /// Ends a block that nothing else uses, with the GIL held, which is released before anything may wait.
    pub(crate) fn end(self, py: Python<'_>) {
        let may_be_kept =
            self.address != 0 && self.made_in == generation() && !self.is_at_large.load(Ordering::Relaxed);
        let is_back = match &*self.source {
            Source::Resource(resource) if may_be_kept => {
                let ptr = without_provenance_mut(self.address);
                // SAFETY: as in `release`; if it is not back, `release` follows.
                unsafe { (api().deallocate_cached)(resource.raw, ptr, self.bytes, self.own_stream()) }
            }
            _ => false,
        };
        if !is_back {
            return py.detach(|| drop(self));
        }
        // As the drop does, which does not run.
        self.hide();
        let mut this = ManuallyDrop::new(self);
        // SAFETY: both are taken once, and the block is not dropped.
        let (source, stream) =
            unsafe { (ManuallyDrop::take(&mut this.source), ManuallyDrop::take(&mut this.stream)) };
        // The last user of a resource or a stream ends it, which may take long.
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
    /// The end of the block comes with the GIL or without: a capsule, a view of the host, a thread that had
    /// it.
    fn drop(&mut self) {
        self.hide();
        gil::released(|| {
            // SAFETY: `end` takes them out of blocks that are not dropped. What keeps them is dropped later.
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
