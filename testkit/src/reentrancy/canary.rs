//! Layers that hold a lock while their upstream runs. The check must find these layers.

use std::fmt;

use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Layout, MemoryInfo, ResourceStatistics, Result, StreamRef,
    debug_as_text, forward_to_upstream,
};
use parking_lot::{Mutex, ReentrantMutex};

/// A layer with a mistake: it holds a lock while its upstream runs.
pub struct HoldsLock {
    upstream: AnyResource,
    stack: String,
    lock: Lock,
}

#[derive(Debug)]
enum Lock {
    Plain(Mutex<()>),
    Reentrant(ReentrantMutex<()>),
}

impl HoldsLock {
    /// Uses a lock for which a second call of the same thread waits for ever.
    pub fn new(upstream: AnyResource) -> Self {
        Self::with(upstream, Lock::Plain(Mutex::new(())))
    }

    /// Uses a lock for which only other threads wait.
    pub fn reentrant(upstream: AnyResource) -> Self {
        Self::with(upstream, Lock::Reentrant(ReentrantMutex::new(())))
    }

    fn with(upstream: AnyResource, lock: Lock) -> Self {
        Self { stack: upstream.to_string(), upstream, lock }
    }

    fn locked<T>(&self, body: impl FnOnce() -> T) -> T {
        match &self.lock {
            Lock::Plain(lock) => {
                let _held = lock.lock();
                body()
            }
            Lock::Reentrant(lock) => {
                let _held = lock.lock();
                body()
            }
        }
    }
}

// SAFETY: every call goes to upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for HoldsLock {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.locked(|| self.upstream.allocate(layout, stream))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises hold for upstream, where the block came from.
        self.locked(|| unsafe { self.upstream.deallocate(ptr, layout, stream) });
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.locked(|| self.upstream.memory_info())
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.locked(|| self.upstream.statistics())
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.locked(|| self.upstream.trim(keep_bytes))
    }

    forward_to_upstream!(except allocate, deallocate, memory_info, statistics, trim);
}

impl fmt::Display for HoldsLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+holds_lock", self.stack)
    }
}

debug_as_text!(HoldsLock);
