//! Limits the live bytes.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;

use millpond_core::{
    ByteSize, DeviceMemoryResource, DevicePtr, Error, FailureKind, FailureTally, LayerMemory, Layout,
    MemoryInfo, OutOfMemoryReport, Remedy, ReportsMemory, Result, StreamRef, Traits, debug_as_text,
    format_bytes, forward_to_upstream, is_same, misuse,
};

pub use layer::LimitingLayer;

use crate::shards::{All, Shards};

/// Refuses requests that would raise the live bytes above a limit.
///
/// Like RMM, the adaptor counts the size of a request rounded up to
/// [`ALLOCATION_ALIGNMENT`](millpond_core::ALLOCATION_ALIGNMENT). It counts a request before it calls the
/// upstream. It stops counting the request after the upstream has failed or has taken the block back. So the
/// upstream's live bytes never exceed the limit.
///
/// The adaptor does not count a request that the adaptor itself refuses. So while it refuses a large request
/// of one thread, a small request of another thread can still succeed.
///
/// The adaptor keeps no list of blocks. If the upstream [refuses](millpond_core::misuse) a deallocation, the
/// count of live bytes stays unchanged.
///
/// ```
/// use millpond_adaptors::LimitingResourceAdaptor;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = LimitingResourceAdaptor::new(cuda, 2048);
/// let block = resource.allocate_bytes(1000, StreamRef::LEGACY)?;
/// assert_eq!(resource.allocated_bytes(), 1024);
/// let error = resource.allocate_bytes(1025, StreamRef::LEGACY).unwrap_err();
/// assert!(error.is_out_of_memory());
/// assert!(error.to_string().contains("256B more is needed"), "{error}");
/// # // SAFETY: the block is live, unused, and freed with its layout.
/// # unsafe { resource.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct LimitingResourceAdaptor<R> {
    upstream: R,
    limit_bytes: u64,
    /// The limit as it was given: in bytes, or as a share.
    limit: ByteSize,
    /// The unused bytes of the limit, divided among the threads. A thread whose share is too small looks at
    /// all shares under their locks. So a request that fits is served, and threads seldom wait for each
    /// other.
    left: Shards<u64>,
    failures: FailureTally,
}

impl<R> LimitingResourceAdaptor<R> {
    /// Creates an adaptor that limits the live bytes of `upstream` to `limit_bytes`.
    pub fn new(upstream: R, limit_bytes: u64) -> Self {
        Self::said(upstream, limit_bytes, ByteSize::Bytes(limit_bytes))
    }

    /// Stores the limit in bytes, and as it was given.
    fn said(upstream: R, limit_bytes: u64, limit: ByteSize) -> Self {
        let left = Shards::new();
        *left.mine() = limit_bytes;
        Self { upstream, limit_bytes, limit, left, failures: FailureTally::default() }
    }

    /// Returns the number of live bytes. The size of each request is rounded up. The number never exceeds
    /// [`limit_bytes`](Self::limit_bytes).
    pub fn allocated_bytes(&self) -> u64 {
        self.limit_bytes - self.sum(&self.left.all())
    }

