//! Allocators for the host, over any resource whose memory the host reaches.

use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::ptr::NonNull;
use std::sync::Arc;

use millpond_core::driver::{CaptureModeGuard, HostPtr, StreamFlags, call};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Error, Layout, Result, StreamRef, debug_as_text,
};

/// The owned, erased handle to an allocator for the host that threads share.
pub type AnyHostResource = Arc<dyn HostMemoryResource + Send + Sync>;

/// Memory that the host reads and writes, allocated and freed without a stream.
///
/// [`HostResource`] makes one of any stack whose memory the host reaches, so every layer and every text that
/// there is for device memory is there for the host: `host+pool+statistics`, `pinned_host+pool+limiting`.
///
/// # Safety
/// Callers use the memory. Blocks that are handed out and not given back do not overlap, hold at least
/// `layout.bytes()` bytes, start at a multiple of `layout.alignment()`, and no work of the device uses them.
pub unsafe trait HostMemoryResource: Any + Debug + Display {
    /// Hands out a block that the host may use at once. For zero bytes it is a dangling pointer with the
    /// alignment of the layout.
    ///
    /// # Errors
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if there is no such block, and those of the
    /// resource.
    fn allocate(&self, layout: Layout) -> Result<NonNull<u8>>;

    /// Takes a block back. A wrong pointer is refused and reported, as far as the resource can tell.
    ///
    /// # Safety
    /// `ptr` and `layout` come from one `allocate` of this resource, and nothing uses the block any more,
    /// neither on the host nor on a device.
    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout);
}

/// A stack whose memory the host reaches, as an allocator for the host.
///
/// Blocks are allocated and freed on a stream of its own, on which no other work runs: memory that the device
/// used before is waited for, other work of the device is not.
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
    /// Makes an allocator for the host of a resource.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the host does not reach the
    /// resource's memory, and those of the driver.
    pub fn new(resource: R) -> Result<Self> {
        if !resource.accessibility().host {
            return Err(Error::invalid_argument(format!(
                "the host does not reach the memory of `{resource}`; build the stack on `host`, \
                 `pinned_host`, `managed` or `system`"
            )));
        }
        let stream = call(&**resource.driver(), |driver| driver.stream_create(StreamFlags::NON_BLOCKING))?;
        Ok(Self { resource, stream })
    }

    /// Returns the stack.
    pub fn resource(&self) -> &R {
        &self.resource
    }

    /// Waits until the host may use a block that was allocated on the own stream.
    fn wait(&self) -> Result<()> {
        if !self.resource.is_stream_ordered() {
            return Ok(());
        }
        let _captures = CaptureModeGuard::relaxed(&**self.resource.driver());
        call(&**self.resource.driver(), |driver| driver.stream_synchronize(self.stream))
    }
}

// SAFETY: the blocks are those of the resource, whose contract covers size, alignment and overlap; `wait`
// ends the work of earlier owners.
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
        // SAFETY: the stream is this value's own. A stream on which blocks were given back may be destroyed.
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
