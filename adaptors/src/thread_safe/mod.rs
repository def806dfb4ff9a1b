//! Puts a lock around a resource, so that threads may share it.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverHandle, Layout, MemoryInfo, ResourceStatistics,
    Result, StreamRef, Traits, downcast, is_same, is_shareable,
};
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

pub use layer::ThreadSafeLayer;

use crate::waiting::{Exclusive, Frees};

/// Lets one thread at a time into a resource, so that `R: Send` is enough to share it.
///
/// It does for resources what [`Mutex`](std::sync::Mutex) does for values. Millpond's own resources that
/// threads may share are faster without it; use it for your own, and for those that give up sharing for
/// speed.
///
/// The lock is reentrant: code below may call back into the whole stack on the same thread, for instance a
/// failure callback that frees memory. It must not wait for another thread that uses the stack: that thread
/// waits for the lock. A layer below that waits for other threads' frees, such as
/// [`retry`](crate::RetryResourceAdaptor), leaves the wait to this adaptor, which gives the lock back first.
/// Printing the resource takes no lock.
///
/// [`upstream`](DeviceMemoryResource::upstream) cannot lend a value that only the holder of the lock may use,
/// so [`find`](millpond_core::find) and the memory report do not look below this adaptor unless threads may
/// share the upstream ([`is_shareable`]): an [`AnyResource`](millpond_core::AnyResource), or a stack of
/// millpond's resources. Your own resource or layer says so by [`Traits::share`] or [`Traits::share_over`].
///
/// ```
/// use millpond_adaptors::ThreadSafeResourceAdaptor;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = ThreadSafeResourceAdaptor::new(cuda);
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| {
///             let block = resource.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
///             // SAFETY: the block is live, unused, and given back with its layout.
///             unsafe { resource.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
///         });
///     }
/// });
/// assert_eq!(resource.to_string(), "cuda+thread_safe");
/// ```
pub struct ThreadSafeResourceAdaptor<R> {
    /// Read once: a reference into the upstream could not outlive the lock.
    driver: DriverHandle,
    /// What the upstream says of itself, read once: a caller that asks needs no lock.
    stack: String,
    accessibility: Accessibility,
    is_stream_ordered: bool,
    /// Whether threads may share the upstream even without the lock.
    is_shareable: bool,
    upstream: ReentrantMutex<R>,
    /// Wakes the requests that wait for other threads' frees, without the lock.
    frees: Frees,
}

/// The upstream of the thread that has the lock.
struct Locked<'a, R> {
    upstream: ReentrantMutexGuard<'a, R>,
    exclusive: Exclusive,
}

impl<R: DeviceMemoryResource> ThreadSafeResourceAdaptor<R> {
    /// Puts `upstream` behind a lock.
    pub fn new(upstream: R) -> Self {
        Self {
            driver: Arc::clone(upstream.driver()),
            stack: upstream.to_string(),
            accessibility: upstream.accessibility(),
            is_stream_ordered: upstream.is_stream_ordered(),
            is_shareable: is_shareable(&upstream),
            upstream: ReentrantMutex::new(upstream),
            frees: Frees::default(),
        }
    }

    fn lock(&self) -> Locked<'_, R> {
        Locked { upstream: self.upstream.lock(), exclusive: Exclusive::begin() }
    }

    /// The upstream, if threads may use it without the lock.
    fn shareable(&self) -> Option<&R> {
        // SAFETY: `data_ptr` points at the upstream, which lives as long as `self`, and the lock only ever
        // gives out shared references, so this one conflicts with none. By what it says of itself, several
        // threads may use the upstream at the same time.
        self.is_shareable.then(|| unsafe { &*self.upstream.data_ptr() })
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for ThreadSafeResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let (allocated, wanted) = {
            let locked = self.lock();
            let allocated = locked.upstream.allocate(layout, stream);
            (allocated, locked.exclusive.wanted())
        };
        let allocated = match (allocated, wanted) {
            (Err(error), Some(timeout)) if error.is_out_of_memory() => {
                self.frees.wait_for(Instant::now(), timeout, || self.lock().upstream.allocate(layout, stream))
            }
            (allocated, _) => allocated,
        };
        allocated.map_err(|error| error.in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises hold for the upstream, where the block came from.
        unsafe { self.lock().upstream.deallocate(ptr, layout, stream) }
        self.frees.note();
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        self.shareable().map(|upstream| upstream as _)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.lock().upstream.memory_info().map_err(|error| error.in_stack(self))
    }

    /// Two adaptors are equal over equal upstreams that may be shared; otherwise each equals only itself.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        // Never holds both locks: another thread may take them in the other order.
        let shared = downcast::<Self>(other).and_then(|other| self.shareable().zip(other.shareable()));
        is_same(self, other) || shared.is_some_and(|(mine, theirs)| mine.is_equal(theirs))
    }

    fn is_stream_ordered(&self) -> bool {
        self.is_stream_ordered
    }

    fn accessibility(&self) -> Accessibility {
        self.accessibility
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.lock().upstream.statistics()
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.lock().upstream.trim(keep_bytes).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        if self.is_shareable {
            // SAFETY: over an upstream that is `Send`, all parts are `Send` and `Sync`.
            unsafe { traits.share_over(&[]) };
        }
    }
}

impl<R> fmt::Display for ThreadSafeResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+thread_safe", self.stack)
    }
}

/// Prints the upstream in full unless another thread has the lock.
impl<R: fmt::Debug> fmt::Debug for ThreadSafeResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("ThreadSafeResourceAdaptor");
        match self.upstream.try_lock() {
            Some(upstream) => all.field("upstream", &*upstream),
            None => all.field("upstream", &format_args!("{} (in use)", self.stack)),
        };
        all.finish()
    }
}
