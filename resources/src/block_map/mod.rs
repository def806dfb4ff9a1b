//! Which block starts where: address to block, read without a lock.
//!
//! ```text
//!  address   ┌ gibibyte ┬ page: 9 bits ┬ start: 13 bits ┬ 8 bits, zero ┐
//!
//!  roots[gibibyte mod 1024] ─▶ Leaf ─▶ Leaf (of another gibibyte)
//!                               │
//!                               └ pages[page]: entry, entry, entry, table
//!                                                                    │
//!                                              table of 8192 ◀───────┘
//!                                              │  …
//!                                              └▶ table of 32, the first
//!  table: buckets of eight entries, one of them a start's; before them, an address range: the table before
//!  entry: key (a start's 13 bits, whose block, its number) and the bytes asked for
//! ```
//!
//! A page of 2 MiB has a cache line with places for three blocks, which is enough where blocks are large. It
//! gets a table when there are more, and a larger one in stream cache of it when a bucket is full; the last
//! has room for every start. A bucket is two cache lines side by side, which a processor fetches together,
//! and is filled from its start: to find a block takes two cache misses at most, but for what a page had
//! before it got a larger table.
//!
//! An entry stays where it is as long as its block is handed out or kept by a thread, so whoever has the
//! block may write to its entry without a lock. Tables are given up with the block map only: whoever comes
//! with an address that is no block's reads what was there, and never memory that is gone.

pub(crate) mod metadata_arena;

use std::fmt;
use std::mem::align_of;
use std::ptr;

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::metadata_arena::MetadataArena;
use crate::sync::{AtomicPtr, AtomicU64, Mutex, Ordering, bounded};

const START_BITS: u32 = PAGE_BITS - ALLOCATION_ALIGNMENT.ilog2();
const PAGE_BITS: u32 = bounded(21, 10) as u32;
const LEAF_BITS: u32 = bounded(30, 11) as u32;
const PAGES: usize = 1 << (LEAF_BITS - PAGE_BITS);
const ROOTS: usize = bounded(1024, 1);
/// Places for blocks beside the table.
const INLINE: usize = bounded(3, 1);
const BUCKET: usize = bounded(8, 1);
/// Buckets of the first table of a page, the second, … The last has a place for every start.
const BUCKETS: [usize; 4] = [bounded(4, 1), bounded(16, 2), bounded(128, 2), (1 << START_BITS) / BUCKET];

/// The number of a chunk in its heap.
pub(crate) type ChunkId = u32;

/// No chunk.
pub(crate) const NIL: ChunkId = ChunkId::MAX;

/// Which heap a block is of.
pub(crate) type HeapId = u8;

/// One block.
#[derive(Debug, Default)]
pub(crate) struct BlockEntry {
    /// 0 for none.
    key: AtomicU64,
    /// The bytes asked for; 0 while a thread keeps the block, or nobody has it.
    requested: AtomicU64,
}

const PRESENT: u64 = 1 << 63;
/// The block is smaller than others for such a request.
const EXACT_SIZE: u64 = 1 << 62;

/// The block starts in an alias, and not where its memory is in the primary mapping.
const IN_ALIAS: u64 = 1 << 61;

/// What is known of a block that is handed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) heap: HeapId,
    pub(crate) chunk: ChunkId,
    /// The bytes asked for.
    pub(crate) requested: u64,
    /// Whether the block is smaller than others for such a request: no thread keeps it.
    pub(crate) is_exact_size: bool,
    /// Whether it starts in an alias: when it ends, nothing starts there any more.
    pub(crate) is_in_alias: bool,
}

impl BlockEntry {
    fn key(start: u64, block: Block) -> u64 {
        let odd = if block.is_exact_size { EXACT_SIZE } else { 0 };
        let alias = if block.is_in_alias { IN_ALIAS } else { 0 };
        PRESENT | odd | alias | u64::from(block.heap) << 48 | start << 32 | u64::from(block.chunk)
    }

    fn start(key: u64) -> u64 {
        key >> 32 & ((1 << START_BITS) - 1)
    }

    #[inline]
    fn is_of(&self, start: u64) -> bool {
        let key = self.key.load(Ordering::Acquire);
        key & PRESENT != 0 && Self::start(key) == start
    }

    /// Makes the place a block's, if it is nobody's.
    #[inline]
    fn occupy(&self, start: u64, block: Block) -> bool {
        let key = Self::key(start, block);
        let free = self.key.load(Ordering::Relaxed) == 0
            && self.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if free {
            self.set_requested(block.requested);
        }
        free
    }

