//! Blocks of memory that buffers share, and views of them.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use pyo3::prelude::*;

use crate::api::{api, generation};
use crate::device::{DeviceHandle, StreamHandle};
use crate::error::{Failure, check};
use crate::resource::ResourceHandle;
use crate::tensor::{self, Foreign};

/// The handle of the calling thread's per-thread default stream.
const PER_THREAD: usize = 2;

/// Where the memory of a block is from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A resource, which gets it back.
    Resource(Arc<ResourceHandle>),
    /// Another library, by DLPack.
    Foreign(Foreign, Arc<DeviceHandle>),
}

/// Memory that one or more buffers and exports use.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
    /// Dropped with the block, or taken out of it by [`end`](Self::end).
    pub(crate) source: ManuallyDrop<Source>,
    /// The stream that it was allocated on, and in whose order it goes back. As the source.
    stream: ManuallyDrop<Arc<StreamHandle>>,
    /// The thread whose per-thread default stream that is.
    thread: Option<ThreadId>,
    made_in: usize,
}

impl Block {
    pub(crate) fn new(
        resource: Arc<ResourceHandle>,
        bytes: u64,
        stream: Arc<StreamHandle>,
    ) -> Result<Arc<Self>, Failure> {
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
        let is_per_thread = stream.ptr().addr() == PER_THREAD;
        let thread = is_per_thread.then(|| thread::current().id());
        let (source, stream) = (ManuallyDrop::new(source), ManuallyDrop::new(stream));
        Arc::new(Self { address, bytes, source, stream, thread, made_in: generation() })
    }

    /// Memory of another library.
    pub(crate) fn foreign(
        foreign: Foreign,
        device: Arc<DeviceHandle>,
        stream: Arc<StreamHandle>,
    ) -> Arc<Self> {
        Self::of(foreign.address(), foreign.bytes(), Source::Foreign(foreign, device), stream)
    }

    fn device(&self) -> Result<&Arc<DeviceHandle>, Failure> {
        match &*self.source {
            Source::Resource(resource) => resource.device(),
            Source::Foreign(_, device) => Ok(device),
        }
    }

    /// What reaches the memory at its address: the device, and the host.
    pub(crate) fn accessibility(&self) -> Result<(bool, bool), Failure> {
        match &*self.source {
            Source::Resource(resource) => resource.accessibility(),
            Source::Foreign(foreign, _) => Ok((true, foreign.device_type() != tensor::CUDA)),
        }
    }

    /// Whether it is pinned memory of the host.
    pub(crate) fn is_pinned(&self) -> Result<bool, Failure> {
        match &*self.source {
            Source::Resource(resource) => Ok(resource.text()?.starts_with("pinned_host")),
            Source::Foreign(foreign, _) => Ok(foreign.device_type() == tensor::CUDA_HOST),
        }
    }

    /// The stream that the block goes back on. On another thread the handle of a per-thread default stream
    /// names another stream; the legacy default stream waits for those of all threads.
    fn last_stream(&self) -> *mut c_void {
        match self.thread {
            Some(thread) if thread != thread::current().id() => null_mut(),
            _ => self.stream.ptr(),
        }
    }

    /// Gives the memory back. It needs no GIL. A forked child leaves its parent's memory alone.
    fn release(&self) {
        if self.made_in != generation() {
            return;
        }
        if let Source::Resource(resource) = &*self.source
            && self.address != 0
        {
            let ptr = without_provenance_mut(self.address);
            // SAFETY: the block is from this resource, with these bytes, and goes back once; its stream lives
            // as long as it. A refusal is counted by the resource.
            unsafe { (api().deallocate)(resource.raw, ptr, self.bytes, 0, self.last_stream()) };
        }
    }
}

