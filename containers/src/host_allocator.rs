//! Memory that the host reaches, for collections that take an `allocator_api2` allocator.

use std::alloc;
use std::ptr::{self, NonNull};

use allocator_api2::alloc::{AllocError, Allocator};
use millpond_core::driver::call;
use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, Error, Layout, Result, StreamRef};

/// Memory of a resource that the host reaches, as an `allocator_api2` allocator: for vectors, boxes and maps
/// whose contents kernels read at the same address.
///
/// A collection uses its memory at once, so an allocation waits for the stream if the resource is in stream
/// order. Work of the device on the memory is ordered before the stream's next work when the collection gives
/// it back, as for every resource. An error of the resource is logged, since [`AllocError`] has no text.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use millpond_containers::HostAllocator;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::ManagedMemoryResource;
///
/// let managed = ManagedMemoryResource::new(SimDevice::new(SimConfig::h200())).into_any();
/// let mut numbers = Vec::new_in(HostAllocator::new(managed, StreamRef::LEGACY)?);
/// numbers.extend([1_u64, 2, 3]);
/// assert_eq!(numbers.iter().sum::<u64>(), 6);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostAllocator {
    resource: AnyResource,
    stream: StreamRef,
    waits: bool,
}

impl HostAllocator {
    /// Allocates from `resource` on `stream`, which must be alive as long as the allocator and what it
    /// allocated.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the host does not reach the
    /// resource's memory.
    pub fn new(resource: AnyResource, stream: StreamRef) -> Result<Self> {
        let reached_by = resource.accessibility();
        if !reached_by.host {
            let message = format!(
                "this memory is reached by the {reached_by} alone; a collection of the host needs a resource \
                 that the host reaches, as managed or pinned memory"
            );
            return Err(Error::invalid_argument(message).in_stack(&resource));
        }
        let waits = resource.is_stream_ordered();
        Ok(Self { resource, stream, waits })
    }

    /// The resource.
    pub fn resource(&self) -> &AnyResource {
        &self.resource
    }

    fn try_allocate(&self, layout: Layout) -> Result<DevicePtr> {
        let ptr = self.resource.allocate(layout, self.stream)?;
        if self.waits {
            let waited = call(&**self.resource.driver(), |driver| driver.stream_synchronize(self.stream));
            if let Err(error) = waited {
                // SAFETY: the block was allocated just now with this layout on this stream; nothing used it.
                unsafe { self.resource.deallocate(ptr, layout, self.stream) };
                return Err(error.in_stack(&self.resource));
            }
        }
        Ok(ptr)
    }
}

/// The layout in the resource's terms. `alloc::Layout` has checked the alignment.
fn layout_of(layout: alloc::Layout) -> Result<Layout> {
    Layout::with_alignment(layout.size() as u64, layout.align() as u64)
}

// SAFETY: a block is the caller's alone until it is given back, at an address that the host reaches; the
// resource lives as long as one clone of the allocator, and clones share it.
unsafe impl Allocator for HostAllocator {
    fn allocate(&self, layout: alloc::Layout) -> std::result::Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let dangling = ptr::without_provenance_mut(layout.align());
            let dangling = NonNull::new(dangling).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(dangling, 0));
        }
        let allocated = layout_of(layout).and_then(|layout| self.try_allocate(layout));
        let address = allocated.map_err(|error| {
            tracing::debug!(target: "millpond::containers", %error, "memory for the host was not allocated");
            AllocError
        })?;
        let address = usize::try_from(address.address()).map_err(|_| AllocError)?;
        let ptr = NonNull::new(ptr::with_exposed_provenance_mut(address)).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(ptr, layout.size()))
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: alloc::Layout) {
        let Ok(layout) = layout_of(layout) else { return };
        if layout.bytes() > 0 {
            let ptr = DevicePtr::new(ptr.as_ptr().expose_provenance() as u64);
            // SAFETY: the caller vouches that the block came from this allocator with this layout, and that
            // it is used no more.
            unsafe { self.resource.deallocate(ptr, layout, self.stream) }
        }
    }
}
