//! An upstream that calls back the layers above it.

use std::fmt;

use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Layout, MemoryInfo, ResourceStatistics, Result, StreamRef,
    forward_to_upstream,
};

use super::probe::Probe;

/// Forwards to a resource, and calls the probe before each call that may do something. Calls that only return
/// the driver or a property of the memory do not call the probe.
pub(super) struct Probed {
    pub(super) upstream: AnyResource,
    pub(super) probe: Probe,
}

// SAFETY: every call goes to upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Probed {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.probe.call("upstream's allocate");
        self.upstream.allocate(layout, stream)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.probe.call("upstream's deallocate");
        // SAFETY: the caller's promises hold for upstream, where the block came from.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.probe.call("upstream's memory_info");
        self.upstream.memory_info()
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.probe.call("upstream's statistics");
        self.upstream.statistics()
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.probe.call("upstream's trim");
        self.upstream.trim(keep_bytes)
    }

    forward_to_upstream!(except allocate, deallocate, memory_info, statistics, trim);
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.probe.call("upstream's Display");
        write!(f, "{}", self.upstream)
    }
}

impl fmt::Debug for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.probe.call("upstream's Debug");
        f.debug_struct("Probed").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}
