//! Checks the invariants between the parts of a pool; each part checks its own.
//! docs/book/src/design/invariants.md defines their numbers.

use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;

use crate::block_map::BlockEntry;
use crate::heap::chunk::Chunk;
use crate::heap::size_class::{LARGEST_SMALL, rounded};
use crate::pool::arena::Arenas;
use crate::pool::cache::thread_counts::ThreadTotals;
use crate::pool::heaps::{Heaps, LARGE};

/// The number of blocks, their bytes, and the bytes of their requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Sum {
    blocks: u64,
    bytes: u64,
    requested: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64, requested: u64) {
        self.blocks += 1;
        self.bytes += bytes;
        self.requested += requested;
    }
}

/// The blocks in use, as the block map lists them.
#[derive(Default)]
struct Listed {
    in_use: Sum,
    /// The bytes by which the counters exceed the true bytes of blocks with exact sizes.
    saved: u64,
    /// The number of blocks, by heap.
    blocks: FxHashMap<u8, u64>,
}

impl Heaps {
    /// Panics if an invariant does not hold. No thread may be in a call of the pool meanwhile.
    pub(crate) fn validate(&self) {
        self.store.validate();
        let mut spans = 0;
        for (_, arena) in self.shared.arenas.each() {
            arena.heap.validate();
            spans += arena.validate_spans(&*self.store);
        }
        let listed = validate_block_map(self);
        let cached = validate_caches(self);
        validate_blocks(self, spans, &listed, &cached);
        validate_counters(self, &listed);
    }
}

/// Checks that each entry is found at its address, and names a block of its heap that starts there.
fn validate_block_map(heaps: &Heaps) -> Listed {
    let mut listed = Listed::default();
    heaps.shared.block_map.each(|addr, entry| {
        let found = heaps.shared.block_map.find(addr);
        assert!(
            found.is_some_and(|found| std::ptr::eq(found, entry)),
            "I16: {addr:#x} has two block entries"
        );
        validate_entry(heaps, addr, entry);
        let requested = entry.requested();
        if requested != 0 {
            *listed.blocks.entry(entry.block().0).or_default() += 1;
            // The counters count a block with an exact size as if it had the usual size.
            let usual = heaps.shared.block_bytes(requested);
            listed.in_use.add(usual, requested);
            listed.saved += usual - bytes_of(heaps, entry);
        }
    });
    listed
}

/// Checks one entry; returns whether its heap counts the block as in use.
fn validate_entry(heaps: &Heaps, addr: u64, entry: &BlockEntry) -> bool {
    let (heap, id) = entry.block();
    let start = |chunk: &Chunk| if entry.is_in_alias() { addr } else { chunk.addr };
    let found = match Arenas::shard(heap) {
        None => heaps.store.first_piece(id).map(|chunk| (start(chunk), chunk.is_in_use())),
        Some(shard) => {
            let arena = heaps.shared.arenas.lock(shard);
            arena.heap.get(id).map(|chunk| (start(chunk), chunk.is_in_use()))
        }
    };
    let starts = found.map(|(start, _)| start);
    assert_eq!(
        starts,
        Some(addr),
        "I17: {addr:#x} has an entry, but no block {id} of heap {heap} starts there"
    );
    let is_in_use = found.is_some_and(|(_, is_in_use)| is_in_use);
    let requested = entry.requested();
    if requested != 0 {
        assert!(is_in_use, "I17: {addr:#x} is in use and free");
        let bytes = bytes_of(heaps, entry);
        assert!(requested <= bytes, "I18: {requested} bytes were requested at {addr:#x}, which has {bytes}");
        let usual = heaps.shared.block_bytes(requested);
        assert_eq!(entry.is_exact_size(), bytes != usual, "I18: exact size or not at {addr:#x}");
    }
    is_in_use
}

/// Returns the bytes of a block in use.
fn bytes_of(heaps: &Heaps, entry: &BlockEntry) -> u64 {
    let (heap, id) = entry.block();
    match Arenas::shard(heap) {
        None => heaps.store.bytes_of(id),
        Some(shard) => heaps.shared.arenas.lock(shard).heap.chunk(id).bytes,
    }
}

/// Checks that each cached block is in one stream cache only, is not in use, and has the size of its slot.
/// Returns the number of cached blocks, by heap.
fn validate_caches(heaps: &Heaps) -> FxHashMap<u8, u64> {
    let (mut seen, mut by_heap) = (FxHashMap::default(), FxHashMap::default());
    let mut thread_caches = Vec::new();
    heaps
        .shared
        .thread_caches
        .each(|thread_cache| thread_caches.push((thread_cache.counts.clone(), thread_cache.stream_caches())));
    for (counts, stream_caches) in thread_caches {
        let (mut cached, mut small) = (Sum::default(), 0);
        for stream_cache in stream_caches {
            stream_cache.each_cached(|addr, most, entry| {
                let found = heaps.shared.block_map.find(addr);
                let is_same = found.is_some_and(|found| std::ptr::eq(found, entry));
                assert!(is_same, "I20: a stream cache has another block's entry for {addr:#x}");
                assert_eq!(seen.insert(addr, ()), None, "I20: two stream caches have {addr:#x}");
                assert_eq!(entry.requested(), 0, "I21: {addr:#x} is cached and in use");
                assert!(!entry.is_exact_size(), "I22: {addr:#x} is cached and has an exact size");
                assert!(validate_entry(heaps, addr, entry), "I20: {addr:#x} is cached and free");
                let bytes = bytes_of(heaps, entry);
                assert_eq!(rounded(bytes), most, "I22: {addr:#x} is cached in the wrong size class");
                *by_heap.entry(entry.block().0).or_default() += 1;
                cached.add(bytes, 0);
                small += if bytes <= LARGEST_SMALL { bytes } else { 0 };
            });
        }
        assert_eq!(counts.totals().blocks_held, cached.blocks, "I24: blocks in a thread's stream caches");
        assert_eq!(counts.small_bytes_held(), small, "I24: small bytes in a thread's stream caches");
    }
    by_heap
}

