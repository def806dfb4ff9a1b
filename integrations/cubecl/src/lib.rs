//! Lets [cubecl](https://github.com/tracel-ai/cubecl)'s memory pools take their device memory from a memory
//! resource of millpond: see [`MillpondStorage`].

use std::collections::HashMap;
use std::fmt;

use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::server::IoError;
use cubecl_runtime::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use millpond::driver::{CaptureModeGuard, Driver, call};
use millpond::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Error, Layout, Result, StreamRef,
};

/// The storage below the pools of one of cubecl's streams: it takes pages from a resource of millpond, and
/// frees them in the order of the stream.
///
/// cubecl makes a storage for each stream. Pass a clone of one [`AnyResource`] to each, so that all streams
/// share the resource. A page that one stream frees can then serve another stream.
///
/// The type of cubecl's `Resource` is a plain device address (`CUdeviceptr`). The handle has the size.
///
/// - **Alignment.** Pages start at a multiple of the storage's alignment. cubecl aligns slices of a page to
///   the alignment in its `MemoryDeviceProperties`; use the same number for both.
/// - **Frees.** [`dealloc`](ComputeStorage::dealloc) retires a page: `get` no longer finds the page, but
///   [`bytes_allocated`](ComputeStorage::bytes_allocated) still counts it.
///   [`flush`](ComputeStorage::flush) frees the retired pages. The host does not wait for running kernels,
///   unless the resource itself waits.
/// - **Drop.** The storage waits for the device, and then frees all its pages. If the wait fails, the
///   resource keeps the pages until its own end.
pub struct MillpondStorage<R: DeviceMemoryResource = AnyResource> {
    resource: R,
    stream: StreamRef,
    alignment: u64,
    pages: HashMap<StorageId, Page>,
    retired: Vec<Page>,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Page {
    address: DevicePtr,
    layout: Layout,
}

impl<R: DeviceMemoryResource> MillpondStorage<R> {
    /// Creates a storage without pages. `alignment` is in bytes and must be a power of two; at less than 256,
    /// it is 256.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond::ErrorKind::InvalidArgument) if `alignment` is not a power of two.
    ///
    /// # Safety
    /// - The stream is alive until the storage is dropped, and belongs to the resource's device.
    /// - A page that the caller deallocates is used only by work on `stream`, or by work that is done or that
    ///   `stream` has waited for. cubecl's pools and streams keep this promise.
    pub unsafe fn new(resource: R, stream: StreamRef, alignment: u64) -> Result<Self> {
        let alignment = Layout::with_alignment(0, alignment)?.alignment();
        Ok(Self { resource, stream, alignment, pages: HashMap::new(), retired: Vec::new(), bytes: 0 })
    }

    /// Returns the resource that the pages come from.
    pub fn resource(&self) -> &R {
        &self.resource
    }
}

impl<R: DeviceMemoryResource + Send> ComputeStorage for MillpondStorage<R> {
    type Resource = u64;

    fn alignment(&self) -> usize {
        self.alignment as usize
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<u64, IoError> {
        let page = self.pages.get(&handle.id).ok_or_else(|| IoError::StorageHandleNotFound {
            reason: format!("{} is no page of `{}`", handle.id, self.resource).into(),
            backtrace: BackTrace::capture(),
        })?;
        Ok(page.address.address() + handle.offset())
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let page = Layout::with_alignment(size, self.alignment)
            .and_then(|layout| Ok(Page { address: self.resource.allocate(layout, self.stream)?, layout }))
            .map_err(|error| io_error(size, &error))?;
        let id = StorageId::new();
        self.pages.insert(id, page);
        self.bytes += size;
        Ok(StorageHandle::new(id, StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, id: StorageId) {
        self.retired.extend(self.pages.remove(&id));
    }

    fn flush(&mut self) {
        for Page { address, layout } in self.retired.drain(..) {
            self.bytes -= layout.bytes();
            // SAFETY: the page came from this resource with this layout, and is freed once. `new`'s caller
            // promises the order of its uses, and that the stream is alive.
            unsafe { self.resource.deallocate(address, layout, self.stream) }
        }
    }

    fn bytes_allocated(&self) -> u64 {
        self.bytes
    }
}

impl<R: DeviceMemoryResource> Drop for MillpondStorage<R> {
    fn drop(&mut self) {
        let driver = &**self.resource.driver();
        let _captures = CaptureModeGuard::relaxed(driver);
        if !matches!(call(driver, Driver::synchronize_beside_captures), Ok(true)) {
            return;
        }
        let pages = self.pages.drain().map(|(_, page)| page);
        for Page { address, layout } in pages.chain(self.retired.drain(..)) {
            // SAFETY: the page came from this resource with this layout, and is freed once. All work is done.
            unsafe { self.resource.deallocate_sync(address, layout) }
        }
    }
}

/// Returns cubecl's error for a refused page. After `OutOfMemory`, cubecl reclaims memory and tries again.
/// After `BufferTooBig`, it gives up.
fn io_error(size: u64, error: &Error) -> IoError {
    let backtrace = BackTrace::capture();
    if !error.is_out_of_memory() {
        return IoError::Unknown { description: error.to_string(), backtrace };
    }
    // cubecl's errors have no room for the report.
    tracing::warn!(target: "millpond::cubecl", %error, "out of memory for a page of cubecl");
    if error.is_impossible() {
        IoError::BufferTooBig { size, backtrace }
    } else {
        IoError::OutOfMemory { size, backtrace }
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for MillpondStorage<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MillpondStorage")
            .field("resource", &self.resource)
            .field("stream", &self.stream)
            .field("pages", &self.pages.len())
            .field("retired", &self.retired.len())
            .field("bytes", &self.bytes)
            .finish()
    }
}
