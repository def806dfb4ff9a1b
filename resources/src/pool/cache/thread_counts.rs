//! Counts what each thread allocates, frees and caches, without a lock.

use std::sync::atomic::compiler_fence;

use millpond_core::FreeCounts;

use crate::heap::size_class::LARGEST_SMALL;
use crate::pool::cache::contention::Contention;
use crate::sync::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use crate::tuning::FREES_PER_LIMITS;

/// Adds to a counter that one thread writes and all read.
#[inline]
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Adds to a signed counter that one thread writes and all read.
#[inline]
pub(crate) fn add_signed(counter: &AtomicI64, by: i64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Counters of a thread in one pool, which only that thread writes and all threads read.
///
/// The stream caches count the bytes that they hold. The pool counts the bytes that it allocates and frees
/// past them. The live bytes are the difference. So a push or a pop costs few stores.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ThreadCounts {
    /// Bytes pushed to stream caches, less the bytes that the thread popped.
    pub(crate) cached_bytes: AtomicI64,
    /// The part of `cached_bytes` in large blocks.
    pub(super) large_bytes: AtomicI64,
    /// If `cached_bytes` falls below the sum of this and `lent`, the thread exceeds its quota of live bytes:
    /// see [`peak`](crate::pool::cache::peak).
    pub(crate) floor: AtomicI64,
    /// Quota in bytes that other threads borrowed from this one. Written by those threads.
    pub(crate) lent: AtomicI64,
    /// Like `cached_bytes`, but counts the sizes of requests before rounding.
    cached_requested: AtomicI64,
    pops: AtomicU64,
    pushes: AtomicU64,
    /// Blocks that the thread took out of its stream caches to free them.
    evicted_blocks: AtomicU64,
    /// Blocks freed past the stream caches when the cache limits were last updated.
    limits_set_at: AtomicU64,
    /// Bytes that this thread allocated past the stream caches, less the bytes that it freed past them; may
    /// be negative.
    live_bytes: AtomicI64,
    live_requested: AtomicI64,
    allocations: AtomicU64,
    deallocations: AtomicU64,
    /// Deallocations that freed a block to an arena without the pool's lock.
    pub(crate) freed_to_arena: AtomicU64,
    /// Allocations from an arena that took a block of the requesting stream.
    pub(crate) own_stream: AtomicU64,
    /// Allocations from an arena that took an unowned block.
    pub(crate) completed: AtomicU64,
    /// The thread's arena.
    pub(crate) shard: AtomicU8,
    pub(crate) contention: Contention,
    /// Whether the thread has ended.
    pub(crate) orphaned: AtomicBool,
    /// Whether the pool was dropped.
    pub(crate) is_closed: AtomicBool,
    flushed: Flushed,
}

/// The blocks that any thread flushed from the stream caches.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Flushed {
    /// Bytes of the small blocks.
    bytes: AtomicI64,
    blocks: AtomicU64,
}

/// The sums of a thread's counters.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ThreadTotals {
    /// Bytes that this thread allocated, less the bytes that it freed; may be negative.
    pub(crate) live_bytes: i64,
    pub(crate) live_requested: i64,
    pub(crate) allocations: u64,
    pub(crate) deallocations: u64,
    pub(crate) frees: FreeCounts,
    pub(crate) own_stream: u64,
    pub(crate) completed: u64,
    /// Blocks in the thread's stream caches.
    pub(crate) blocks_held: u64,
}

impl ThreadCounts {
    /// Counts `bytes` that the thread is about to allocate past the stream caches. The caller then takes a
    /// lock. Its exchange is the fence between this call and [`exceeds_quota`](Self::exceeds_quota).
    pub(crate) fn begin_allocation(&self, bytes: u64) {
        add_signed(&self.floor, bytes as i64);
        compiler_fence(Ordering::SeqCst);
    }

    /// Undoes [`begin_allocation`](Self::begin_allocation) if no block was found.
    pub(crate) fn cancel_allocation(&self, bytes: u64) {
        add_signed(&self.floor, -(bytes as i64));
    }

    /// Counts the allocation that [`begin_allocation`](Self::begin_allocation) began.
    pub(crate) fn end_allocation(&self, bytes: u64, requested: u64) {
        add_signed(&self.live_bytes, bytes as i64);
        add_signed(&self.live_requested, requested as i64);
        add(&self.allocations, 1);
    }

    /// Counts a block of `bytes` that was freed past the stream caches.
    pub(crate) fn count_deallocation(&self, bytes: u64, requested: u64) {
        add_signed(&self.live_bytes, -(bytes as i64));
        add_signed(&self.live_requested, -(requested as i64));
        add_signed(&self.floor, -(bytes as i64));
        add(&self.deallocations, 1);
    }

    /// Returns whether the thread freed enough blocks past its stream caches to update the cache limits.
    pub(crate) fn are_limits_due(&self) -> bool {
        let (freed, are_due) = self.frees_for_limits();
        if are_due {
            self.limits_set_at.store(freed, Ordering::Relaxed);
        }
        are_due
    }

    /// Returns the number of frees so far, and whether [`are_limits_due`](Self::are_limits_due) will return
    /// `true`.
    pub(crate) fn frees_for_limits(&self) -> (u64, bool) {
        let freed = self.deallocations.load(Ordering::Relaxed) + self.evicted_blocks.load(Ordering::Relaxed);
        (freed, freed >= self.limits_set_at.load(Ordering::Relaxed) + FREES_PER_LIMITS)
    }

