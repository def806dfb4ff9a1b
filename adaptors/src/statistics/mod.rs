//! Counts bytes and allocations: live, peak and total.

mod counters;
pub(crate) mod layer;
mod profiler;
pub(crate) mod tally;
#[cfg(test)]
mod tests;

use std::fmt;

use millpond_core::{
    DeviceMemoryResource, DevicePtr, FailureTally, LayerMemory, Layout, ReportsMemory, ResourceStatistics,
    Result, StreamRef, Traits, debug_as_text, downcast, forward_to_upstream, misuse,
};

pub use counters::{Counter, Counters};
pub use layer::StatisticsLayer;
pub use profiler::{MemoryRecord, ProfilerRecords, ProfilerReport, ProfilerScope, ReportOrder};

use tally::Tally;

/// Counts bytes and allocations: the live number, the peak and the total of each.
///
/// The adaptor counts the bytes that callers request, before the upstream rounds them up. A request for zero
/// bytes counts as one allocation of zero bytes, as in RMM. The adaptor counts an allocation after the
/// upstream has returned the block, and a deallocation before it calls the upstream. So the counters never
/// exceed the bytes that are really live. If the upstream refuses a deallocation, the adaptor counts the
/// block as live again.
///
/// All counters are exact with any number of threads, including the peaks. Each thread has its own counters.
/// A thread reads the counters of other threads only if the peak may rise, so threads rarely wait for each
/// other. The adaptor holds no lock while it calls the upstream.
///
/// [`statistics`](DeviceMemoryResource::statistics) returns the upstream's statistics. If the upstream keeps
/// no statistics, as in plain CUDA memory, the method returns the counts of this adaptor, over all levels.
///
/// # Levels
/// A level is a set of counters for one phase of the program. If phases are nested, their levels are nested,
/// too. [`push_counters`](Self::push_counters) starts a new level with all counters at zero.
/// [`pop_counters`](Self::pop_counters) ends the newest level, and adds its counters to the next outer level.
/// The outer level then has the same counts as without the inner level. [`ProfilerRecords`] manages levels
/// for named phases, and prints a table of the phases.
///
/// ```
/// use millpond_adaptors::StatisticsResourceAdaptor;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = StatisticsResourceAdaptor::new(cuda);
/// let kept = resource.allocate_bytes(1000, StreamRef::LEGACY)?;
///
/// resource.push_counters();
/// let block = resource.allocate_bytes(500, StreamRef::LEGACY)?;
/// // SAFETY: the block is live, unused, and freed with its layout.
/// unsafe { resource.deallocate_bytes(block, 500, StreamRef::LEGACY) };
/// let part = resource.pop_counters()?;
///
/// assert_eq!((part.bytes.current, part.bytes.peak), (0, 500));
/// let all = resource.counters();
/// assert_eq!((all.bytes.current, all.bytes.peak, all.bytes.total), (1000, 1500, 1500));
/// assert_eq!(resource.to_string(), "cuda+statistics");
/// # // SAFETY: as above.
/// # unsafe { resource.deallocate_bytes(kept, 1000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct StatisticsResourceAdaptor<R> {
    upstream: R,
    tally: Tally,
    failures: FailureTally,
}

impl<R> StatisticsResourceAdaptor<R> {
    /// Creates an adaptor that counts the allocations of `upstream` from now on.
    pub fn new(upstream: R) -> Self {
        Self { upstream, tally: Tally::new(), failures: FailureTally::default() }
    }

    /// Returns the counters of the newest level.
    pub fn counters(&self) -> Counters {
        self.tally.current()
    }

    /// Starts a new level with all counters at zero. Returns the counters of the next outer level.
    pub fn push_counters(&self) -> Counters {
        self.tally.push()
    }

    /// Restarts all counters, and ends all levels except the outermost level. Afterwards, the counters show
    /// the live blocks as if they had been allocated at this moment.
    pub fn clear_counters(&self) {
        self.tally.clear();
        self.failures.clear();
    }

    /// Ends the newest level, and adds its counters to the next outer level. Returns the counters of the
    /// ended level.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if only the outermost level is left.
    pub fn pop_counters(&self) -> Result<Counters> {
        self.tally.pop()
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for StatisticsResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        match self.upstream.allocate(layout, stream) {
            Ok(ptr) => {
                self.tally.allocated(layout.bytes());
                Ok(ptr)
            }
            Err(error) => {
                self.tally.failed();
                Err(self.failures.noted(error).in_stack(self))
            }
        }
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.tally.deallocated(layout.bytes());
        misuse::undo_if_refused(
            ptr,
            // SAFETY: the caller's promises hold for the upstream too: the block came from there.
            || unsafe { self.upstream.deallocate(ptr, layout, stream) },
            || self.tally.not_deallocated(layout.bytes()),
        );
    }

    /// Two adaptors are equal if their upstreams are equal, as in RMM. The adaptor through which a block is
    /// freed counts the free.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        Some(self.tally.statistics(self.upstream.statistics(), 0))
    }

    fn provide(&self, traits: &mut Traits) {
        traits
            .add::<Self, dyn crate::AllocationCounters>(|it| it)
            .add::<Self, FailureTally>(|it| &it.failures)
            .add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, statistics, provide);
}

impl<R: fmt::Display> fmt::Display for StatisticsResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+statistics", self.upstream)
    }
}

debug_as_text!(StatisticsResourceAdaptor<R: fmt::Display>);

impl<R> crate::AllocationCounters for StatisticsResourceAdaptor<R> {
    fn counters(&self) -> Counters {
        self.counters()
    }

    fn push_counters(&self) -> Counters {
        self.push_counters()
    }

    fn pop_counters(&self) -> Result<Counters> {
        self.pop_counters()
    }
}

impl<R: DeviceMemoryResource> ReportsMemory for StatisticsResourceAdaptor<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.statistics = Some(self.tally.as_statistics());
        memory
    }

    fn clear_counters(&self) {
        self.clear_counters();
    }
}
