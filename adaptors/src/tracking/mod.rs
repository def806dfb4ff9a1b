//! Records every live allocation, and reports leaks.

mod hash;
pub(crate) mod layer;
mod ledger;
mod table;
mod tag;
#[cfg(test)]
mod tests;

use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::process;
use millpond_core::{
    BlockInfo, DeviceMemoryResource, DevicePtr, Error, FailureTally, Holder, Layer, LayerMemory, Layout,
    ReportsMemory, ResourceStatistics, Result, StreamRef, Traits, debug_as_text, forward_to_upstream,
    is_same,
};

pub use layer::{Stacks, TrackingLayer};
pub use ledger::Allocation;
pub use tag::{TagGuard, tag};

use crate::statistics::tally::Tally;
use ledger::{Ledger, Origin};

/// Records every live allocation: its address, size, stream and sequence number. With [`Stacks::On`], the
/// adaptor also records the backtrace of the allocation.
///
/// The adaptor refuses to free a pointer if no live block starts there, or if the block has another size. It
/// reports the refusal through [`misuse`]. It does not call the upstream, even if the upstream could detect
/// the error itself. The adaptor removes its record of a block when the block is freed. So a second free of
/// the block is reported as a foreign pointer. A request for zero bytes gets a null pointer, and is not
/// recorded.
///
/// The adaptor records an allocation after the upstream has returned the block. It removes the record before
/// it frees the block to the upstream. So even if another thread gets the same address at once, the two
/// records are never mixed up.
///
/// If blocks are still live when the adaptor is dropped, the adaptor reports them through `tracing` as a
/// warning.
///
/// ```
/// use millpond_adaptors::TrackingResourceAdaptor;
/// use millpond_adaptors::tracking::Stacks;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = TrackingResourceAdaptor::new(cuda, Stacks::Off);
/// let block = resource.allocate_bytes(1000, StreamRef::LEGACY)?;
/// assert_eq!(resource.allocated_bytes(), 1000);
/// assert_eq!(resource.report(), format!("{block}: 1000 B, stream 0, allocation 0\n"));
/// // SAFETY: the block is live, unused, and freed with its layout.
/// unsafe { resource.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
/// assert!(resource.outstanding().is_empty());
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct TrackingResourceAdaptor<R> {
    /// The first field, so that leaks are reported before the upstream frees the memory.
    tracker: Tracker,
    upstream: R,
    failures: FailureTally,
}

#[derive(Debug)]
struct Tracker {
    ledger: Ledger,
    stacks: Stacks,
    refused: AtomicU64,
    /// The process that created the adaptor.
    process: process::Origin,
    /// The counts of this adaptor; set if the upstream keeps no statistics.
    tally: Option<Tally>,
}

impl<R: DeviceMemoryResource> TrackingResourceAdaptor<R> {
    /// Creates an adaptor that tracks the allocations of `upstream` from now on.
    pub fn new(upstream: R, stacks: Stacks) -> Self {
        let ledger = Ledger::new(upstream.to_string());
        let tally = upstream.statistics().is_none_or(|known| known.knows_only_misuses()).then(Tally::new);
        let refused = AtomicU64::new(0);
        let tracker = Tracker { ledger, stacks, refused, process: process::Origin::here(), tally };
        Self { tracker, upstream, failures: FailureTally::default() }
    }
}

impl<R: DeviceMemoryResource> Layer<R> for TrackingLayer {
    type Resource = TrackingResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(TrackingResourceAdaptor::new(upstream, self.stacks))
    }
}

impl<R> TrackingResourceAdaptor<R> {
    /// Returns every live allocation, oldest first. If other threads allocate during the call, the entries of
    /// the result may come from different moments.
    pub fn outstanding(&self) -> Vec<Allocation> {
        self.tracker.ledger.outstanding()
    }

    /// Returns the sum of the requested sizes of all live allocations, in bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.tracker.ledger.bytes()
    }

    /// Returns a text that lists every live allocation, oldest first. Each allocation has one line, followed
    /// by its backtrace if there is one. The text is empty if no allocation is live.
    pub fn report(&self) -> String {
        text(&self.outstanding())
    }
}

fn text(allocations: &[Allocation]) -> String {
    allocations.iter().map(|allocation| format!("{allocation}\n")).collect()
}

