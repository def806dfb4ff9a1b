//! Sets the cache limits: how many bytes each thread may hold in its stream caches.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::cache::thread_counts::ThreadTotals;
use crate::pool::heaps::Heaps;
use crate::tuning::{
    CACHED_BYTES, CACHED_SHARE, CACHED_SHARE_SAVING, CONTENDED_SHARE, STEADY_AFTER, STEADY_SHARE,
};

/// Stores only a changed value: a store invalidates the cache line of every thread that reads it.
fn set(limit: &AtomicU64, value: u64) {
    if limit.load(Ordering::Relaxed) != value {
        limit.store(value, Ordering::Relaxed);
    }
}

impl Heaps {
    /// Sets the cache limits.
    ///
    /// Stitching cannot use cached blocks, so with pages the limits are low while the pool grows. In the
    /// steady state threads may cache a part of the free bytes.
    pub(crate) fn set_cache_limits(&mut self) {
        let held = self.store.totals();
        let in_use = held.bytes_reserved - held.bytes_free;
        let (mut stream_caches, mut cached, mut operations) = (0, 0, 0);
        self.shared.thread_caches.each(|thread_cache| {
            let ThreadTotals { allocations, deallocations, .. } = thread_cache.counts.totals();
            operations += allocations + deallocations;
            stream_caches += thread_cache.stream_cache_count() as u64;
            cached += thread_cache.counts.small_bytes_held();
        });
        let is_steady = operations.saturating_sub(self.last_growth_at) >= STEADY_AFTER;
        let (share, least) = match self.shared.saves_memory() {
            false => (CACHED_SHARE, CACHED_BYTES),
            true => (CACHED_SHARE_SAVING, CACHED_BYTES / 4),
        };
        let in_arenas = || self.shared.arenas.each().map(|(_, arena)| arena.heap.bytes_free).sum::<u64>();
        let free = if is_steady { (held.bytes_free + in_arenas() + cached) / STEADY_SHARE } else { 0 };
        let free = if self.shared.arenas.are_contended() { free.min(in_use / CONTENDED_SHARE) } else { free };
        let cached = ((in_use / share).max(free) / stream_caches.max(1)).max(least);
        // With one stream, a thread evicts its large block before it searches, so stitching can use all
        // blocks.
        let large = if self.streams < 2 { u64::MAX } else { in_use / CACHED_SHARE_SAVING };
        let limits = &self.shared.limits;
        set(&limits.max_cached_bytes, cached);
        set(&limits.max_class_bytes, least);
        set(&limits.max_large_block, large);
        set(&limits.max_arena_block, self.shared.current_max_arena_block());
    }

    /// Returns the most driver calls needed to find out what all streams have completed: a record and a query
    /// for each stream.
    pub(crate) fn calls_to_collect(&self) -> u64 {
        2 * self.streams as u64
    }

    /// Returns the live bytes, and the number of allocations and deallocations so far.
    pub(crate) fn live_bytes_and_operations(&self) -> (u64, u64) {
        let (mut live, mut operations) = (0, 0);
        self.shared.thread_caches.each(|thread_cache| {
            let thread = thread_cache.counts.totals();
            live += thread.live_bytes;
            operations += thread.allocations + thread.deallocations;
        });
        (live.max(0) as u64, operations)
    }

