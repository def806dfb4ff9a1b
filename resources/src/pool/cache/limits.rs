//! How much threads keep in their stream caches.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::backing::Large;
use crate::pool::heaps::Heaps;

/// A thread keeps a large block only if it has at most this part of what is in use: more would be missed
/// where blocks are stitched.
const LARGE_SHARE: u64 = 4096;

/// A pool that had enough for so many operations is steady: what it has is what it needs.
const STEADY_AFTER: u64 = 1 << 15;

/// The part of what is free in a steady pool that threads may keep.
const STEADY_SHARE: u64 = 4;

/// Where threads contend, they keep this part of what is in use at most. A part of what is free is no limit
/// there: what is kept is missed by others, for whom the pool grows, and more is free.
const CONTENDED_SHARE: u64 = 12;

/// What is written is taken from all who read it, even where it stays the same.
fn set(limit: &AtomicU64, value: u64) {
    if limit.load(Ordering::Relaxed) != value {
        limit.store(value, Ordering::Relaxed);
    }
}

impl Heaps {
    /// Says what a thread may keep.
    ///
    /// What is kept is missed where blocks are stitched, so over pages it is little as long as the pool
    /// grows now and then. Where it has not for long, a part of what is free anyway is kept.
    pub(crate) fn set_cache_limits(&mut self) {
        let in_use = self.large.bytes_reserved() - self.large.bytes_free();
        let (mut stream_caches, mut held) = (0, 0);
        self.shared.thread_caches.each(|thread_cache| {
            stream_caches += thread_cache.stream_cache_count() as u64;
            held += thread_cache.counts.small_bytes_held();
        });
        let little = self.shared.saves_memory();
        let is_steady =
            self.live_bytes_and_operations().1.saturating_sub(self.last_growth_at) >= STEADY_AFTER;
        let (share, least, of_class) = match (little, is_steady) {
            (false, _) => (32, 4 << 20, 8 << 20),
            (true, true) => (1024, 1 << 20, 1 << 20),
            (true, false) => (1024, 1 << 20, 256 << 10),
        };
        let in_arenas = || self.shared.arenas.each().map(|(_, arena)| arena.heap.bytes_free).sum::<u64>();
        let free = if is_steady { (self.large.bytes_free() + in_arenas() + held) / STEADY_SHARE } else { 0 };
        let free = if self.shared.arenas.are_contended() { free.min(in_use / CONTENDED_SHARE) } else { free };
        let keep = ((in_use / share).max(free) / stream_caches.max(1)).max(least);
        // A thread that has the pool to itself gives it back before it looks for another.
        let large = if self.streams < 2 { u64::MAX } else { in_use / LARGE_SHARE };
        let limits = &self.shared.limits;
        set(&limits.keep_bytes, keep);
        set(&limits.keep_of_class, of_class);
        set(&limits.keep_large, large);
        set(&limits.small_upto, self.shared.small_upto());
    }

    /// Driver calls that it takes at most to ask all streams what they have done: a record and a query each.
    pub(crate) fn calls_of_look(&self) -> u64 {
        2 * self.streams as u64
    }

    /// Bytes handed out, and how many allocations and deallocations there were.
    pub(crate) fn live_bytes_and_operations(&self) -> (u64, u64) {
        let (mut live, mut operations) = (0, 0);
        self.shared.thread_caches.each(|thread_cache| {
            let thread = thread_cache.counts.totals();
            live += thread.live_bytes;
            operations += thread.allocations + thread.deallocations;
        });
        (live.max(0) as u64, operations)
    }

    pub(crate) fn set_short(&mut self, is_short: bool) {
        self.is_short = is_short;
        if let Large::Pages(pages) = &mut self.large {
            pages.is_short = is_short;
        }
    }
}
