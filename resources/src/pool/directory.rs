//! Which block starts where: address to block, read without a lock.
//!
//! ```text
//!  address   ┌ gibibyte ┬ page: 9 bits ┬ start: 13 bits ┬ 8 bits, zero ┐
//!
//!  roots[gibibyte mod 1024] ─▶ Leaf ─▶ Leaf (of another gibibyte)
//!                               │
//!                               ├ entries[page]
//!                               └ tables[page] ─▶ table of 8192 ─▶ table of 256 ─▶ table of 32
//!                                                 the latest       …               the first
//!  table: lines of four entries, of which a start has one; and a last line: the table before
//!  entry: key (a start's 13 bits, whose block, its number) and the bytes asked for
//! ```
//!
//! A page of 2 MiB has a place for one block, which is enough where blocks are large. It gets a table when a
//! second block in it is handed out, and a larger one in front of it when a line is full; the last has room
//! for every start. An entry stays where it is as long as its block is
//! handed out or kept by a thread, so whoever has the block may write to its entry without a lock. Tables are
//! given up with the directory only: whoever comes with an address that is no block's reads what was there,
//! and never memory that is gone.

use std::fmt;
use std::mem::align_of;
use std::ptr;

use millpond_core::ALLOCATION_ALIGNMENT;

use super::chunk::ChunkId;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, bounded};

const START_BITS: u32 = PAGE_BITS - ALLOCATION_ALIGNMENT.ilog2();
const PAGE_BITS: u32 = bounded(21, 10) as u32;
const LEAF_BITS: u32 = bounded(30, 11) as u32;
const PAGES: usize = 1 << (LEAF_BITS - PAGE_BITS);
const ROOTS: usize = bounded(1024, 1);
const LINE: usize = bounded(4, 1);
/// Lines of the first table of a page, the second, … The last has a place for every start.
const LINES: [usize; 3] = [bounded(8, 1), bounded(64, 2), (1 << START_BITS) / LINE];

/// Which heap a block is of.
pub(super) type HeapId = u8;

/// One block.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// 0 for none.
    key: AtomicU64,
    /// The bytes asked for; 0 while a thread keeps the block, or nobody has it.
    requested: AtomicU64,
}

const PRESENT: u64 = 1 << 63;
/// The block is smaller than others for such a request.
const ODD: u64 = 1 << 62;

/// The block starts in a view, and not where its memory is at home.
const IN_VIEW: u64 = 1 << 61;

/// What is known of a block that is handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) heap: HeapId,
    pub(super) chunk: ChunkId,
    /// The bytes asked for.
    pub(super) requested: u64,
    /// Whether the block is smaller than others for such a request: no thread keeps it.
    pub(super) is_odd: bool,
    /// Whether it starts in a view: when it ends, nothing starts there any more.
    pub(super) is_in_view: bool,
}

