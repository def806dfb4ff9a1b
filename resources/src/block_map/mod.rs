//! Maps addresses to blocks. Threads read and write it without a lock.
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
//!  table: buckets of eight entries, one bucket for each start; a header links to the table before
//!  entry: key (a start's 13 bits, the block's heap, its number) and the requested bytes
//! ```
//!
//! A page of 2 MiB has one cache line with entries for three blocks, which is enough for large blocks. With
//! more blocks the page gets a table. When a bucket of that is full, the page gets a larger table in front of
//! it; the last table has room for every start. A bucket is two adjacent cache lines, which a processor
//! fetches together, and is filled from its start. So a look-up takes at most two cache misses, except for
//! blocks that a page had before it got a larger table.
//!
//! An entry keeps its place while its block is live or cached by a thread, so the thread that has the block
//! may write to the entry without a lock. Tables live as long as the block map: a look-up of an unknown
//! address reads a stale entry, never freed memory.

pub(crate) mod metadata_arena;

use std::fmt;
use std::mem::align_of;
use std::ptr;

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::metadata_arena::MetadataArena;
use crate::sync::{AtomicPtr, AtomicU64, Mutex, Ordering, bounded};

const START_BITS: u32 = PAGE_BITS - ALLOCATION_ALIGNMENT.ilog2();
const PAGE_BITS: u32 = bounded(21, 10) as u32;
// Miri takes a second for some thousand entries, so its leaves and table of roots are small.
const LEAF_BITS: u32 = bounded(if cfg!(miri) { 24 } else { 30 }, 11) as u32;
const PAGES: usize = 1 << (LEAF_BITS - PAGE_BITS);
const ROOTS: usize = bounded(if cfg!(miri) { 64 } else { 1024 }, 1);
/// Entries of a page outside its tables.
const INLINE: usize = bounded(3, 1);
const BUCKET: usize = bounded(8, 1);
/// Buckets of a page's first table, its second, and so on. The last has an entry for every start.
const BUCKETS: [usize; 4] = [bounded(4, 1), bounded(16, 2), bounded(128, 2), (1 << START_BITS) / BUCKET];

/// A chunk's number in its heap.
pub(crate) type ChunkId = u32;

/// No chunk.
pub(crate) const NIL: ChunkId = ChunkId::MAX;

/// The number of a heap.
pub(crate) type HeapId = u8;

/// The entry of one block.
#[derive(Debug, Default)]
pub(crate) struct BlockEntry {
    /// The block's start, heap, chunk and flags; 0 for no block.
    key: AtomicU64,
    /// The requested bytes; 0 while a thread caches the block, or while it is free.
    requested: AtomicU64,
}

const PRESENT: u64 = 1 << 63;
/// The block has the exact size of its request, not the size of a size class.
const EXACT_SIZE: u64 = 1 << 62;

/// The block starts in an alias mapping.
const IN_ALIAS: u64 = 1 << 61;

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) heap: HeapId,
    pub(crate) chunk: ChunkId,
    /// The requested bytes.
    pub(crate) requested: u64,
    /// Whether the block has the exact size of its request, not the size of a size class. No thread caches
    /// it.
    pub(crate) is_exact_size: bool,
    /// Whether the block starts in an alias. Its entry is then removed at the free.
    pub(crate) is_in_alias: bool,
}

impl BlockEntry {
    fn key(start: u64, block: Block) -> u64 {
        let exact_size = if block.is_exact_size { EXACT_SIZE } else { 0 };
        let alias = if block.is_in_alias { IN_ALIAS } else { 0 };
        PRESENT | exact_size | alias | u64::from(block.heap) << 48 | start << 32 | u64::from(block.chunk)
    }

    fn start(key: u64) -> u64 {
        key >> 32 & ((1 << START_BITS) - 1)
    }

    #[inline]
    fn is_of(&self, start: u64) -> bool {
        let key = self.key.load(Ordering::Acquire);
        key & PRESENT != 0 && Self::start(key) == start
    }

    /// Takes the entry for a block if it is vacant. Returns whether it did.
    #[inline]
    fn occupy(&self, start: u64, block: Block) -> bool {
        let key = Self::key(start, block);
        let is_taken = self.key.load(Ordering::Relaxed) == 0
            && self.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_taken {
            self.set_requested(block.requested);
        }
        is_taken
    }

