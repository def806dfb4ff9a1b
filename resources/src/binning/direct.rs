//! Counts the requests that neither a bin nor upstream counts.

use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::{LadderCounts, ResourceStatistics};

/// Counters of the requests that go to an upstream without statistics. Such an upstream calls the driver each
/// time, so the counters cost nothing in comparison.
#[derive(Default, Debug)]
pub(super) struct Direct {
    bytes: AtomicU64,
    peak_bytes: AtomicU64,
    allocations: AtomicU64,
    deallocations: AtomicU64,
    failures: AtomicU64,
}

impl Direct {
    pub(super) fn allocated(&self, bytes: u64) {
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        self.peak_bytes.fetch_max(now, Ordering::Relaxed);
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a deallocation. The bytes saturate, because a caller may free a block that was never handed
    /// out.
    pub(super) fn deallocated(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.deallocations.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn statistics(&self) -> ResourceStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (bytes, peak) = (read(&self.bytes), read(&self.peak_bytes));
        let (allocations, deallocations) = (read(&self.allocations), read(&self.deallocations));
        let blocks = allocations.saturating_sub(deallocations);
        let ladder =
            LadderCounts { grow: allocations, out_of_memory: read(&self.failures), ..Default::default() };
        ResourceStatistics {
            bytes_in_use: bytes,
            bytes_requested: bytes,
            peak_bytes_in_use: peak,
            bytes_reserved: bytes,
            peak_bytes_reserved: peak,
            blocks_in_use: blocks,
            regions: blocks,
            allocations,
            deallocations,
            ladder,
            ..Default::default()
        }
    }
}

/// Returns the sum of both, as of two resources side by side. Peaks are added, too, though they may be of
/// different moments.
pub(super) fn sum(one: ResourceStatistics, other: ResourceStatistics) -> ResourceStatistics {
    let (a, b) = (one.ladder, other.ladder);
    ResourceStatistics {
        bytes_in_use: one.bytes_in_use + other.bytes_in_use,
        bytes_requested: one.bytes_requested + other.bytes_requested,
        peak_bytes_in_use: one.peak_bytes_in_use + other.peak_bytes_in_use,
        bytes_reserved: one.bytes_reserved + other.bytes_reserved,
        peak_bytes_reserved: one.peak_bytes_reserved + other.peak_bytes_reserved,
        bytes_beyond_slack: one.bytes_beyond_slack + other.bytes_beyond_slack,
        largest_free_block: one.largest_free_block.max(other.largest_free_block),
        blocks_in_use: one.blocks_in_use + other.blocks_in_use,
        blocks_free: one.blocks_free + other.blocks_free,
        regions: one.regions + other.regions,
        allocations: one.allocations + other.allocations,
        deallocations: one.deallocations + other.deallocations,
        misuses: one.misuses + other.misuses,
        ladder: LadderCounts {
            own_stream: a.own_stream + b.own_stream,
            ordered: a.ordered + b.ordered,
            completed: a.completed + b.completed,
            waited: a.waited + b.waited,
            grow: a.grow + b.grow,
            reclaim: a.reclaim + b.reclaim,
            out_of_memory: a.out_of_memory + b.out_of_memory,
        },
    }
}
