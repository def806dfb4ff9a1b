//! Shows how to write your own resource: it implements every method of the trait.
//!
//! This resource is an arena for a single pass: it allocates from one region, and never frees a block.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::driver::{CaptureModeGuard, DeviceSpec, call};
use millpond::resources::CudaMemoryResource;
use millpond::{
    Accessibility, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Error, Layout,
    MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, is_same,
};

/// Allocates one region from its start to its end.
#[derive(Debug)]
pub(crate) struct BumpMemoryResource<R: DeviceMemoryResource> {
    upstream: R,
    region: DevicePtr,
    bytes: u64,
    used: AtomicU64,
}

impl<R: DeviceMemoryResource> BumpMemoryResource<R> {
    pub(crate) fn new(upstream: R, bytes: u64) -> Result<Self> {
        // Any stream may use this memory: all work of the memory's earlier owners is done.
        let region = upstream.allocate_sync(Layout::new(bytes))?;
        Ok(Self { upstream, region, bytes, used: AtomicU64::new(0) })
    }
}

impl<R: DeviceMemoryResource> Drop for BumpMemoryResource<R> {
    fn drop(&mut self) {
        // All uses of the region must be over before the region is freed. Without this wait, it stays in use.
        let driver = &**self.driver();
        let _captures = CaptureModeGuard::relaxed(driver);
        if call(driver, |driver| driver.synchronize_beside_captures()).is_ok_and(|has_waited| has_waited) {
            // SAFETY: the region came from upstream with this layout, and all work on the device is done.
            unsafe { self.upstream.deallocate_sync(self.region, Layout::new(self.bytes)) };
        }
    }
}

/// Prints the upstream first, as every resource does, so that errors show which stack they come from.
impl<R: DeviceMemoryResource> fmt::Display for BumpMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+bump", self.upstream)
    }
}

// SAFETY: each block is a piece of the region that no other block gets, aligned as requested. Any stream may
// use the region, and no piece is reused, so no stream has to wait for another. `drop` frees the region after
// all work on the device.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for BumpMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        // After the device is lost, every call fails.
        call(&**self.driver(), |_| Ok(()))
            .map_err(|error| error.for_request(layout, stream).in_stack(self))?;
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let too_large = || Error::request_too_large(layout, stream).in_stack(self);
        let bytes = layout.rounded_bytes().ok_or_else(too_large)?;
        let place = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let start =
                self.region.address().checked_add(used)?.checked_next_multiple_of(layout.alignment())?;
            (start - self.region.address()).checked_add(bytes).filter(|end| *end <= self.bytes)
        });
        match place {
            Ok(used) => {
                let start = (self.region.address() + used).next_multiple_of(layout.alignment());
                Ok(DevicePtr::new(start))
            }
            Err(_) => {
                Err(Error::out_of_memory(layout, stream).in_stack(self).context("the region is used up"))
            }
        }
    }

    unsafe fn deallocate(&self, _ptr: DevicePtr, _layout: Layout, _stream: StreamRef) {}

    fn driver(&self) -> &DriverHandle {
        self.upstream.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&self.upstream)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let free = self.bytes - self.used.load(Ordering::Relaxed);
        Ok(MemoryInfo { free, total: self.bytes })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true // `false` would promise that `deallocate` waits for the work that uses the block
    }

    fn accessibility(&self) -> Accessibility {
        self.upstream.accessibility()
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.upstream.statistics()
    }

    fn trim(&self, _keep_bytes: u64) -> Result<u64> {
        Ok(0)
    }

    fn provide(&self, _traits: &mut Traits) {}
}

pub(crate) fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let bump = BumpMemoryResource::new(CudaMemoryResource::new(device), 1 << 20)?;
    for bytes in [100, 1000, 10_000] {
        println!("{bytes} bytes at {}", bump.allocate_bytes(bytes, StreamRef::LEGACY)?);
    }
    println!("{} bytes are left", bump.memory_info()?.free);
    println!("{}", bump.allocate_bytes(1 << 20, StreamRef::LEGACY).expect_err("the region is smaller"));
    Ok(())
}