impl Tracker {
    fn allocated(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let backtrace = (self.stacks == Stacks::On).then(|| Arc::new(Backtrace::force_capture()));
        let tag = tag::current();
        let origin = (backtrace.is_some() || tag.is_some()).then_some(Origin { backtrace, tag });
        self.ledger.insert(ptr, bytes, stream, origin);
        if let Some(tally) = &self.tally {
            tally.allocated(bytes);
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        if self.process.is_elsewhere() {
            // The blocks belong to the parent process, whose threads may have been changing the ledger during
            // the fork.
            return std::mem::forget(std::mem::replace(&mut self.ledger, Ledger::new(String::new())));
        }
        let leaks = self.ledger.outstanding();
        if !leaks.is_empty() {
            let (allocations, bytes) = (leaks.len(), self.ledger.bytes());
            let were = if allocations == 1 { "allocation was" } else { "allocations were" };
            tracing::warn!(
                target: "millpond::tracking",
                stack = self.ledger.stack(),
                allocations,
                bytes,
                "{allocations} {were} never freed:\n{}",
                text(&leaks)
            );
        }
    }
}

// SAFETY: forwarded calls have the same arguments, so the upstream's contract holds. A refused block was not
// allocated by this resource, or not with that size.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for TrackingResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.upstream.allocate(layout, stream).map_err(|error| {
            self.tracker.tally.as_ref().inspect(|tally| tally.failed());
            self.with_holders(self.failures.noted(error)).in_stack(self)
        })?;
        if !ptr.is_null() {
            self.tracker.allocated(ptr, layout.bytes(), stream);
        }
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let known = if ptr.is_null() { Ok(()) } else { self.tracker.ledger.remove(ptr, layout.bytes()) };
        match known {
            Ok(()) => {
                if let Some(tally) = self.tracker.tally.as_ref().filter(|_| !ptr.is_null()) {
                    tally.deallocated(layout.bytes());
                }
                // SAFETY: the caller's promises hold for the upstream too: the block came from there.
                unsafe { self.upstream.deallocate(ptr, layout, stream) }
            }
            Err(kind) => self.refuse(kind, ptr, layout, stream),
        }
    }

    /// An adaptor is equal only to itself, because another adaptor does not know the blocks of this adaptor.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    /// Returns the upstream's statistics. If the upstream keeps no statistics, returns the counts of this
    /// adaptor. In both cases, adds the deallocations that this adaptor has refused.
    fn statistics(&self) -> Option<ResourceStatistics> {
        let refused = self.tracker.refused.load(Ordering::Relaxed);
        let Some(tally) = &self.tracker.tally else {
            return self.upstream.statistics().map(|known| known.with_more_misuses(refused));
        };
        Some(tally.statistics(self.upstream.statistics(), refused))
    }

    fn provide(&self, traits: &mut Traits) {
        traits
            .add::<Self, dyn crate::AllocationTracker>(|it| it)
            .add::<Self, FailureTally>(|it| &it.failures)
            .add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, statistics, provide);
}

impl<R: DeviceMemoryResource> TrackingResourceAdaptor<R> {
    /// Adds the holders of memory to the report of an error, if it has one.
    #[cold]
    fn with_holders(&self, mut error: Error) -> Error {
        match error.take_out_of_memory_report() {
            Some(mut report) => {
                report.holders = holders(&self.outstanding());
                error.with_report(report)
            }
            None => error,
        }
    }

    #[cold]
    fn refuse(&self, kind: MisuseKind, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.tracker.refused.fetch_add(1, Ordering::Relaxed);
        misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, self));
    }
}

impl<R: fmt::Display> fmt::Display for TrackingResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stacks = if self.tracker.stacks == Stacks::On { ":stacks=on" } else { "" };
        write!(f, "{}+tracking{stacks}", self.upstream)
    }
}

debug_as_text!(TrackingResourceAdaptor<R: fmt::Display>);

impl<R> crate::AllocationTracker for TrackingResourceAdaptor<R> {
    fn outstanding(&self) -> Vec<Allocation> {
        self.outstanding()
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes()
    }

    fn report(&self) -> String {
        self.report()
    }
}

/// Groups the allocations by tag and backtrace, largest first.
fn holders(allocations: &[Allocation]) -> Vec<Holder> {
    let mut groups: BTreeMap<(Option<String>, Option<String>), Holder> = BTreeMap::new();
    for allocation in allocations {
        let tag = allocation.tag.as_deref().map(str::to_owned);
        let backtrace = allocation.backtrace.as_ref().map(ToString::to_string);
        let holder = groups.entry((tag, backtrace)).or_default();
        holder.blocks += 1;
        holder.bytes = holder.bytes.saturating_add(allocation.bytes);
    }
    let named = groups.into_iter().map(|((tag, backtrace), mut holder)| {
        (holder.tag, holder.backtrace) = (tag, backtrace);
        holder
    });
    let mut holders: Vec<Holder> = named.collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders
}

impl<R: DeviceMemoryResource> ReportsMemory for TrackingResourceAdaptor<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.holders = holders(&self.outstanding());
        memory
    }

    fn layer_figures(&self) -> LayerMemory {
        LayerMemory::default()
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        self.tracker.ledger.find(ptr).map(|found| info(&found))
    }

    fn live_blocks(&self) -> Option<Vec<BlockInfo>> {
        Some(self.outstanding().iter().map(info).collect())
    }
}

fn info(found: &Allocation) -> BlockInfo {
    let mut block = BlockInfo::default();
    (block.address, block.bytes) = (found.ptr.address(), found.bytes);
    (block.sequence, block.stream) = (Some(found.sequence), Some(found.stream.handle()));
    block.tag = found.tag.as_deref().map(str::to_owned);
    block.backtrace = found.backtrace.as_ref().map(ToString::to_string);
    block
}