impl Entry {
    fn key(start: u64, block: Block) -> u64 {
        let odd = if block.is_odd { ODD } else { 0 };
        let view = if block.is_in_view { IN_VIEW } else { 0 };
        PRESENT | odd | view | u64::from(block.heap) << 48 | start << 32 | u64::from(block.chunk)
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
    pub(super) fn block(&self) -> (HeapId, ChunkId) {
        let key = self.key.load(Ordering::Relaxed);
        ((key >> 48) as HeapId, key as ChunkId)
    }

    /// Whether the block is handed out for `bytes`, and a thread may keep it.
    #[inline]
    pub(super) fn may_be_kept(&self, bytes: u64) -> bool {
        self.requested() == bytes && self.key.load(Ordering::Relaxed) & ODD == 0
    }

    /// The block is given back: where it started in a view, nothing does any more. For who has it.
    pub(super) fn end(&self) {
        if self.key.load(Ordering::Relaxed) & IN_VIEW != 0 {
            self.remove();
        }
    }

    /// Whether the block is smaller than others for such a request.
    pub(super) fn is_odd(&self) -> bool {
        self.key.load(Ordering::Relaxed) & ODD != 0
    }

    /// Whether the block starts in a view.
    pub(super) fn is_in_view(&self) -> bool {
        self.key.load(Ordering::Relaxed) & IN_VIEW != 0
    }

    /// The bytes asked for; 0 of a block that is not handed out.
    #[inline]
    pub(super) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    /// Notes what was asked for, or 0. For who has the block.
    #[inline]
    pub(super) fn set_requested(&self, bytes: u64) {
        self.requested.store(bytes, Ordering::Relaxed);
    }

    /// Takes the block back from the caller, if it is handed out with this size: of two who try, one does.
    #[inline]
    pub(super) fn claim(&self, bytes: u64) -> bool {
        self.requested.compare_exchange(bytes, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The block is handed out again. For who has it.
    #[inline]
    pub(super) fn renew(&self, block: Block) {
        let key = self.key.load(Ordering::Relaxed);
        let renewed = Self::key(Self::start(key), block);
        if renewed != key {
            self.key.store(renewed, Ordering::Release);
        }
        self.set_requested(block.requested);
    }

    /// No block starts there any more. For who has it.
    #[inline]
    pub(super) fn remove(&self) {
        self.set_requested(0);
        self.key.store(0, Ordering::Release);
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([Entry; LINE]);

/// A table's lines; its place in [`LINES`] is in the lowest bits, which the alignment leaves free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Table(*mut Line);

impl Table {
    fn new(depth: usize, earlier: Self) -> Self {
        let lines: Box<[Line]> = (0..=LINES[depth]).map(|_| Line::default()).collect();
        let link = earlier.0.expose_provenance() as u64;
        lines[LINES[depth]].0[0].key.store(link, Ordering::Relaxed);
        Self(Box::into_raw(lines).cast::<Line>().map_addr(|addr| addr | depth))
    }

    fn is_none(self) -> bool {
        self.0.is_null()
    }

    #[inline]
    fn depth(self) -> usize {
        self.0.addr() & (align_of::<Line>() - 1)
    }

    /// # Safety
    /// The table is one and was not dropped, and `line` is at most its number of lines.
    #[inline]
    unsafe fn line<'a>(self, line: usize) -> &'a Line {
        let first = self.0.map_addr(|addr| addr & !(align_of::<Line>() - 1));
        // SAFETY: the caller's promise.
        unsafe { &*first.add(line) }
    }

    /// The line of a start.
    ///
    /// # Safety
    /// The table is one and was not dropped.
    #[inline]
    unsafe fn line_of<'a>(self, start: u64) -> &'a Line {
        let depth = self.depth();
        // Starts are mostly multiples of large powers of two: the product spreads them.
        let spread = (start as u32).wrapping_mul(0x9E37_79B1) >> 16;
        let line = match LINES.get(depth) {
            Some(lines) if depth + 1 < LINES.len() => spread as usize & (lines - 1),
            _ => start as usize / LINE,
        };
        // SAFETY: the caller's promise; a start is below 8192.
        unsafe { self.line(line) }
    }

    /// The page's table before this one.
    ///
    /// # Safety
    /// The table is one and was not dropped.
    unsafe fn earlier(self) -> Self {
        // SAFETY: the caller's promise; the last line is the link.
        let link = unsafe { self.line(LINES[self.depth()]) }.0[0].key.load(Ordering::Relaxed);
        Self(ptr::with_exposed_provenance_mut(link as usize))
    }

    /// # Safety
    /// The table is one, and nobody looks at it any more.
    unsafe fn free(self) {
        let lines = LINES[self.depth()] + 1;
        let first = self.0.map_addr(|addr| addr & !(align_of::<Line>() - 1));
        // SAFETY: the lines came from a box of so many.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(first, lines)) });
    }
}

struct Leaf {
    gibibyte: u64,
    /// Another with the same root.
    next: *const Self,
    /// The latest table of each page.
    tables: [AtomicPtr<Line>; PAGES],
    /// For pages without a table.
    entries: [Entry; PAGES],
}

/// See the module.
pub(super) struct Directory {
    roots: Box<[AtomicPtr<Leaf>]>,
}

// SAFETY: leaves and tables are shared, never moved, and dropped with the directory; what changes in them is
// atomic.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    pub(super) fn new() -> Self {
        Self { roots: (0..ROOTS).map(|_| AtomicPtr::default()).collect() }
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
        // SAFETY: a leaf that was published lives as long as the directory.
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
    pub(super) fn find(&self, addr: u64) -> Option<&Entry> {
        if !addr.is_multiple_of(ALLOCATION_ALIGNMENT) {
            return None;
        }
        let (page, start) = Self::place(addr);
        let leaf = self.leaf(addr)?;
        let mut table = Table(leaf.tables[page].load(Ordering::Acquire));
        while !table.is_none() {
            // SAFETY: a table that was published lives as long as the directory.
            let line = unsafe { &table.line_of(start).0 };
            if let Some(entry) = line.iter().find(|entry| entry.is_of(start)) {
                return Some(entry);
            }
            // SAFETY: as above.
            table = unsafe { table.earlier() };
        }
        Some(&leaf.entries[page]).filter(|entry| entry.is_of(start))
    }

    /// Looks at every entry, with the address that it stands for.
    pub(super) fn each(&self, mut look: impl FnMut(u64, &Entry)) {
        for root in &self.roots {
            let mut leaf = root.load(Ordering::Acquire).cast_const();
            // SAFETY: leaves and tables that were published live as long as the directory.
            while let Some(found) = unsafe { leaf.as_ref() } {
                for page in 0..PAGES {
                    let base = found.gibibyte << LEAF_BITS | (page as u64) << PAGE_BITS;
                    let mut look = |entry: &Entry| {
                        let key = entry.key.load(Ordering::Acquire);
                        if key & PRESENT != 0 {
                            look(base + Entry::start(key) * ALLOCATION_ALIGNMENT, entry);
                        }
                    };
                    look(&found.entries[page]);
                    let mut table = Table(found.tables[page].load(Ordering::Acquire));
                    while !table.is_none() {
                        for line in 0..LINES[table.depth()] {
                            // SAFETY: as above.
                            unsafe { table.line(line) }.0.iter().for_each(&mut look);
                        }
                        // SAFETY: as above.
                        table = unsafe { table.earlier() };
                    }
                }
                leaf = found.next;
            }
        }
    }

    /// Enters a block that is being handed out; nobody else has it, and its start is not entered.
    pub(super) fn insert(&self, addr: u64, block: Block) -> &Entry {
        debug_assert!(self.find(addr).is_none(), "a block starts there already");
        let (page, start) = Self::place(addr);
        let leaf = self.leaf_or_new(addr);
        loop {
            let latest = Table(leaf.tables[page].load(Ordering::Acquire));
            if latest.is_none() {
                if leaf.entries[page].occupy(start, block) {
                    return &leaf.entries[page];
                }
            } else {
                // SAFETY: a table that was published lives as long as the directory.
                let line = unsafe { &latest.line_of(start).0 };
                if let Some(entry) = line.iter().find(|entry| entry.occupy(start, block)) {
                    return entry;
                }
            }
            let larger = Table::new(if latest.is_none() { 0 } else { latest.depth() + 1 }, latest);
            let table = &leaf.tables[page];
            if table.compare_exchange(latest.0, larger.0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: it was made a moment ago, and nobody else has seen it.
                unsafe { larger.free() };
            }
        }
    }

    #[inline]
    fn leaf_or_new(&self, addr: u64) -> &Leaf {
        self.leaf(addr).unwrap_or_else(|| self.add_leaf(addr))
    }

    #[cold]
    #[inline(never)]
    fn add_leaf(&self, addr: u64) -> &Leaf {
        let (root, gibibyte) = (self.root(addr), addr >> LEAF_BITS);
        loop {
            // One load for both: a leaf that comes after the look must make the exchange fail.
            let next = root.load(Ordering::Acquire);
            if let Some(leaf) = self.leaf_from(next, addr) {
                return leaf;
            }
            let tables = std::array::from_fn(|_| AtomicPtr::default());
            let entries = std::array::from_fn(|_| Entry::default());
            let new = Box::into_raw(Box::new(Leaf { gibibyte, next, tables, entries }));
            if root.compare_exchange(next, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: it came from a box a moment ago, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        for root in &self.roots {
            let mut leaf = root.load(Ordering::Relaxed);
            while !leaf.is_null() {
                // SAFETY: the list is made of boxes, and nobody else looks at it any more.
                let this = unsafe { Box::from_raw(leaf) };
                for table in &this.tables {
                    let mut table = Table(table.load(Ordering::Relaxed));
                    while !table.is_none() {
                        // SAFETY: as above.
                        let earlier = unsafe { table.earlier() };
                        // SAFETY: as above.
                        unsafe { table.free() };
                        table = earlier;
                    }
                }
                leaf = this.next.cast_mut();
            }
        }
    }
}

impl fmt::Debug for Directory {
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
        Block { heap, chunk, requested, is_odd: false, is_in_view: false }
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
            let directory = Directory::new();
            let mut map = BTreeMap::new();
            for (number, (enter, gibibyte, page, start)) in steps.into_iter().enumerate() {
                let addr = (gibibyte * ROOTS as u64) << LEAF_BITS | page << PAGE_BITS | start << 8;
                prop_assert_eq!(directory.find(addr).is_some(), map.contains_key(&addr));
                if enter {
                    map.entry(addr).or_insert_with(|| {
                        directory.insert(addr, block(3, number as u32, 77));
                        number as u32
                    });
                } else if map.remove(&addr).is_some() {
                    directory.find(addr).expect("entered").remove();
                }
            }
            for (addr, number) in map {
                let entry = directory.find(addr).expect("entered");
                prop_assert_eq!((entry.block(), entry.requested()), ((3, number), 77));
                prop_assert!(directory.find(addr + 1).is_none());
            }
        }
    }

    #[test]
    fn every_start_of_a_page_has_a_place() {
        let directory = Directory::new();
        // Enough for the last table.
        let starts = if cfg!(miri) { 64 } else { 8192 };
        for start in 0..starts {
            directory.insert(start << 8, block(0, start as u32, 1));
        }
        for start in 0..starts {
            assert_eq!(directory.find(start << 8).map(Entry::block), Some((0, start as u32)));
        }
    }
}