    /// Which block of which heap this is.
    #[inline]
    pub(crate) fn block(&self) -> (HeapId, ChunkId) {
        let key = self.key.load(Ordering::Relaxed);
        ((key >> 48) as HeapId, key as ChunkId)
    }

    /// Whether the block is handed out for `bytes`, and a thread may keep it.
    #[inline]
    pub(crate) fn is_cacheable(&self, bytes: u64) -> bool {
        self.requested() == bytes && self.key.load(Ordering::Relaxed) & EXACT_SIZE == 0
    }

    /// The block is given back: where it started in an alias, nothing does any more. For who has it.
    pub(crate) fn end(&self) {
        if self.key.load(Ordering::Relaxed) & IN_ALIAS != 0 {
            self.remove();
        }
    }

    /// Whether the block is smaller than others for such a request.
    pub(crate) fn is_exact_size(&self) -> bool {
        self.key.load(Ordering::Relaxed) & EXACT_SIZE != 0
    }

    /// Whether the block starts in an alias.
    pub(crate) fn is_in_alias(&self) -> bool {
        self.key.load(Ordering::Relaxed) & IN_ALIAS != 0
    }

    /// The bytes asked for; 0 of a block that is not handed out.
    #[inline]
    pub(crate) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    /// Notes what was asked for, or 0. For who has the block.
    #[inline]
    pub(crate) fn set_requested(&self, bytes: u64) {
        self.requested.store(bytes, Ordering::Relaxed);
    }

