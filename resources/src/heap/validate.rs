//! Checks the invariants of a heap.

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::NIL;
use crate::heap::Heap;

impl Heap {
    /// Panics if chunks, bins, regions and sums disagree.
    pub(crate) fn validate(&self) {
        let (mut free, mut used_blocks, mut free_blocks, mut free_regions) = (0, 0, 0, 0);
        for (index, region) in self.regions.iter().enumerate() {
            let before = index.checked_sub(1).map(|i| &self.regions[i]);
            assert!(before.is_none_or(|r| r.base + r.bytes <= region.base), "I7: regions overlap");
            let (mut id, mut prev, mut addr, mut last_owner) = (region.first, NIL, region.base, None);
            while id != NIL {
                let chunk = &self.chunks[id];
                let place = (chunk.addr, chunk.prev);
                assert_eq!(place, (addr, prev), "I7: chunk {id} does not follow its neighbour");
                let is_whole = chunk.bytes > 0 && chunk.bytes.is_multiple_of(ALLOCATION_ALIGNMENT);
                assert!(is_whole, "I7: size of chunk {id}");
                if chunk.is_in_use() {
                    used_blocks += 1;
                    last_owner = None;
                } else {
                    assert!(chunk.is_free(), "I7: chunk {id} is vacant");
                    assert_ne!(
                        last_owner,
                        Some(chunk.owner()),
                        "I8: free neighbours of one owner did not join"
                    );
                    last_owner = Some(chunk.owner());
                    free += chunk.bytes;
                    free_blocks += 1;
                    free_regions += usize::from(chunk.is_whole_region());
                }
                (addr, prev, id) = (addr + chunk.bytes, id, chunk.next);
            }
            assert_eq!(addr, region.base + region.bytes, "I7: the chunks do not fill the region");
        }
        assert_eq!(free_regions, self.regions_free, "I10: regions that are free");
        assert_eq!((used_blocks, free_blocks), (self.blocks_in_use, self.blocks_free), "I10: blocks");
        assert_eq!(free, self.bytes_free, "I10: free bytes");
        let reserved: u64 = self.regions.iter().map(|region| region.bytes).sum();
        assert_eq!(reserved, self.bytes_reserved, "I10: bytes of the regions");
        self.all_bins().for_each(|bins| bins.validate(&self.chunks));
        let binned: (u64, u64) = self.all_bins().fold((0, 0), |sum, b| (sum.0 + b.bytes, sum.1 + b.blocks));
        assert_eq!(binned, (free, free_blocks), "I9: the free chunks are not those in the bins");
        for (owner, bins) in (0..).zip(&self.bins) {
            let has_some = bins.as_ref().is_some_and(|bins| bins.blocks > 0);
            assert!(!has_some || self.owners.may_have(owner), "I9: the owner bits miss {owner}");
        }
    }
}
