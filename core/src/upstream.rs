//! Follows memory that a resource gives back to its upstream.

use std::iter;

use crate::{DeviceMemoryResource, Result};

/// Trims `upstream` after a resource has returned `released` bytes to it. Returns the total number of bytes
/// that reached the device. If `upstream` passes frees directly to the device, the total includes `released`.
///
/// # Errors
/// The errors of [`DeviceMemoryResource::trim`].
pub fn trim_upstream(upstream: &dyn DeviceMemoryResource, released: u64, keep_bytes: u64) -> Result<u64> {
    let arrived = if passes_frees_on(upstream) { released } else { 0 };
    Ok(arrived + upstream.trim(keep_bytes)?)
}

/// Returns whether memory that goes back to `upstream` reaches the device at once: the base of the stack is
/// plain memory, and no layer keeps free memory. A layer that submits work is stream-ordered, yet keeps
/// nothing.
fn passes_frees_on(upstream: &dyn DeviceMemoryResource) -> bool {
    let base = iter::successors(Some(upstream), |resource| resource.upstream()).last();
    let keeps_none = || upstream.statistics().is_none_or(|known| known.bytes_free() == 0);
    base.is_some_and(|base| !base.is_stream_ordered()) && keeps_none()
}
