//! Moves managed memory to the device when it is allocated.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_core::driver::{DeviceAttribute, MemoryKind, call, has_attribute};
use millpond_core::{
    DeviceMemoryResource, DevicePtr, DriverError, Error, Layout, Result, StreamRef, Traits, debug_as_text,
    downcast, forward_to_upstream,
};

pub use layer::PrefetchLayer;

/// Moves each block of managed memory to the device when the block is allocated, on the stream of the
/// allocation (`cuMemPrefetchAsync`). Without a prefetch, the first kernel that uses the block moves the
/// pages one by one, at each page fault.
///
/// Put the adaptor over `managed` or `system`, or over a pool of one of them. (Memory of `system` moves in
/// the same way as managed memory.) The adaptor prefetches nothing in these cases:
/// - The device or the host cannot access the memory.
/// - The device cannot use managed memory at the same time as the host.
/// - The driver cannot move this kind of memory. An example is pinned memory. In this case, the driver
///   refuses the first prefetch, and the adaptor does not try again.
/// - The stream captures a graph.
///
/// If a prefetch fails for another reason, the adaptor logs the error and still returns the block.
///
/// A prefetch is work on the stream of the allocation, so a block is ready only for that stream. So the
/// adaptor is stream-ordered, even if its upstream is not. If the adaptor never prefetches, it is
/// stream-ordered only if its upstream is.
///
/// ```
/// use millpond_adaptors::PrefetchLayer;
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::ManagedMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stack = ManagedMemoryResource::new(device.clone()).layer(PrefetchLayer::new())?;
/// let block = stack.allocate_bytes(1000, StreamRef::LEGACY)?;
/// assert_eq!(device.last_prefetch(), Some((block, 1000, false)));
/// # // SAFETY: the block is live, unused, and freed with its size.
/// # unsafe { stack.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct PrefetchResourceAdaptor<R> {
    upstream: R,
    /// Whether it tries to prefetch from the start. Its answer about stream order, which never changes,
    /// depends on this.
    may_prefetch: bool,
    /// Whether the driver refused to prefetch this memory.
    is_refused: AtomicBool,
}

impl<R: DeviceMemoryResource> PrefetchResourceAdaptor<R> {
    /// Creates an adaptor that prefetches the blocks of `upstream`.
    pub fn new(upstream: R) -> Self {
        let concurrent = || has_attribute(&**upstream.driver(), DeviceAttribute::ConcurrentManagedAccess);
        let reach = upstream.accessibility();
        // Memory of the host alone is freed without a wait for the device.
        let may_prefetch = reach.host && reach.device && matches!(concurrent(), Ok(true));
        Self { upstream, may_prefetch, is_refused: AtomicBool::new(false) }
    }

    /// Returns whether the adaptor prefetches blocks. The result is `false` after the adaptor has found that
    /// this memory or this device does not support prefetches.
    pub fn is_prefetching(&self) -> bool {
        self.may_prefetch && !self.is_refused.load(Ordering::Relaxed)
    }

    fn prefetch(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let driver = &**self.driver();
        // For the legacy stream, the result is an error while a blocking stream captures.
        if !matches!(call(driver, |driver| driver.stream_is_capturing(stream)), Ok(false)) {
            return;
        }
        // SAFETY: the block is live, holds that many bytes, and is ordered for this stream.
        let submit =
            || call(driver, |driver| unsafe { driver.mem_prefetch_async(ptr, bytes, false, stream) });
        if let Err(error) = submit() {
            let is_refused = self.is_refusal(ptr, &error);
            if is_refused {
                self.is_refused.store(true, Ordering::Relaxed);
            }
            tracing::debug!(
                target: "millpond::adaptors", stack = %self, %error, is_refused, "a prefetch failed"
            );
        }
    }

    /// Returns whether the driver cannot prefetch such memory at all.
    fn is_refusal(&self, ptr: DevicePtr, error: &Error) -> bool {
        let Some(code) = error.driver_error() else { return false };
        let kind = || call(&**self.driver(), |driver| driver.pointer_kind(ptr));
        let is_managed = || matches!(kind(), Ok(MemoryKind::Managed));
        code.is_unsupported() || code.code() == DriverError::INVALID_VALUE && !is_managed()
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds. A prefetch changes
// no contents, and is ordered before the next work of the call's stream, as `is_stream_ordered` says.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for PrefetchResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.upstream.allocate(layout, stream).map_err(|error| error.in_stack(self))?;
        if self.is_prefetching() && !ptr.is_null() {
            self.prefetch(ptr, layout.bytes(), stream);
        }
        Ok(ptr)
    }

    /// Two adaptors are equal if their upstreams are equal.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
    }

    fn is_stream_ordered(&self) -> bool {
        self.may_prefetch || self.upstream.is_stream_ordered()
    }

    fn provide(&self, traits: &mut Traits) {
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, is_equal, is_stream_ordered, provide);
}

impl<R: fmt::Display> fmt::Display for PrefetchResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+prefetch", self.upstream)
    }
}

debug_as_text!(PrefetchResourceAdaptor<R: fmt::Display>);
