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
        let ladder = LadderCounts::default().grow(allocations).out_of_memory(read(&self.failures));
        ResourceStatistics::default()
            .bytes_in_use(bytes)
            .bytes_requested(bytes)
            .peak_bytes_in_use(peak)
            .bytes_reserved(bytes)
            .peak_bytes_reserved(peak)
            .blocks_in_use(blocks)
            .regions(blocks)
            .allocations(allocations)
            .deallocations(deallocations)
            .ladder(ladder)
    }
}
