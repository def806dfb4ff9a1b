//! Whether the parts of a pool agree with each other. What each part promises by itself it walks itself; the
//! numbers are those of docs/INVARIANTS.md.

use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;

use crate::block_map::BlockEntry;
use crate::heap::chunk::Chunk;
use crate::heap::size_class::{LARGEST_SMALL, rounded};
use crate::pool::arena::Arenas;
use crate::pool::cache::stream_cache::ThreadTotals;
use crate::pool::heaps::{Heaps, LARGE};

/// Blocks, their bytes, and the bytes asked for.
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

/// What the block map says, by address: the blocks that are handed out, and those that nobody has.
#[derive(Default)]
struct Listed {
    handed_out: Sum,
    /// By how much those of exact sizes are smaller than they are counted.
    saved: u64,
    /// By heap: blocks that are handed out.
    blocks: FxHashMap<u8, u64>,
}

/// Panics where an invariant does not hold. No thread is in a call of the pool meanwhile.
pub(super) fn validate(heaps: &Heaps) {
    heaps.large.validate();
    let mut spans = 0;
    for (_, arena) in heaps.shared.arenas.each() {
        arena.heap.validate();
        spans += arena.validate_spans(&heaps.large);
    }
    let block_for = validate_block_map(heaps);
    let kept = validate_caches(heaps);
    validate_blocks(heaps, spans, &block_for, &kept);
    validate_counters(heaps, &block_for);
}

/// Each entry is where it is looked for, and names a block of its heap that starts there.
fn validate_block_map(heaps: &Heaps) -> Listed {
    let mut block_for = Listed::default();
    heaps.shared.block_map.each(|addr, entry| {
        let found = heaps.shared.block_map.find(addr);
        assert!(found.is_some_and(|found| std::ptr::eq(found, entry)), "I16: {addr:#x} is entered twice");
        validate_entry(heaps, addr, entry);
        let requested = entry.requested();
        if requested != 0 {
            *block_for.blocks.entry(entry.block().0).or_default() += 1;
            // As the counters have it: what other blocks for such a request have.
            let usual = heaps.shared.block_bytes(requested);
            block_for.handed_out.add(usual, requested);
            block_for.saved += usual - bytes_of(heaps, entry);
        }
    });
    block_for
}

/// Whether the block is in use.
fn validate_entry(heaps: &Heaps, addr: u64, entry: &BlockEntry) -> bool {
    let (heap, id) = entry.block();
    let start = |chunk: &Chunk| if entry.is_in_alias() { addr } else { chunk.addr };
    let found = match Arenas::shard(heap) {
        None => heaps.large.block(id).map(|chunk| (start(chunk), chunk.is_in_use())),
        Some(shard) => {
            let arena = heaps.shared.arenas.lock(shard);
            arena.heap.get(id).map(|chunk| (start(chunk), chunk.is_in_use()))
        }
    };
    let starts = found.map(|(start, _)| start);
    assert_eq!(starts, Some(addr), "I17: {addr:#x} is entered, and no block {id} of heap {heap} is there");
    let is_in_use = found.is_some_and(|(_, is_in_use)| is_in_use);
    let requested = entry.requested();
    if requested != 0 {
        assert!(is_in_use, "I17: {addr:#x} is handed out and free");
        let bytes = bytes_of(heaps, entry);
        assert!(requested <= bytes, "I18: {requested} bytes were asked for at {addr:#x}, which has {bytes}");
        let usual = heaps.shared.block_bytes(requested);
        assert_eq!(entry.is_exact_size(), bytes != usual, "I18: odd or not at {addr:#x}");
    }
    is_in_use
}

/// The bytes of a block in use.
fn bytes_of(heaps: &Heaps, entry: &BlockEntry) -> u64 {
    let (heap, id) = entry.block();
    match Arenas::shard(heap) {
        None => heaps.large.bytes_of(id),
        Some(shard) => heaps.shared.arenas.lock(shard).heap.chunk(id).bytes,
    }
}

/// Each kept block is in one stream cache, nobody's otherwise, and of the size that its place says. By heap.
fn validate_caches(heaps: &Heaps) -> FxHashMap<u8, u64> {
    let (mut seen, mut by_heap) = (FxHashMap::default(), FxHashMap::default());
    let mut thread_caches = Vec::new();
    heaps
        .shared
        .thread_caches
        .each(|thread_cache| thread_caches.push((thread_cache.counts.clone(), thread_cache.stream_caches())));
    for (counts, stream_caches) in thread_caches {
        let (mut kept, mut small) = (Sum::default(), 0);
        for stream_cache in stream_caches {
            stream_cache.each_cached(|addr, most, entry| {
                let found = heaps.shared.block_map.find(addr);
                let is_same = found.is_some_and(|found| std::ptr::eq(found, entry));
                assert!(is_same, "I20: the entry of {addr:#x}, which a front keeps, is another's");
                assert_eq!(seen.insert(addr, ()), None, "I20: two fronts keep {addr:#x}");
                assert_eq!(entry.requested(), 0, "I21: {addr:#x} is kept and handed out");
                assert!(!entry.is_exact_size(), "I22: {addr:#x} is kept and odd");
                assert!(validate_entry(heaps, addr, entry), "I20: {addr:#x} is kept and free");
                let bytes = bytes_of(heaps, entry);
                assert_eq!(rounded(bytes), most, "I22: {addr:#x} is kept in the wrong class");
                *by_heap.entry(entry.block().0).or_default() += 1;
                kept.add(bytes, 0);
                small += if bytes <= LARGEST_SMALL { bytes } else { 0 };
            });
        }
        assert_eq!(counts.totals().blocks_held, kept.blocks, "I24: blocks in a thread's fronts");
        assert_eq!(counts.small_bytes_held(), small, "I24: small bytes in a thread's fronts");
    }
    by_heap
}

/// Every block in use is a span, or handed out, or kept by one stream cache.
fn validate_blocks(heaps: &Heaps, spans: u64, block_for: &Listed, kept: &FxHashMap<u8, u64>) {
    let known = |heap: u8| block_for.blocks.get(&heap).unwrap_or(&0) + kept.get(&heap).unwrap_or(&0);
    for (shard, arena) in heaps.shared.arenas.each() {
        assert_eq!(arena.heap.blocks_in_use, known(Arenas::heap_id(shard)), "I19: blocks of arena {shard}");
    }
    assert_eq!(heaps.large.blocks_in_use(), spans + known(LARGE), "I19: large blocks and spans");
}

/// What threads count together is what is handed out.
fn validate_counters(heaps: &Heaps, block_for: &Listed) {
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
    assert_eq!(saved, block_for.saved, "I23: bytes saved by blocks of odd sizes");
    assert_eq!(counted, block_for.handed_out, "I23: what threads count, and what is handed out");
}
