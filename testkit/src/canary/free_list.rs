//! The free blocks of one stream of the canary pool.

use std::collections::BTreeMap;

use millpond_core::driver::Event;
use millpond_core::{StreamRef, align_up};

/// The free blocks of one stream, and the event after which other streams may use them.
#[derive(Debug)]
pub(super) struct FreeList {
    pub(super) stream: StreamRef,
    pub(super) event: Event,
    /// Whether all work before the event's last record is known to be done.
    pub(super) completed: bool,
    /// Whether the event was ever recorded for this list.
    pub(super) recorded: bool,
    /// The start and size of each block in bytes.
    blocks: BTreeMap<u64, u64>,
}

/// A block cut from a list's block, and the rest of that block.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) start: u64,
    /// The start and size of the pieces before and after it.
    pub(super) rest: [(u64, u64); 2],
}

impl FreeList {
    pub(super) fn new(stream: StreamRef, event: Event) -> Self {
        Self { stream, event, completed: true, recorded: false, blocks: BTreeMap::new() }
    }

    pub(super) fn blocks(&self) -> &BTreeMap<u64, u64> {
        &self.blocks
    }

    pub(super) fn take_all(&mut self) -> BTreeMap<u64, u64> {
        std::mem::take(&mut self.blocks)
    }

    pub(super) fn remove(&mut self, start: u64) {
        self.blocks.remove(&start);
    }

    /// Whether the list has a block for `bytes` at `alignment`.
    pub(super) fn fits(&self, bytes: u64, alignment: u64) -> bool {
        self.best_fit(bytes, alignment).is_some()
    }

    fn best_fit(&self, bytes: u64, alignment: u64) -> Option<(u64, u64)> {
        let fitting = self.blocks.iter().filter(|&(&start, &size)| {
            let aligned = align_up(start, alignment);
            aligned.is_some_and(|aligned| aligned - start + bytes <= size)
        });
        fitting.min_by_key(|&(_, &size)| size).map(|(&start, &size)| (start, size))
    }

    /// Takes the smallest block that fits from the list, and cuts `bytes` from it.
    pub(super) fn take(&mut self, bytes: u64, alignment: u64) -> Option<Cut> {
        let (start, size) = self.best_fit(bytes, alignment)?;
        self.blocks.remove(&start);
        let aligned = align_up(start, alignment)?;
        let end = aligned + bytes;
        Some(Cut { start: aligned, rest: [(start, aligned - start), (end, start + size - end)] })
    }

    /// Inserts a block and merges it with its neighbours in the list. `is_boundary` tells whether blocks must
    /// not cross an address. `excess` is added to the size of merged blocks: 0, unless the pool makes that
    /// mistake.
    pub(super) fn insert(&mut self, block: (u64, u64), is_boundary: impl Fn(u64) -> bool, excess: u64) {
        let (mut start, mut size) = block;
        if size == 0 {
            return;
        }
        if let Some((&below, &below_size)) = self.blocks.range(..start).next_back()
            && below + below_size == start
            && !is_boundary(start)
        {
            self.blocks.remove(&below);
            (start, size) = (below, size + below_size + excess);
        }
        if !is_boundary(start + size)
            && let Some(above_size) = self.blocks.remove(&(start + size))
        {
            size += above_size;
        }
        self.blocks.insert(start, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::ALLOCATION_ALIGNMENT;

    fn list(blocks: &[(u64, u64)]) -> FreeList {
        let mut list = FreeList::new(StreamRef::LEGACY, Event(1));
        blocks.iter().for_each(|&block| list.insert(block, |_| false, 0));
        list
    }

    fn blocks(list: &FreeList) -> Vec<(u64, u64)> {
        list.blocks().iter().map(|(&start, &size)| (start, size)).collect()
    }

    #[test]
    fn neighbours_join_except_at_boundaries() {
        assert_eq!(blocks(&list(&[(0x1000, 0x100), (0x1200, 0x100), (0x1100, 0x100)])), [(0x1000, 0x300)]);
        let mut apart = list(&[(0x1000, 0x100)]);
        apart.insert((0x1100, 0x100), |address| address == 0x1100, 0);
        assert_eq!(blocks(&apart), [(0x1000, 0x100), (0x1100, 0x100)]);
    }

    #[test]
    fn the_best_fit_is_cut_at_the_alignment() {
        let mut list = list(&[(0x10100, 0x10000), (0x30100, 0x1f00)]);
        let cut = list.take(0x800, 0x1000).unwrap();
        assert_eq!((cut.start, cut.rest), (0x31000, [(0x30100, 0xf00), (0x31800, 0x800)]));
        assert!(!list.fits(0x10001, ALLOCATION_ALIGNMENT));
        assert!(list.fits(0x10000, ALLOCATION_ALIGNMENT));
    }
}