    /// Takes the block back from the caller, if it is handed out with this size: of two who try, one does.
    #[inline]
    pub(crate) fn claim(&self, bytes: u64) -> bool {
        self.requested.compare_exchange(bytes, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The block is handed out again. For who has it.
    #[inline]
    pub(crate) fn renew(&self, block: Block) {
        let key = self.key.load(Ordering::Relaxed);
        let renewed = Self::key(Self::start(key), block);
        if renewed != key {
            self.key.store(renewed, Ordering::Release);
        }
        self.set_requested(block.requested);
    }

    /// No block starts there any more. For who has it.
    #[inline]
    pub(crate) fn remove(&self) {
        self.set_requested(0);
        self.key.store(0, Ordering::Release);
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket([BlockEntry; BUCKET]);

/// A table's buckets, behind its header. Which place of [`BUCKETS`] is its is in the lowest bits, which the
/// alignment leaves free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Table(*mut Bucket);

impl Table {
    /// A table in `slabs`, as long as which it lives.
    fn new(slabs: &mut MetadataArena, depth: usize, earlier: Self) -> Self {
        let first = slabs.make::<Bucket>(1 + BUCKETS[depth]);
        // SAFETY: the header is the first of the buckets made here, which nobody else has seen.
        let header = unsafe { &(&*first).0[0] };
        header.key.store(earlier.0.expose_provenance() as u64, Ordering::Relaxed);
        Self(first.wrapping_add(1).map_addr(|addr| addr | depth))
    }

    fn is_none(self) -> bool {
        self.0.is_null()
    }

    #[inline]
    fn depth(self) -> usize {
        self.0.addr() & (align_of::<Bucket>() - 1)
    }

    #[inline]
    fn first(self) -> *const Bucket {
        self.0.map_addr(|addr| addr & !(align_of::<Bucket>() - 1))
    }

    /// The bucket of a start.
    ///
    /// # Safety
    /// The table is one, and its slabs are not dropped as long as the bucket is looked at.
    #[inline]
    unsafe fn bucket_of<'a>(self, start: u64) -> &'a [BlockEntry; BUCKET] {
        let buckets = BUCKETS[self.depth() % BUCKETS.len()];
        // Starts are mostly multiples of large powers of two: the product spreads them. Where every start has
        // a place, those of a bucket are neighbours.
        let spread = (start as u32).wrapping_mul(0x9E37_79B1) >> 16;
        let is_last = buckets == BUCKETS[BUCKETS.len() - 1];
        let bucket = if is_last { start as usize / BUCKET } else { spread as usize & (buckets - 1) };
        // SAFETY: the caller's promise; a start is below 8192, and so the bucket one of the table's.
        unsafe { &(*self.first().add(bucket)).0 }
    }

    /// All entries.
    ///
    /// # Safety
    /// As for [`bucket_of`](Self::bucket_of).
    unsafe fn entries<'a>(self) -> impl Iterator<Item = &'a BlockEntry> {
        // SAFETY: the caller's promise; the table has so many buckets.
        let buckets = unsafe { std::slice::from_raw_parts(self.first(), BUCKETS[self.depth()]) };
        buckets.iter().flat_map(|bucket| &bucket.0)
    }

    /// The page's table before this one.
    ///
    /// # Safety
    /// As for [`bucket_of`](Self::bucket_of).
    unsafe fn earlier(self) -> Self {
        // SAFETY: the caller's promise; before the buckets is the header.
        let link = unsafe { &*self.first().sub(1) }.0[0].key.load(Ordering::Relaxed);
        Self(ptr::with_exposed_provenance_mut(link as usize))
    }
}

/// What is known of a page.
#[derive(Default)]
#[repr(align(64))]
struct Page {
    entries: [BlockEntry; INLINE],
    /// The latest table.
    table: AtomicPtr<Bucket>,
}

impl Page {
    /// The table, as long as whose block map lives it may be looked at.
    #[inline]
    fn table(&self) -> Table {
        Table(self.table.load(Ordering::Acquire))
    }

    /// Puts a larger table in stream cache of the latest, unless somebody did meanwhile.
    #[cold]
    #[inline(never)]
    fn add_table(&self, last_large: Table, slabs: &Mutex<MetadataArena>) {
        let mut slabs = slabs.lock();
        if self.table() == last_large {
            let depth = if last_large.is_none() { 0 } else { last_large.depth() + 1 };
            self.table.store(Table::new(&mut slabs, depth, last_large).0, Ordering::Release);
        }
    }
}

/// What is known of a gibibyte of addresses.
struct Leaf {
    gibibyte: u64,
    /// Another with the same root.
    next: *const Self,
    pages: [Page; PAGES],
}

impl Default for Leaf {
    fn default() -> Self {
        Self { gibibyte: 0, next: ptr::null(), pages: std::array::from_fn(|_| Page::default()) }
    }
}

/// See the module.
pub(crate) struct BlockMap {
    roots: Box<[AtomicPtr<Leaf>]>,
    /// Leaves and tables; who adds one has the lock.
    slabs: Mutex<MetadataArena>,
}

// SAFETY: leaves and tables are shared, never moved, and dropped with the block map; what changes in them is
// atomic.
unsafe impl Send for BlockMap {}
// SAFETY: as above.
unsafe impl Sync for BlockMap {}

impl BlockMap {
    pub(crate) fn new() -> Self {
        Self {
            roots: (0..ROOTS).map(|_| AtomicPtr::default()).collect(),
            slabs: Mutex::new(MetadataArena::default()),
        }
    }

    #[inline]
    fn leaf(&self, addr: u64) -> Option<&Leaf> {
        self.leaf_from(self.root(addr).load(Ordering::Acquire), addr)
    }

    #[inline]
    fn root(&self, addr: u64) -> &AtomicPtr<Leaf> {
        &self.roots[(addr >> LEAF_BITS) as usize % ROOTS]
    }

    /// The leaf of an address, if it is in the list from `first` on, which was loaded from its root.
    #[inline]
    fn leaf_from(&self, first: *const Leaf, addr: u64) -> Option<&Leaf> {
        let mut leaf = first;
        // SAFETY: a leaf that was published lives as long as the block map.
        while let Some(found) = unsafe { leaf.as_ref() } {
            if found.gibibyte == addr >> LEAF_BITS {
                return Some(found);
            }
            leaf = found.next;
        }
        None
    }

    #[inline]
    fn place(addr: u64) -> (usize, u64) {
        let page = addr >> PAGE_BITS & (PAGES as u64 - 1);
        let start = (addr & ((1 << PAGE_BITS) - 1)) / ALLOCATION_ALIGNMENT;
        (page as usize, start)
    }

    /// The block that starts at an address, handed out or kept by a thread.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<&BlockEntry> {
        if !addr.is_multiple_of(ALLOCATION_ALIGNMENT) {
            return None;
        }
        let (page, start) = Self::place(addr);
        let page = &self.leaf(addr)?.pages[page];
        if let Some(entry) = page.entries.iter().find(|entry| entry.is_of(start)) {
            return Some(entry);
        }
        let mut table = page.table();
        while !table.is_none() {
            // SAFETY: a table that was published lives as long as the block map.
            let bucket = unsafe { table.bucket_of(start) };
            if let Some(entry) = bucket.iter().find(|entry| entry.is_of(start)) {
                return Some(entry);
            }
            // SAFETY: as above.
            table = unsafe { table.earlier() };
        }
        None
    }

    /// Looks at every entry, with the address that it stands for.
    pub(crate) fn each(&self, mut look: impl FnMut(u64, &BlockEntry)) {
        for root in &self.roots {
            let mut leaf = root.load(Ordering::Acquire).cast_const();
            // SAFETY: leaves and tables that were published live as long as the block map.
            while let Some(found) = unsafe { leaf.as_ref() } {
                for (number, page) in (0..).zip(&found.pages) {
                    let base = found.gibibyte << LEAF_BITS | number << PAGE_BITS;
                    let mut look = |entry: &BlockEntry| {
                        let key = entry.key.load(Ordering::Acquire);
                        if key & PRESENT != 0 {
                            look(base + BlockEntry::start(key) * ALLOCATION_ALIGNMENT, entry);
                        }
                    };
                    page.entries.iter().for_each(&mut look);
                    let mut table = page.table();
                    while !table.is_none() {
                        // SAFETY: as above.
                        unsafe { table.entries() }.for_each(&mut look);
                        // SAFETY: as above.
                        table = unsafe { table.earlier() };
                    }
                }
                leaf = found.next;
            }
        }
    }

    /// Enters a block that is being handed out; nobody else has it, and its start is not entered.
    pub(crate) fn insert(&self, addr: u64, block: Block) -> &BlockEntry {
        debug_assert!(self.find(addr).is_none(), "a block starts there already");
        let (page, start) = Self::place(addr);
        let page = &self.leaf_or_new(addr).pages[page];
        if let Some(entry) = page.entries.iter().find(|entry| entry.occupy(start, block)) {
            return entry;
        }
        loop {
            let last_large = page.table();
            if !last_large.is_none() {
                // SAFETY: a table that was published lives as long as the block map.
                let bucket = unsafe { last_large.bucket_of(start) };
                if let Some(entry) = bucket.iter().find(|entry| entry.occupy(start, block)) {
                    return entry;
                }
            }
            page.add_table(last_large, &self.slabs);
        }
    }

    #[inline]
    fn leaf_or_new(&self, addr: u64) -> &Leaf {
        self.leaf(addr).unwrap_or_else(|| self.add_leaf(addr))
    }

    #[cold]
    #[inline(never)]
    fn add_leaf(&self, addr: u64) -> &Leaf {
        let mut slabs = self.slabs.lock();
        let (root, gibibyte) = (self.root(addr), addr >> LEAF_BITS);
        let next = root.load(Ordering::Relaxed);
        if let Some(leaf) = self.leaf_from(next, addr) {
            return leaf;
        }
        let new = slabs.make::<Leaf>(1);
        // SAFETY: it was made a moment ago, and nobody else has seen it.
        unsafe { ((*new).gibibyte, (*new).next) = (gibibyte, next) };
        root.store(new, Ordering::Release);
        // SAFETY: it lives as long as the slabs, and nobody writes to what is not atomic from here on.
        unsafe { &*new }
    }
}

impl fmt::Debug for BlockMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").finish_non_exhaustive()
    }
}

#[cfg(all(test, millpond_loom))]
mod models;

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    fn block(heap: HeapId, chunk: ChunkId, requested: u64) -> Block {
        Block { heap, chunk, requested, is_exact_size: false, is_in_alias: false }
    }

