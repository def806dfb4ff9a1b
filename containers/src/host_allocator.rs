//! Memory that the host reaches, for collections that take an `allocator_api2` allocator.

use std::alloc;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator};
use millpond_core::{AnyResource, Layout, Result};
use millpond_resources::{AnyHostResource, HostResource};

/// Memory of a resource that the host reaches, as an `allocator_api2` allocator: for vectors, boxes and maps,
/// whose contents kernels may read at the same address.
///
/// Before a collection gives memory back, all work of the device on it is done. An error of the resource is
/// logged, since [`AllocError`] has no text.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use millpond_containers::HostAllocator;
/// use millpond_core::DeviceMemoryResourceExt;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::ManagedMemoryResource;
///
/// let managed = ManagedMemoryResource::new(SimDevice::new(SimConfig::h200())).into_any();
/// let mut numbers = Vec::new_in(HostAllocator::new(managed)?);
/// numbers.extend([1_u64, 2, 3]);
/// assert_eq!(numbers.iter().sum::<u64>(), 6);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone)]
pub struct HostAllocator {
    resource: AnyHostResource,
}

impl HostAllocator {
    /// Allocates from a stack whose memory the host reaches.
    ///
    /// # Errors
    /// Those of [`HostResource::new`]: [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the
    /// host does not reach the memory.
    pub fn new(resource: AnyResource) -> Result<Self> {
        Ok(Self { resource: Arc::new(HostResource::new(resource)?) })
    }

    /// The resource.
    pub fn resource(&self) -> &AnyHostResource {
        &self.resource
    }
}

impl fmt::Debug for HostAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAllocator").field("resource", &format_args!("{}", self.resource)).finish()
    }
}

impl From<AnyHostResource> for HostAllocator {
    fn from(resource: AnyHostResource) -> Self {
        Self { resource }
    }
}

/// The layout in the resource's terms.
fn layout_of(layout: alloc::Layout) -> Result<Layout> {
    Layout::with_alignment(layout.size() as u64, layout.align() as u64)
}

// SAFETY: a block is the caller's alone until it is given back; the resource lives as long as one clone of
// the allocator, and clones share it.
unsafe impl Allocator for HostAllocator {
    fn allocate(&self, layout: alloc::Layout) -> std::result::Result<NonNull<[u8]>, AllocError> {
        let block = layout_of(layout).and_then(|layout| self.resource.allocate(layout));
        let block = block.map_err(|error| {
            tracing::debug!(target: "millpond::containers", %error, "memory for the host was not allocated");
            AllocError
        })?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: alloc::Layout) {
        if let Ok(layout) = layout_of(layout) {
            // SAFETY: the caller vouches that the block came from this allocator with this layout, and that
            // nothing uses it any more.
            unsafe { self.resource.deallocate(ptr, layout) }
        }
    }
}
