//! Memory of the system's allocator that leaves a part of the device free.

use std::fmt;
use std::sync::Arc;

use crate::debug_as_text::debug_as_text;

use millpond_core::driver::{CaptureModeGuard, MemAdvice, call};
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, ByteSize, DeviceMemoryResource, DevicePtr, DriverHandle, Error,
    Layout, MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, is_same,
};

use super::pageable::Pageable;

/// Builds `sam_headroom` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "sam_headroom",
    about: "memory of the system's allocator; keeps a part of the device's memory free",
    params: &[("headroom", "bytes of the device's memory to leave free; required")],
    kind: LayerKind::ReadBase(|params| {
        let headroom: ByteSize = params.get("headroom")?.ok_or_else(|| {
            Error::invalid_stack(
                "`sam_headroom` needs the bytes to leave free; write for example headroom=1GiB",
            )
        })?;
        Ok(Box::new(move |driver, _| {
            let bytes = headroom.resolve(&**driver)?;
            let resource = SamHeadroomMemoryResource::new(Arc::clone(driver), bytes)?;
            Ok(Arc::new(SamHeadroomMemoryResource { headroom, ..resource }))
        }))
    }),
};

/// Memory of the system's allocator, as from [`SystemMemoryResource`](crate::SystemMemoryResource). This
/// resource also leaves `headroom_bytes` of the device's memory free.
///
/// When the resource allocates a block, it reads how much memory of the device is free. The resource advises
/// the driver to place the start of the block on the device, and the rest of the block on the host. The size
/// of the start is the device's free memory beyond the headroom, rounded down to a multiple of 256 bytes.
///
/// An allocation makes one query and one or two calls of `cuMemAdvise`. If the driver refuses the advice, the
/// allocation still succeeds.
///
/// ```
/// use millpond_core::DeviceMemoryResourceExt;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::SamHeadroomMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let resource = SamHeadroomMemoryResource::new(device, 1 << 30)?;
/// assert_eq!(resource.to_string(), "sam_headroom:headroom=1GiB");
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
#[doc = include_str!("../../layers/sam_headroom.md")]
pub struct SamHeadroomMemoryResource {
    memory: Pageable,
    headroom_bytes: u64,
    /// The headroom as the caller gave it: in bytes, or as a share.
    headroom: ByteSize,
}

impl SamHeadroomMemoryResource {
    /// Creates a resource that leaves `headroom_bytes` of the device's memory free.
    ///
    /// # Errors
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) if the device cannot access pageable memory,
    /// and the driver's errors.
    pub fn new(driver: DriverHandle, headroom_bytes: u64) -> Result<Self> {
        let headroom = ByteSize::Bytes(headroom_bytes);
        Ok(Self { memory: Pageable::for_device(driver)?, headroom_bytes, headroom })
    }

    /// Returns the number of bytes of the device's memory that the resource leaves free.
    pub fn headroom_bytes(&self) -> u64 {
        self.headroom_bytes
    }

    fn advise(&self, ptr: DevicePtr, bytes: u64) {
        let driver = &self.memory.driver;
        let _captures = CaptureModeGuard::relaxed(&**driver);
        let free = call(&**driver, |driver| driver.mem_get_info()).map_or(0, |info| info.free);
        let on_device = free.saturating_sub(self.headroom_bytes).min(bytes) & !(ALLOCATION_ALIGNMENT - 1);
        let parts = [
            (ptr, on_device, MemAdvice::PreferDevice),
            (ptr.offset(on_device), bytes - on_device, MemAdvice::PreferHost),
        ];
        for (start, bytes, advice) in parts.into_iter().filter(|(_, bytes, _)| *bytes > 0) {
            // SAFETY: the range lies in a block that was just allocated.
            if let Err(error) = unsafe { driver.mem_advise(start, bytes, advice) } {
                driver.health().note(&error);
                let ptr = start;
                tracing::debug!(target: "millpond::driver", %ptr, bytes, %error, "the driver refused advice");
            }
        }
    }
}

impl fmt::Display for SamHeadroomMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:headroom={}", ENTRY.name, self.headroom)
    }
}

debug_as_text!(SamHeadroomMemoryResource);

// SAFETY: the blocks come from `memory`, which keeps the contract; advice changes no contents.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for SamHeadroomMemoryResource {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.memory.allocate(layout, stream, ENTRY.name)?;
        if !ptr.is_null() {
            self.advise(ptr, layout.bytes());
        }
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.memory.deallocate(ptr, layout, stream, ENTRY.name);
    }

    fn driver(&self) -> &DriverHandle {
        &self.memory.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.memory.memory_info(ENTRY.name)
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn accessibility(&self) -> Accessibility {
        Accessibility::DEVICE_AND_HOST
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.memory.statistics()
    }

    fn trim(&self, _keep_bytes: u64) -> Result<u64> {
        Ok(0)
    }

    fn provide(&self, traits: &mut Traits) {
        traits.share::<Self>();
    }
}
