//! An adaptor for tests that calls a closure before it forwards each call.

use std::fmt;

use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, Result, StreamRef, forward_to_upstream};

pub(crate) struct Probe<R, F> {
    pub(crate) upstream: R,
    pub(crate) before: F,
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource, F: Fn(&str) + 'static> DeviceMemoryResource for Probe<R, F> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        (self.before)("allocate");
        self.upstream.allocate(layout, stream)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        (self.before)("deallocate");
        // SAFETY: the caller's promises hold for the upstream too: the block came from there.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    forward_to_upstream!(except allocate, deallocate);
}

impl<R: fmt::Display, F> fmt::Display for Probe<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+probe", self.upstream)
    }
}

impl<R: fmt::Debug, F> fmt::Debug for Probe<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}
