//! The driver's plain memory, as the base of the layers under test.

use std::fmt;

use millpond_core::driver::call;
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverHandle, Error, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef, Traits, is_same,
};

/// Passes each request to the driver.
#[derive(Debug)]
pub(super) struct Plain(pub(super) DriverHandle);

// SAFETY: the driver hands out disjoint, aligned ranges, and waits for the device when it frees one. Larger
// alignments are refused.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Plain {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let fail = |error: Error| error.for_request(layout, stream).in_stack(self);
        match layout.rounded_bytes() {
            Some(0) => Ok(DevicePtr::NULL),
            Some(bytes) if layout.alignment() <= millpond_core::ALLOCATION_ALIGNMENT => {
                call(&*self.0, |driver| driver.mem_alloc(bytes)).map_err(fail)
            }
            _ => Err(fail(Error::invalid_argument("plain memory is aligned to only 256 bytes"))),
        }
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises; the driver refuses a pointer that it does not know.
        let is_refused = !ptr.is_null() && call(&*self.0, |driver| unsafe { driver.mem_free(ptr) }).is_err();
        if is_refused {
            let kind = MisuseKind::ForeignPointer;
            misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, self));
        }
    }

    fn driver(&self) -> &DriverHandle {
        &self.0
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        call(&*self.0, |driver| driver.mem_get_info())
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn accessibility(&self) -> Accessibility {
        Accessibility::DEVICE
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        None
    }

    fn trim(&self, _keep_bytes: u64) -> Result<u64> {
        Ok(0)
    }

    fn provide(&self, _traits: &mut Traits) {}
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cuda")
    }
}
