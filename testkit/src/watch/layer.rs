//! The layer that records calls.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::MemoryInfo;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Layout, ResourceStatistics, Result, StreamRef, downcast,
    forward_to_upstream,
};

use super::board::call;

/// Records on each thread that the layer below is being called. In every other respect it is transparent,
/// `Display` included.
pub struct Watched {
    name: &'static str,
    inner: AnyResource,
}

impl Watched {
    /// Records calls of `inner` under this name.
    pub fn new(name: &'static str, inner: AnyResource) -> Self {
        Self { name, inner }
    }

    /// Returns the resource as a handle.
    pub fn into_any(self) -> AnyResource {
        Arc::new(self)
    }
}

// SAFETY: every call goes to `inner` with the same arguments and returns its result, so `inner`'s contract
// holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Watched {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let _watch = call(self.name);
        self.inner.allocate(layout, stream)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let _watch = call(self.name);
        // SAFETY: the caller's promises are about `inner`'s block.
        unsafe { self.inner.deallocate(ptr, layout, stream) }
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _watch = call(self.name);
        self.inner.memory_info()
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        match downcast::<Self>(other) {
            Some(other) => self.inner.is_equal(&other.inner),
            None => self.inner.is_equal(other),
        }
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        let _watch = call(self.name);
        self.inner.statistics()
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let _watch = call(self.name);
        self.inner.trim(keep_bytes)
    }

    forward_to_upstream!(self.inner, except allocate, deallocate, memory_info, is_equal, statistics, trim);
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _watch = call(self.name);
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _watch = call(self.name);
        f.debug_struct("Watched").field("name", &self.name).field("inner", &self.inner).finish()
    }
}
