//! When memory is out, waits until other threads free memory.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

use millpond_core::{
    DeviceMemoryResource, DevicePtr, Error, FailureTally, Layout, Result, StreamRef, Traits, debug_as_text,
    downcast, forward_to_upstream,
};

pub use layer::RetryLayer;

use crate::timeout::{self, Timeout};
use crate::waiting::{Frees, leaves_to_above};

/// Retries requests while the upstream is out of memory. Between retries, the adaptor waits until other
/// threads free blocks. [`timeout`](RetryLayer::timeout) limits the wait.
///
/// TensorFlow's BFC allocator works in the same way. Such a wait suits programs whose threads hold much
/// memory for short times. If the program has only one thread, the wait is useless, because no other thread
/// frees memory.
///
/// After the timeout, the request fails with the upstream's error. A request fails at once if it is
/// [impossible](Error::is_impossible), or larger than the device's memory. A program can end the wait early
/// ([`interrupt`](millpond_core::interrupt)). Then the request fails with the upstream's error, too.
///
/// While no thread waits, a deallocation costs one extra load. A thread that waits or retries holds no lock
/// of this adaptor. But if this adaptor is below [`thread_safe`](crate::ThreadSafeResourceAdaptor), the
/// thread would hold the lock of `thread_safe`. In that case, `thread_safe` releases its lock, and waits
/// instead of this adaptor. Only the host waits, so a graph that is being captured is not affected.
///
/// ```
/// use std::time::Duration;
///
/// use millpond_adaptors::{LimitingLayer, RetryLayer};
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let stack = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()))
///     .layer(LimitingLayer::new(1 << 20))?
///     .layer(RetryLayer::new().timeout(Duration::from_secs(60)))?;
/// let block = stack.allocate_bytes(1 << 20, StreamRef::LEGACY)?;
/// let second = std::thread::scope(|scope| {
///     let waiting = scope.spawn(|| stack.allocate_bytes(1 << 20, StreamRef::LEGACY));
///     // SAFETY: the block is live, unused, and freed with its size.
///     unsafe { stack.deallocate_bytes(block, 1 << 20, StreamRef::LEGACY) };
///     waiting.join().unwrap()
/// })?;
/// # // SAFETY: as above.
/// # unsafe { stack.deallocate_bytes(second, 1 << 20, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct RetryResourceAdaptor<R> {
    upstream: R,
    timeout: Timeout,
    frees: Frees,
    failures: FailureTally,
}

impl<R: DeviceMemoryResource> RetryResourceAdaptor<R> {
    fn new(upstream: R, timeout: Timeout) -> Self {
        Self { upstream, timeout, frees: Frees::default(), failures: FailureTally::default() }
    }

    /// Returns the longest time that a request waits.
    pub fn timeout(&self) -> Duration {
        self.timeout.0
    }

    #[cold]
    fn retry(&self, first: Error, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let (begin, timeout) = (Instant::now(), self.timeout.0);
        let never_fits = || self.upstream.memory_info().is_ok_and(|info| layout.bytes() > info.total);
        if first.is_impossible() || timeout.is_zero() || never_fits() || leaves_to_above(timeout) {
            return Err(first);
        }
        self.frees
            .wait_for(begin, timeout, Error::is_out_of_memory, || self.upstream.allocate(layout, stream))
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for RetryResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let allocated = match self.upstream.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() => self.retry(error, layout, stream),
            other => other,
        };
        allocated.map_err(|error| self.failures.noted(error).in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises hold for the upstream too: the block came from there.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
        self.frees.note();
    }

    /// Two adaptors are equal if their upstreams are equal. If a block is freed through another adaptor, the
    /// free does not wake threads that wait in this adaptor.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, FailureTally>(|it| &it.failures);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, provide);
}

impl<R: fmt::Display> fmt::Display for RetryResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+retry", self.upstream)?;
        if self.timeout.0 != timeout::DEFAULT_TIMEOUT {
            write!(f, ":timeout={}", self.timeout)
        } else {
            Ok(())
        }
    }
}

debug_as_text!(RetryResourceAdaptor<R: fmt::Display>);