    /// Returns the limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Counts a request if it fits; otherwise returns the live bytes.
    fn acquire(&self, bytes: u64) -> Result<Acquired<'_, R>, u64> {
        if !self.left.take(bytes) {
            self.acquire_under_all_locks(bytes)?;
        }
        Ok(Acquired { limit: self, bytes })
    }

    #[cold]
    fn acquire_under_all_locks(&self, bytes: u64) -> Result<(), u64> {
        let mut all = self.left.all();
        let sum = self.sum(&all);
        let left = sum.checked_sub(bytes).ok_or(self.limit_bytes - sum)?;
        let All { each, mine, .. } = &mut all;
        let share = left / each.len() as u64;
        each.iter_mut().for_each(|part| **part = share);
        *each[*mine] += left % each.len() as u64;
        Ok(())
    }

    /// Saturates, because a caller may free a block that was never allocated.
    fn release(&self, bytes: u64) {
        let mut mine = self.left.mine();
        *mine = mine.saturating_add(bytes).min(self.limit_bytes);
    }

    /// Returns the unused bytes of the limit.
    fn sum(&self, all: &All<'_, u64>) -> u64 {
        all.each.iter().fold(0, |sum: u64, part| sum.saturating_add(**part)).min(self.limit_bytes)
    }

    #[cold]
    fn over_limit(&self, bytes: u64, allocated: u64, layout: Layout, stream: StreamRef) -> Error {
        let short = u128::from(allocated) + u128::from(bytes) - u128::from(self.limit_bytes);
        let (limit, in_use) = (format_bytes(self.limit_bytes), format_bytes(allocated));
        let is_impossible = bytes > self.limit_bytes;
        let message = if is_impossible {
            format!(
                "the request is larger than the maximum (`limit`) of {limit}; raise it, or request less; the \
                 layer below was not asked"
            )
        } else {
            format!(
                "the maximum (`limit`) is {limit} and {in_use} are in use; free blocks, or raise it; the \
                 layer below was not asked"
            )
        };
        let mut report = OutOfMemoryReport::new(layout, stream);
        let short = u64::try_from(short).unwrap_or(u64::MAX);
        report.kind = FailureKind::Limit;
        report.is_impossible = is_impossible;
        report.short_bytes = Some(short);
        (report.held_bytes, report.live_bytes) = (allocated, allocated);
        report.maximum_bytes = Some(self.limit_bytes);
        report.remedies = vec![Remedy::raise_maximum(short, false)];
        Error::out_of_memory(layout, stream).context(message).with_report(report)
    }
}

impl<R: DeviceMemoryResource> LimitingResourceAdaptor<R> {
    #[cold]
    fn failed(&self, error: Error) -> Error {
        self.failures.noted(error).on_device(self.driver().device()).in_stack(self)
    }
}

/// The bytes of a counted request. They are given back if the upstream does not serve the request, or panics.
struct Acquired<'a, R> {
    limit: &'a LimitingResourceAdaptor<R>,
    bytes: u64,
}

impl<R> Acquired<'_, R> {
    /// Keeps the bytes counted until the block is freed.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl<R> Drop for Acquired<'_, R> {
    fn drop(&mut self) {
        self.limit.release(self.bytes);
    }
}

// SAFETY: every call that is not refused goes to the upstream with the same arguments, so its contract holds.
// A refused request allocates nothing.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for LimitingResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let Some(bytes) = layout.rounded_bytes() else {
            return Err(self.failed(Error::request_too_large(layout, stream)));
        };
        let acquired = self
            .acquire(bytes)
            .map_err(|allocated| self.failed(self.over_limit(bytes, allocated, layout, stream)))?;
        let ptr = self.upstream.allocate(layout, stream).map_err(|error| self.failed(error))?;
        acquired.keep();
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises hold for the upstream too: the block came from there.
        let free = || unsafe { self.upstream.deallocate(ptr, layout, stream) };
        let bytes = if ptr.is_null() { 0 } else { layout.rounded_bytes().unwrap_or(0) };
        misuse::if_taken(ptr, free, || self.release(bytes));
    }

    /// Returns the upstream's memory. `free` is at most the unused part of the limit.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let info = self.upstream.memory_info().map_err(|error| error.in_stack(self))?;
        Ok(MemoryInfo { free: info.free.min(self.limit_bytes - self.allocated_bytes()), ..info })
    }

    /// An adaptor is equal only to itself. If another adaptor freed a block of this adaptor, the count of
    /// live bytes would stay too high.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn provide(&self, traits: &mut Traits) {
        traits
            .add::<Self, dyn crate::AllocationLimit>(|it| it)
            .add::<Self, FailureTally>(|it| &it.failures)
            .add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, memory_info, is_equal, provide);
}

impl<R: fmt::Display> fmt::Display for LimitingResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+limiting:limit={}", self.upstream, self.limit)
    }
}

debug_as_text!(LimitingResourceAdaptor<R: fmt::Display>);

impl<R> crate::AllocationLimit for LimitingResourceAdaptor<R> {
    fn limit_bytes(&self) -> u64 {
        self.limit_bytes()
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes()
    }
}

impl<R: DeviceMemoryResource> ReportsMemory for LimitingResourceAdaptor<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.limit_bytes = Some(self.limit_bytes);
        memory.limit_used_bytes = Some(self.allocated_bytes());
        memory
    }
}
