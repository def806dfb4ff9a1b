//! Memory that the host can access, for collections with an `allocator_api2` allocator.

use std::alloc;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator};
use millpond_core::{AnyResource, Layout, Result};
use millpond_resources::{AnyHostResource, HostResource};

/// An `allocator_api2` allocator over a resource whose memory the host can access. Vectors, boxes and maps
/// can allocate with this allocator. If the device can access the memory, kernels can read the contents of
/// such a collection at the same address.
///
/// Before a collection frees its memory, the program must wait for all work of the device on this memory. If
/// the resource returns an error, the allocator writes the error to the log, because [`AllocError`] has no
/// text.
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
    /// Creates an allocator over a stack whose memory the host can access.
    ///
    /// # Errors
    /// The errors of [`HostResource::new`]. For example,
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the host cannot access the memory.
    pub fn new(resource: AnyResource) -> Result<Self> {
        Ok(Self { resource: Arc::new(HostResource::new(resource)?) })
    }

    /// Returns the resource that the allocator uses.
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

/// Converts the layout to the resource's type.
fn layout_of(layout: alloc::Layout) -> Result<Layout> {
    Layout::with_alignment(layout.size() as u64, layout.align() as u64)
}

// SAFETY: a block belongs to the caller alone until it is freed. The resource lives as long as any clone of
// the allocator.
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
            // SAFETY: the caller guarantees that the block came from this allocator with this layout, and
            // that nothing uses it any more.
            unsafe { self.resource.deallocate(ptr, layout) }
        }
    }
}