    /// Returns the block's heap and its chunk there.
    #[inline]
    pub(crate) fn block(&self) -> (HeapId, ChunkId) {
        let key = self.key.load(Ordering::Relaxed);
        ((key >> 48) as HeapId, key as ChunkId)
    }

    /// Returns whether the block is live with `bytes`, and a thread may cache it.
    #[inline]
    pub(crate) fn is_cacheable(&self, bytes: u64) -> bool {
        self.requested() == bytes && self.key.load(Ordering::Relaxed) & EXACT_SIZE == 0
    }

    /// Removes the entry of a freed block in an alias. The calling thread has the block.
    pub(crate) fn end(&self) {
        if self.key.load(Ordering::Relaxed) & IN_ALIAS != 0 {
            self.remove();
        }
    }

    /// Returns whether the block has the exact size of its request.
    pub(crate) fn is_exact_size(&self) -> bool {
        self.key.load(Ordering::Relaxed) & EXACT_SIZE != 0
    }

    /// Returns whether the block starts in an alias.
    pub(crate) fn is_in_alias(&self) -> bool {
        self.key.load(Ordering::Relaxed) & IN_ALIAS != 0
    }

    /// Returns the requested bytes; 0 for a block that is not live.
    #[inline]
    pub(crate) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    /// Sets the requested bytes, or 0. The calling thread has the block.
    #[inline]
    pub(crate) fn set_requested(&self, bytes: u64) {
        self.requested.store(bytes, Ordering::Relaxed);
    }

