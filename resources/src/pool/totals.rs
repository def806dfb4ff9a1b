//! Adds up the sizes and counts of a pool.

use std::sync::atomic::Ordering;

use millpond_core::ResourceStatistics;

use crate::pool::heaps::Heaps;

impl Heaps {
    /// Returns sizes and counts, but not the largest free block. Its ladder counts cover only allocations
    /// that did not take the pool's lock.
    pub(crate) fn totals(&self) -> ResourceStatistics {
        let held = self.store.totals();
        let mut totals = ResourceStatistics::default()
            .bytes_reserved(held.bytes_reserved)
            .peak_bytes_reserved(held.peak_bytes_reserved)
            .bytes_beyond_slack(held.beyond_slack)
            .blocks_free(held.blocks_free)
            .regions(held.regions as u64);
        for (_, arena) in self.shared.arenas.each() {
            totals.blocks_free += arena.heap.blocks_free;
        }
        // Threads change their counters meanwhile, so a sum may miss one side of a block that two threads
        // use.
        let (mut live, mut requested, mut blocks_held, mut blocks) = (0, 0, 0, 0);
        self.shared.thread_caches.each(|thread_cache| {
            let thread = thread_cache.counts.totals();
            live += thread.live_bytes;
            requested += thread.live_requested;
            blocks_held += thread.blocks_held as i64;
            blocks += thread.allocations as i64 - thread.deallocations as i64;
            totals.ladder.own_stream += thread.own_stream;
            totals.ladder.completed += thread.completed;
            totals.deallocations += thread.deallocations;
            totals.frees += thread.frees;
        });
        let saved = self.shared.saved_by_exact_size.load(Ordering::Relaxed);
        totals.bytes_in_use = (live.max(0) as u64).saturating_sub(saved);
        totals.bytes_requested = (requested.max(0) as u64).min(totals.bytes_in_use);
        totals.blocks_in_use = blocks.max(0) as u64;
        totals.blocks_free += blocks_held.max(0) as u64;
        totals.peak_bytes_in_use = self.shared.thread_caches.peak_bytes().max(live).max(0) as u64;
        totals
    }
}