    /// Returns counters that show the thread's activity: each call of the thread changes at least one. So two
    /// equal results mean that the thread made no call in between.
    pub(crate) fn activity(&self) -> ([i64; 2], [u64; 5]) {
        let bytes = [&self.cached_bytes, &self.floor];
        let counts = [&self.pops, &self.pushes, &self.evicted_blocks, &self.allocations, &self.deallocations];
        (bytes.map(|it| it.load(Ordering::Relaxed)), counts.map(|it| it.load(Ordering::Relaxed)))
    }

    /// Returns the bytes of the small blocks in the thread's stream caches.
    #[inline]
    pub(crate) fn small_bytes_held(&self) -> u64 {
        let others = self.flushed.bytes.load(Ordering::Relaxed) + self.large_bytes.load(Ordering::Relaxed);
        (self.cached_bytes.load(Ordering::Relaxed) - others).max(0) as u64
    }

    /// Returns whether a large block may be in the thread's stream caches.
    pub(crate) fn may_have_large(&self) -> bool {
        self.large_bytes.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(crate) fn count_push(&self, bytes: u64, requested: u64) {
        add_signed(&self.cached_bytes, bytes as i64);
        add_signed(&self.cached_requested, requested as i64);
        add(&self.pushes, 1);
    }

    /// Counts a block that the thread is about to pop. The caller then takes it by an exchange. That is the
    /// fence between this call and [`exceeds_quota`](Self::exceeds_quota).
    #[inline]
    pub(crate) fn begin_pop(&self, bytes: u64) {
        add_signed(&self.cached_bytes, -(bytes as i64));
    }

    /// Undoes [`begin_pop`](Self::begin_pop) if no block was found.
    #[inline]
    pub(super) fn cancel_pop(&self, bytes: u64) {
        add_signed(&self.cached_bytes, bytes as i64);
    }

    #[inline]
    pub(crate) fn end_pop(&self, requested: u64) {
        add_signed(&self.cached_requested, -(requested as i64));
        add(&self.pops, 1);
    }

    /// Counts a block that the thread took out of a stream cache to free it.
    pub(super) fn count_eviction(&self, bytes: u64) {
        self.forget(bytes);
        add(&self.evicted_blocks, 1);
    }

    /// Subtracts a block that left a stream cache without being allocated.
    pub(super) fn forget(&self, bytes: u64) {
        add_signed(&self.cached_bytes, -(bytes as i64));
        add_signed(&self.live_bytes, -(bytes as i64));
        // Stored after `cached_bytes`, so that no other thread sees more quota than this one has.
        let floor = self.floor.load(Ordering::Relaxed).wrapping_sub(bytes as i64);
        self.floor.store(floor, Ordering::Release);
    }

    /// Counts a block that any thread flushed from a stream cache.
    pub(super) fn count_flush(&self, bytes: u64) {
        if bytes <= LARGEST_SMALL {
            self.flushed.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
        }
        self.flushed.blocks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> ThreadTotals {
        let (live, cached) =
            (self.live_bytes.load(Ordering::Relaxed), self.cached_bytes.load(Ordering::Relaxed));
        let (pops, pushes) = (self.pops.load(Ordering::Relaxed), self.pushes.load(Ordering::Relaxed));
        let requested = self.live_requested.load(Ordering::Relaxed);
        let flushed = self.flushed.blocks.load(Ordering::Relaxed);
        let evicted = self.evicted_blocks.load(Ordering::Relaxed);
        let past_cache = self.freed_to_arena.load(Ordering::Relaxed);
        let deallocations = self.deallocations.load(Ordering::Relaxed);
        // Saturating: the thread counts meanwhile.
        let heap = deallocations.saturating_sub(past_cache);
        ThreadTotals {
            live_bytes: live - cached,
            live_requested: requested - self.cached_requested.load(Ordering::Relaxed),
            allocations: self.allocations.load(Ordering::Relaxed) + pops,
            deallocations: deallocations + pushes,
            frees: FreeCounts::default()
                .cached(pushes)
                .past_cache(past_cache)
                .heap(heap)
                .evicted(evicted)
                .flushed(flushed),
            own_stream: self.own_stream.load(Ordering::Relaxed) + pops,
            completed: self.completed.load(Ordering::Relaxed),
            blocks_held: pushes.wrapping_sub(pops).wrapping_sub(flushed + evicted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_due_after_enough_frees_of_both_kinds() {
        let counts = ThreadCounts::default();
        for _ in 0..2 {
            for _ in 0..FREES_PER_LIMITS / 2 {
                assert!(!counts.are_limits_due());
                counts.count_deallocation(256, 256);
            }
            for _ in 0..FREES_PER_LIMITS / 2 {
                assert!(!counts.are_limits_due());
                counts.count_eviction(256);
            }
            assert!(counts.are_limits_due());
        }
        assert!(!counts.are_limits_due());
    }

    /// A search for quota treats two equal readings as proof that the thread did nothing in between. So a
    /// call must show even if it undoes the previous one.
    #[test]
    fn the_activity_is_never_the_same_again() {
        let counts = ThreadCounts::default();
        let calls: [fn(&ThreadCounts); 5] = [
            |counts| (counts.begin_allocation(256), counts.end_allocation(256, 256)).1,
            |counts| counts.count_push(256, 256),
            |counts| (counts.begin_pop(256), counts.end_pop(256)).1,
            |counts| counts.count_eviction(256),
            |counts| counts.count_deallocation(256, 256),
        ];
        let mut seen = vec![counts.activity()];
        for call in calls.into_iter().cycle().take(4 * calls.len()) {
            call(&counts);
            assert!(!seen.contains(&counts.activity()), "call {}", seen.len());
            seen.push(counts.activity());
        }
    }
}
