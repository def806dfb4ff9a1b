//! The bodies of the driver's methods with a default.

use super::error::{DriverError, DriverResult};
use super::types::HostPtr;
use crate::Layout;

/// Returns the error of a driver that lacks a function.
pub(super) fn unsupported<T>(call: &'static str) -> DriverResult<T> {
    Err(DriverError::new(DriverError::NOT_SUPPORTED, call))
}

/// Allocates host memory from the system's allocator.
pub(super) fn pageable_alloc(layout: Layout) -> DriverResult<HostPtr> {
    let refused = || DriverError::new(DriverError::OUT_OF_MEMORY, "malloc");
    let layout = layout.of_host().filter(|layout| layout.size() > 0).ok_or_else(refused)?;
    // SAFETY: the size is not zero.
    let memory = unsafe { std::alloc::alloc(layout) };
    if memory.is_null() { Err(refused()) } else { Ok(HostPtr(memory.expose_provenance())) }
}

/// Frees memory from [`pageable_alloc`].
///
/// # Safety
/// The memory came from [`pageable_alloc`] with this layout, and nothing uses it.
pub(super) unsafe fn pageable_free(ptr: HostPtr, layout: Layout) {
    if let Some(layout) = layout.of_host() {
        // SAFETY: the caller's promise.
        unsafe { std::alloc::dealloc(ptr.as_mut_ptr(), layout) }
    }
}
