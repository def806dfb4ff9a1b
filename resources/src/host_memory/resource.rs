//! Allocators for the host, over any resource whose memory the host can access.

use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::ptr::NonNull;
use std::sync::Arc;

use millpond_core::driver::{CaptureModeGuard, HostPtr, StreamFlags, call};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Error, Layout, Result, StreamRef, debug_as_text,
};

/// An owned, type-erased handle to an allocator for host code. Threads may share the handle.
pub type AnyHostResource = Arc<dyn HostMemoryResource + Send + Sync>;

/// An allocator of memory for host code. Its methods take no stream argument.
///
/// [`HostResource`] makes such an allocator from any stack whose memory the host can access. So layers and
/// stack texts also work for host memory, as in `host+pool+statistics` or `pinned_host+pool+limiting`.
///
/// # Safety
/// Safe code uses the blocks without checks. So the implementor guarantees the following for each block that
/// [`allocate`](Self::allocate) returns:
/// - The block holds at least `layout.bytes()` bytes, and the host may read and write them.
/// - The block starts at a multiple of `layout.alignment()`.
/// - The block overlaps no other live block.
/// - When the call returns, no work of the device uses the block.
pub unsafe trait HostMemoryResource: Any + Debug + Display {
    /// Allocates a block that host code may use as soon as the call returns. A request for zero bytes returns
    /// a dangling pointer with the alignment of `layout`.
    ///
    /// # Errors
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if the resource has no block for the request,
    /// and the resource's other errors.
    fn allocate(&self, layout: Layout) -> Result<NonNull<u8>>;

    /// Frees a block. If the resource can tell that the pointer is wrong, it refuses the call and reports the
    /// misuse.
    ///
    /// # Safety
    /// `ptr` and `layout` come from one `allocate` of this resource. Neither the host nor a device uses the
    /// block any more.
    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout);
}

/// Allocates memory for host code from a stack. The host must be able to access the stack's memory.
///
/// The allocator allocates and frees blocks on a stream of its own, on which no other work runs. So an
/// allocation waits for earlier work of the device only if that work used the same memory.
///
/// ```
/// use millpond_core::{DeviceMemoryResourceExt, Layout};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{HostMemoryResource, HostResource, PinnedHostMemoryResource, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let pool = PinnedHostMemoryResource::new(device).layer(PoolLayer::new())?;
/// let host = HostResource::new(pool)?;
/// let layout = Layout::with_alignment(100, 4096)?;
/// let block = host.allocate(layout)?;
/// // SAFETY: the block holds 100 bytes, and is freed once.
/// unsafe {
///     block.write_bytes(0, 100);
///     host.deallocate(block, layout);
/// }
/// assert_eq!(host.to_string(), "pinned_host+pool");
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct HostResource<R: DeviceMemoryResource = AnyResource> {
    resource: R,
    stream: StreamRef,
}

impl<R: DeviceMemoryResource> HostResource<R> {
    /// Creates an allocator for host code from a resource.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the host cannot access the
    /// resource's memory, and the driver's errors.
    pub fn new(resource: R) -> Result<Self> {
        if !resource.accessibility().host {
            return Err(Error::invalid_argument(format!(
                "the host cannot access the memory of `{resource}`; build the stack on `host`, \
                 `pinned_host`, `managed` or `system`"
            )));
        }
        let stream = call(&**resource.driver(), |driver| driver.stream_create(StreamFlags::NON_BLOCKING))?;
        Ok(Self { resource, stream })
    }

    /// Returns the stack that the blocks come from.
    pub fn resource(&self) -> &R {
        &self.resource
    }

    /// Waits until the host may use a block that was allocated on this value's stream.
    fn wait(&self) -> Result<()> {
        if !self.resource.is_stream_ordered() {
            return Ok(());
        }
        let _captures = CaptureModeGuard::relaxed(&**self.resource.driver());
        call(&**self.resource.driver(), |driver| driver.stream_synchronize(self.stream))
    }
}

// SAFETY: the blocks are the resource's, and its contract covers size, alignment and overlap; `wait` ends the
// work of earlier owners.
unsafe impl<R: DeviceMemoryResource> HostMemoryResource for HostResource<R> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<u8>> {
        let ptr = self.resource.allocate(layout, self.stream)?;
        let Some(block) = NonNull::new(HostPtr(ptr.address() as usize).as_mut_ptr()) else {
            let aligned = std::ptr::without_provenance_mut(layout.alignment() as usize);
            return Ok(NonNull::new(aligned).unwrap_or(NonNull::dangling()));
        };
        self.wait().inspect_err(|_| {
            // SAFETY: the block was just allocated with this layout, and no work used it.
            unsafe { self.resource.deallocate(ptr, layout, self.stream) }
        })?;
        Ok(block)
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        if layout.bytes() > 0 {
            let ptr = DevicePtr::new(ptr.as_ptr().expose_provenance() as u64);
            // SAFETY: the caller's promise; no work uses the block, so it is ordered before any stream.
            unsafe { self.resource.deallocate(ptr, layout, self.stream) }
        }
    }
}

impl<R: DeviceMemoryResource> Drop for HostResource<R> {
    fn drop(&mut self) {
        // SAFETY: the stream belongs to this value. A stream may be destroyed after blocks were freed on it.
        let destroyed =
            call(&**self.resource.driver(), |driver| unsafe { driver.stream_destroy(self.stream) });
        if let Err(error) = destroyed {
            tracing::debug!(target: "millpond::driver", %error, "a stream could not be destroyed");
        }
    }
}

debug_as_text!(HostResource<R: DeviceMemoryResource>);

impl<R: DeviceMemoryResource> Display for HostResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.resource, f)
    }
}