/// Checks that each block that a heap counts as in use is a span, is in use, or is cached.
fn validate_blocks(heaps: &Heaps, spans: u64, listed: &Listed, cached: &FxHashMap<u8, u64>) {
    let known = |heap: u8| listed.blocks.get(&heap).unwrap_or(&0) + cached.get(&heap).unwrap_or(&0);
    for (shard, arena) in heaps.shared.arenas.each() {
        assert_eq!(arena.heap.blocks_in_use, known(Arenas::heap_id(shard)), "I19: blocks of arena {shard}");
    }
    assert_eq!(heaps.store.totals().blocks_in_use, spans + known(LARGE), "I19: large blocks and spans");
}

/// Checks that the sums of the threads' counters match the blocks in use.
fn validate_counters(heaps: &Heaps, listed: &Listed) {
    let mut all = ThreadTotals::default();
    heaps.shared.thread_caches.each(|thread_cache| {
        let thread = thread_cache.counts.totals();
        all.live_bytes += thread.live_bytes;
        all.live_requested += thread.live_requested;
        all.allocations += thread.allocations;
        all.deallocations += thread.deallocations;
    });
    let counted = Sum {
        blocks: all.allocations.wrapping_sub(all.deallocations),
        bytes: all.live_bytes as u64,
        requested: all.live_requested as u64,
    };
    heaps.shared.thread_caches.validate_peak();
    let saved = heaps.shared.saved_by_exact_size.load(Ordering::Relaxed);
    assert_eq!(saved, listed.saved, "I23: bytes saved by blocks of exact sizes");
    assert_eq!(counted, listed.in_use, "I23: the threads' counters, and the blocks in use");
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use millpond_core::{DeviceMemoryResourceExt, StreamRef};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::block_map::Block;
    use crate::{CudaMemoryResource, PoolLayer, PoolMemoryResource};

    type TestPool = PoolMemoryResource<CudaMemoryResource>;

    /// Returns the complaint of [`validate`](Heaps::validate) about a pool with three blocks in use, after
    /// `change`. The address is the first block's.
    fn complaint(change: impl FnOnce(&TestPool, u64)) -> String {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
        let [first, ..] = [(); 3].map(|()| pool.allocate_bytes(1000, StreamRef::LEGACY).expect("room"));
        pool.validate();
        change(&pool, first.address());
        let said = catch_unwind(AssertUnwindSafe(|| pool.validate())).expect_err("the pool is broken");
        // The pool's own check at its end would fail too.
        std::mem::forget(pool);
        said.downcast_ref::<String>().expect("an assertion with figures").clone()
    }

    fn entry(pool: &TestPool, addr: u64) -> &BlockEntry {
        pool.shared.block_map.find(addr).expect("the block is there")
    }

    #[test]
    fn an_entry_must_name_a_block_that_starts_there() {
        let said = complaint(|pool, addr| {
            let (heap, chunk) = entry(pool, addr).block();
            let block = Block { heap, chunk, requested: 0, is_exact_size: false, is_in_alias: false };
            pool.shared.block_map.insert(addr + 256, block);
        });
        assert!(said.contains("I17") && said.contains("starts there"), "{said}");
    }

    #[test]
    fn blocks_must_be_as_large_as_the_requests_and_all_be_counted() {
        let said = complaint(|pool, addr| entry(pool, addr).set_requested(1025));
        assert!(said.contains("I18"), "{said}");
        let said = complaint(|pool, addr| entry(pool, addr).set_requested(0));
        assert!(said.contains("I19"), "{said}");
        let said = complaint(|pool, addr| entry(pool, addr).set_requested(999));
        assert!(said.contains("I23"), "{said}");
    }

    #[test]
    fn the_counters_must_match() {
        let counts = |pool: &TestPool| Arc::clone(&pool.shared.thread_caches.my_cache(pool.id).counts);
        let said = complaint(|pool, _| counts(pool).count_deallocation(0, 0));
        assert!(said.contains("I23"), "{said}");
        let said = complaint(|pool, _| counts(pool).count_push(256, 256));
        assert!(said.contains("I24"), "{said}");
        let said = complaint(|pool, _| _ = pool.shared.saved_by_exact_size.fetch_add(1, Ordering::Relaxed));
        assert!(said.contains("I23"), "{said}");
    }
}