    const CASES: u32 = if cfg!(miri) { 2 } else { 256 };
    const MOST_STEPS: usize = if cfg!(miri) { 100 } else { 3000 };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(CASES))]

        /// Against a map: starts close together, so that every table fills, and far apart.
        #[test]
        fn directory_agrees_with_a_map(
            steps in prop::collection::vec((any::<bool>(), 0..3u64, 0..4u64, 0..8192u64), 1..MOST_STEPS)
        ) {
            let block_map = BlockMap::new();
            let mut map = BTreeMap::new();
            for (number, (insert_block, gibibyte, page, start)) in steps.into_iter().enumerate() {
                let addr = (gibibyte * ROOTS as u64) << LEAF_BITS | page << PAGE_BITS | start << 8;
                prop_assert_eq!(block_map.find(addr).is_some(), map.contains_key(&addr));
                if insert_block {
                    map.entry(addr).or_insert_with(|| {
                        block_map.insert(addr, block(3, number as u32, 77));
                        number as u32
                    });
                } else if map.remove(&addr).is_some() {
                    block_map.find(addr).expect("entered").remove();
                }
            }
            for (addr, number) in map {
                let entry = block_map.find(addr).expect("entered");
                prop_assert_eq!((entry.block(), entry.requested()), ((3, number), 77));
                prop_assert!(block_map.find(addr + 1).is_none());
            }
        }
    }

    #[test]
    fn every_start_of_a_page_has_a_place() {
        let block_map = BlockMap::new();
        // Enough for the last table.
        let starts = if cfg!(miri) { 64 } else { 8192 };
        for start in 0..starts {
            block_map.insert(start << 8, block(0, start as u32, 1));
        }
        for start in 0..starts {
            assert_eq!(block_map.find(start << 8).map(BlockEntry::block), Some((0, start as u32)));
        }
    }
}