    /// Notes whether memory is short: whether the last growth was refused.
    pub(crate) fn set_short(&mut self, is_short: bool) {
        self.is_short = is_short;
        self.store.set_short(is_short);
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::driver::{Driver, StreamFlags};
    use millpond_core::{DeviceMemoryResourceExt, StreamRef};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::pool::heaps::Reclaim;
    use crate::{CudaMemoryResource, PoolLayer};

    #[test]
    fn a_thread_caches_a_block_of_any_size_only_while_there_is_one_stream() {
        let device = SimDevice::new(SimConfig::h200());
        let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new()).expect("an empty pool");
        let largest_after_use_on = |stream| {
            pool.allocate_bytes(3 << 20, stream).expect("there is room");
            pool.central.with_heaps(|heaps| heaps.set_cache_limits());
            pool.shared.limits.max_large_block.load(Ordering::Relaxed)
        };
        assert_eq!(largest_after_use_on(StreamRef::LEGACY), u64::MAX);
        let other = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        assert!(largest_after_use_on(other) < 1 << 20);
        pool.allocate_bytes(4 << 30, other).expect("there is room");
        let largest = largest_after_use_on(other) * CACHED_SHARE_SAVING;
        assert!((4 << 30..5 << 30).contains(&largest), "{largest} bytes are in use");
    }

    #[test]
    fn the_stream_caches_of_a_pool_share_what_may_be_cached() {
        let device = SimDevice::new(SimConfig::h200());
        let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new()).expect("an empty pool");
        let allocate = |bytes, stream| pool.allocate_bytes(bytes, stream).expect("there is room");
        allocate(16 << 30, StreamRef::LEGACY);
        for _ in 0..4 {
            let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
            // More calls than the stream needs to have a cache.
            for _ in 0..4 {
                let ptr = allocate(1024, stream);
                // SAFETY: the block came from the pool with this size and is freed once.
                unsafe { pool.deallocate_bytes(ptr, 1024, stream) };
            }
        }
        pool.central.with_heaps(|heaps| heaps.set_cache_limits());
        let caches = pool.shared.thread_caches.my_cache(pool.id).stream_cache_count() as u64;
        assert_eq!(caches, 4, "the first stream made one call");
        let cached = pool.shared.limits.max_cached_bytes.load(Ordering::Relaxed);
        let in_use = cached * caches * CACHED_SHARE_SAVING;
        assert!((16 << 30..17 << 30).contains(&in_use), "{caches} caches of {cached} bytes");
    }

    #[test]
    fn operations_and_live_bytes_are_those_of_all_threads() {
        let device = SimDevice::new(SimConfig::h200());
        let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).expect("an empty pool");
        let allocate = |bytes| pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is room");
        let counted = || pool.central.with_heaps(|heaps| heaps.live_bytes_and_operations());
        assert_eq!(counted(), (0, 0));
        let blocks = [256, 512, 1024, 3 << 20].map(|bytes| (allocate(bytes), bytes));
        assert_eq!(counted(), ((3 << 20) + 1792, 4));
        // SAFETY: the block came from the pool with this size and is freed once.
        let free = |(ptr, bytes)| unsafe { pool.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
        std::thread::scope(|scope| scope.spawn(|| free(blocks[1])).join().expect("it frees"));
        free(blocks[3]);
        assert_eq!(counted(), (1280, 6));
        [blocks[0], blocks[2]].into_iter().for_each(free);
        assert_eq!(counted(), (0, 8));
    }

    /// After many operations without growth, threads may cache a part of the free bytes.
    #[test]
    fn threads_cache_a_part_of_the_free_bytes_in_the_steady_state() {
        let device = SimDevice::new(SimConfig::h200());
        let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).expect("an empty pool");
        let work = |bytes| {
            let ptr = pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is room");
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
        };
        let free = 16 << 30;
        work(free);
        // This flushes the block from the thread's cache.
        pool.central.with_heaps(|heaps| _ = heaps.reclaim(None, Reclaim::Large));
        let cached_after = |operations| {
            (0..operations / 2).for_each(|_| work(1024));
            pool.central.with_heaps(|heaps| heaps.set_cache_limits());
            pool.shared.limits.max_cached_bytes.load(Ordering::Relaxed)
        };
        assert_eq!(cached_after(STEADY_AFTER / 2), CACHED_BYTES / 4);
        let cached = cached_after(STEADY_AFTER) * STEADY_SHARE;
        assert!((free..free + (8 << 20)).contains(&cached), "{cached} bytes are free");
    }
}