impl Block {
    /// Ends a block that nothing else uses, with the GIL held, which is released before anything may wait.
    pub(crate) fn end(self, py: Python<'_>) {
        let is_back = match &*self.source {
            Source::Resource(resource) if self.address != 0 && self.made_in == generation() => {
                let ptr = without_provenance_mut(self.address);
                // SAFETY: as in `release`; if it is not back, `release` follows.
                unsafe { (api().deallocate_cached)(resource.raw, ptr, self.bytes, self.last_stream()) }
            }
            _ => false,
        };
        if !is_back {
            return py.detach(|| drop(self));
        }
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
    fn drop(&mut self) {
        self.release();
        // SAFETY: `end` takes them out of blocks that are not dropped.
        unsafe {
            ManuallyDrop::drop(&mut self.source);
            ManuallyDrop::drop(&mut self.stream);
        }
    }
}

/// What a buffer is at one time.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) block: Arc<Block>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) stream: Arc<StreamHandle>,
}

impl View {
    pub(crate) fn address(&self) -> usize {
        if self.block.address == 0 { 0 } else { self.block.address + self.offset as usize }
    }

    pub(crate) fn device(&self) -> Result<&Arc<DeviceHandle>, Failure> {
        self.block.device()
    }

    pub(crate) fn synchronize(&self, stream: &StreamHandle) -> Result<(), Failure> {
        // SAFETY: the device's handle is live, and so is the stream.
        check(unsafe { (api().stream_synchronize)(self.device()?.0, stream.ptr()) })
    }

    /// Copies to the host, and waits for it.
    ///
    /// # Safety
    /// `self.size` bytes may be written at `target`.
    pub(crate) unsafe fn read(&self, target: *mut u8, stream: &StreamHandle) -> Result<(), Failure> {
        if self.size == 0 {
            return Ok(());
        }
        let source = without_provenance_mut(self.address());
        // SAFETY: the device's handle is live, as are the stream and the block; the target may be written.
        check(unsafe {
            (api().copy_to_host)(self.device()?.0, target.cast(), source, self.size, stream.ptr())
        })?;
        self.synchronize(stream)
    }

    /// Copies from the host, and waits for it, as the host's memory is the caller's.
    ///
    /// # Safety
    /// `bytes` bytes may be read at `source`, and are at most the view's.
    pub(crate) unsafe fn write(
        &self,
        source: *const u8,
        bytes: u64,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let target = without_provenance_mut(self.address());
        // SAFETY: the device's handle is live, and so are the stream and the block; the source may be read.
        check(unsafe {
            let source = source.cast_mut().cast();
            (api().copy_to_device)(self.device()?.0, target, source, bytes, stream.ptr())
        })?;
        self.synchronize(stream)
    }

    /// Copies on the device, in the order of `stream`.
    pub(crate) fn copy_from(&self, source: usize, bytes: u64, stream: &StreamHandle) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let (target, source) = (without_provenance_mut(self.address()), without_provenance_mut(source));
        // SAFETY: the device's handle is live, and so are the stream and the block, which holds as many; the
        // source is the caller's promise.
        check(unsafe { (api().copy_on_device)(self.device()?.0, target, source, bytes, stream.ptr()) })
    }

    /// The same bytes in memory of their own, from the same resource.
    pub(crate) fn duplicate(&self, stream: &Arc<StreamHandle>) -> Result<Self, Failure> {
        let resource = match &*self.block.source {
            Source::Resource(resource) => resource.clone(),
            Source::Foreign(..) => ResourceHandle::current()?,
        };
        let block = Block::new(resource, self.size, stream.clone())?;
        let copy = Self { block, offset: 0, size: self.size, stream: stream.clone() };
        if stream.raw != self.stream.raw && self.size > 0 {
            // SAFETY: the device's handle is live, and so are both streams.
            check(unsafe { (api().stream_wait)(self.device()?.0, stream.ptr(), self.stream.ptr()) })?;
        }
        copy.copy_from(self.address(), self.size, stream)?;
        Ok(copy)
    }
}