    /// Takes the block back if it is live with this size. If two threads try, one succeeds.
    #[inline]
    pub(crate) fn claim(&self, bytes: u64) -> bool {
        self.requested.compare_exchange(bytes, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Updates the entry of a block that is handed out again. The calling thread has the block.
    #[inline]
    pub(crate) fn renew(&self, block: Block) {
        let key = self.key.load(Ordering::Relaxed);
        let renewed = Self::key(Self::start(key), block);
        if renewed != key {
            self.key.store(renewed, Ordering::Release);
        }
        self.set_requested(block.requested);
    }

    /// Removes the entry. The calling thread has the block.
    #[inline]
    pub(crate) fn remove(&self) {
        self.set_requested(0);
        self.key.store(0, Ordering::Release);
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket([BlockEntry; BUCKET]);

/// A pointer to a table's buckets, which follow its header. The lowest bits, which the alignment leaves free,
/// hold the table's index in [`BUCKETS`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Table(*mut Bucket);

impl Table {
    /// Allocates a table, which lives as long as the arena.
    fn new(arena: &mut MetadataArena, depth: usize, earlier: Self) -> Self {
        let first = arena.allocate::<Bucket>(1 + BUCKETS[depth]);
        // SAFETY: the header is the first of the new buckets, which no other thread has seen.
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

    /// Returns the bucket of a start.
    ///
    /// # Safety
    /// The table is not null, and its arena outlives the bucket.
    #[inline]
    unsafe fn bucket_of<'a>(self, start: u64) -> &'a [BlockEntry; BUCKET] {
        let buckets = BUCKETS[self.depth() % BUCKETS.len()];
        // Starts are mostly multiples of large powers of two, so the product spreads them. The last table has
        // an entry for every start; there, neighbours share a bucket.
        let spread = (start as u32).wrapping_mul(0x9E37_79B1) >> 16;
        let is_last = buckets == BUCKETS[BUCKETS.len() - 1];
        let bucket = if is_last { start as usize / BUCKET } else { spread as usize & (buckets - 1) };
        // SAFETY: the caller's promise; a start is below 8192, so the bucket is in the table.
        unsafe { &(*self.first().add(bucket)).0 }
    }

    /// Returns all entries.
    ///
    /// # Safety
    /// As for [`bucket_of`](Self::bucket_of).
    unsafe fn entries<'a>(self) -> impl Iterator<Item = &'a BlockEntry> {
        // SAFETY: the caller's promise; the table has this number of buckets.
        let buckets = unsafe { std::slice::from_raw_parts(self.first(), BUCKETS[self.depth()]) };
        buckets.iter().flat_map(|bucket| &bucket.0)
    }

    /// Returns the page's previous table.
    ///
    /// # Safety
    /// As for [`bucket_of`](Self::bucket_of).
    unsafe fn earlier(self) -> Self {
        // SAFETY: the caller's promise; the header precedes the buckets.
        let link = unsafe { &*self.first().sub(1) }.0[0].key.load(Ordering::Relaxed);
        Self(ptr::with_exposed_provenance_mut(link as usize))
    }
}

/// The entries and tables of a page.
#[derive(Default)]
#[repr(align(64))]
struct Page {
    entries: [BlockEntry; INLINE],
    /// The latest table.
    table: AtomicPtr<Bucket>,
}

impl Page {
    /// Returns the latest table, which lives as long as the block map.
    #[inline]
    fn table(&self) -> Table {
        Table(self.table.load(Ordering::Acquire))
    }

    /// Puts a larger table in front of the latest, unless another thread already did.
    #[cold]
    #[inline(never)]
    fn add_table(&self, latest: Table, arena: &Mutex<MetadataArena>) {
        let mut arena = arena.lock();
        if self.table() == latest {
            let depth = if latest.is_none() { 0 } else { latest.depth() + 1 };
            self.table.store(Table::new(&mut arena, depth, latest).0, Ordering::Release);
        }
    }
}

/// The pages of a gibibyte of addresses.
struct Leaf {
    gibibyte: u64,
    /// Another leaf at the same root.
    next: *const Self,
    pages: [Page; PAGES],
}

impl Default for Leaf {
    fn default() -> Self {
        Self { gibibyte: 0, next: ptr::null(), pages: std::array::from_fn(|_| Page::default()) }
    }
}

/// The map from addresses to blocks; see the [module](self).
pub(crate) struct BlockMap {
    roots: Box<[AtomicPtr<Leaf>]>,
    /// Holds leaves and tables; a thread that adds one takes the lock.
    arena: Mutex<MetadataArena>,
}

// SAFETY: leaves and tables are shared, never moved, and dropped with the block map; threads change only
// atomics in them.
unsafe impl Send for BlockMap {}
// SAFETY: as above.
unsafe impl Sync for BlockMap {}

impl BlockMap {
    pub(crate) fn new() -> Self {
        Self {
            roots: (0..ROOTS).map(|_| AtomicPtr::default()).collect(),
            arena: Mutex::new(MetadataArena::default()),
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

    /// Returns the leaf of an address, if it is in the list that starts at `first`.
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

    /// Returns the entry of the block that starts at an address. The block is live or cached by a thread.
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

    /// Calls `look` with the address and entry of every block.
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

    /// Inserts a block that is being handed out. The calling thread has it, and its start has no entry.
    pub(crate) fn insert(&self, addr: u64, block: Block) -> &BlockEntry {
        debug_assert!(self.find(addr).is_none(), "a block starts there already");
        let (page, start) = Self::place(addr);
        let page = &self.leaf_or_new(addr).pages[page];
        if let Some(entry) = page.entries.iter().find(|entry| entry.occupy(start, block)) {
            return entry;
        }
        loop {
            let latest = page.table();
            if !latest.is_none() {
                // SAFETY: a table that was published lives as long as the block map.
                let bucket = unsafe { latest.bucket_of(start) };
                if let Some(entry) = bucket.iter().find(|entry| entry.occupy(start, block)) {
                    return entry;
                }
            }
            page.add_table(latest, &self.arena);
        }
    }

    #[inline]
    fn leaf_or_new(&self, addr: u64) -> &Leaf {
        self.leaf(addr).unwrap_or_else(|| self.add_leaf(addr))
    }

    #[cold]
    #[inline(never)]
    fn add_leaf(&self, addr: u64) -> &Leaf {
        let mut arena = self.arena.lock();
        let (root, gibibyte) = (self.root(addr), addr >> LEAF_BITS);
        let next = root.load(Ordering::Relaxed);
        if let Some(leaf) = self.leaf_from(next, addr) {
            return leaf;
        }
        let new = arena.allocate::<Leaf>(1);
        // SAFETY: the leaf is new, and no other thread has seen it.
        unsafe { ((*new).gibibyte, (*new).next) = (gibibyte, next) };
        root.store(new, Ordering::Release);
        // SAFETY: the leaf lives as long as the arena, and threads change only its atomics from here on.
        unsafe { &*new }
    }
}

impl fmt::Debug for BlockMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockMap").finish_non_exhaustive()
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

        /// Compares with a map. Some starts are close together, so that every table fills; some are far
        /// apart.
        #[test]
        fn block_map_agrees_with_a_map(
            steps in prop::collection::vec((any::<bool>(), 0..3u64, 0..4u64, 0..8192u64), 1..MOST_STEPS)
        ) {
            let block_map = BlockMap::new();
            let mut map = BTreeMap::new();
            for (number, (inserts, gibibyte, page, start)) in steps.into_iter().enumerate() {
                let addr = (gibibyte * ROOTS as u64) << LEAF_BITS | page << PAGE_BITS | start << 8;
                prop_assert_eq!(block_map.find(addr).is_some(), map.contains_key(&addr));
                if inserts {
                    map.entry(addr).or_insert_with(|| {
                        block_map.insert(addr, block(3, number as u32, 77));
                        number as u32
                    });
                } else if map.remove(&addr).is_some() {
                    block_map.find(addr).expect("the block was inserted").remove();
                }
            }
            for (addr, number) in map {
                let entry = block_map.find(addr).expect("the block was inserted");
                prop_assert_eq!((entry.block(), entry.requested()), ((3, number), 77));
                prop_assert!(block_map.find(addr + 1).is_none());
            }
        }
    }

    #[test]
    fn every_start_of_a_page_has_an_entry() {
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

    /// A thread caches a block only if it is live, has these bytes, and is not of the exact size of a
    /// request.
    #[test]
    fn a_block_is_cacheable_for_the_bytes_asked_for() {
        let block_map = BlockMap::new();
        let entry = block_map.insert(1 << 32, block(3, 5, 77));
        assert!(entry.is_cacheable(77) && !entry.is_cacheable(76) && !entry.is_cacheable(0));
        entry.renew(Block { is_exact_size: true, ..block(3, 5, 77) });
        assert!(!entry.is_cacheable(77) && !entry.is_cacheable(76));
        assert!(entry.is_exact_size() && !entry.is_in_alias());
    }

    /// The requested bytes say whether a block is live. It is claimed once, for those bytes.
    #[test]
    fn a_block_is_claimed_once() {
        let block_map = BlockMap::new();
        let entry = block_map.insert(1 << 32, block(3, 5, 77));
        assert!(!entry.claim(76) && entry.claim(77) && !entry.claim(77));
        assert_eq!(entry.requested(), 0);
    }

    /// An address in an alias belongs to one block. A heap's other addresses keep their entries for the next
    /// block.
    #[test]
    fn the_entry_of_a_block_in_an_alias_ends_with_it() {
        let block_map = BlockMap::new();
        for is_in_alias in [false, true] {
            let entry = block_map.insert(1 << 32, Block { is_in_alias, ..block(3, 5, 77) });
            assert_eq!(entry.is_in_alias(), is_in_alias);
            entry.end();
            assert_eq!(block_map.find(1 << 32).is_none(), is_in_alias);
            entry.remove();
        }
    }

    #[test]
    fn an_entry_that_is_renewed_names_the_new_block_at_the_same_address() {
        let block_map = BlockMap::new();
        let addr = (1 << 32) + 256 * 8191;
        block_map.insert(addr, block(3, 5, 77)).renew(block(4, u32::MAX, 78));
        let entry = block_map.find(addr).expect("the block starts there");
        assert_eq!((entry.block(), entry.requested()), ((4, u32::MAX), 78));
    }

    /// Look-ups find neighbouring gibibytes at once, each from a separate root.
    #[test]
    fn gibibytes_that_lie_side_by_side_have_roots_of_their_own() {
        let block_map = BlockMap::new();
        let roots: std::collections::BTreeSet<usize> = (0..ROOTS as u64)
            .map(|gibibyte| ptr::from_ref(block_map.root(gibibyte << LEAF_BITS)).addr())
            .collect();
        assert_eq!(roots.len(), ROOTS);
        assert!(ptr::eq(block_map.root(0), block_map.root((ROOTS as u64) << LEAF_BITS)));
        assert_eq!(format!("{block_map:?}"), "BlockMap { .. }");
    }
}
