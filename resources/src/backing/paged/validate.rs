use rustc_hash::FxHashSet;

use crate::backing::paged::{AddressRange, Pages, pack, unpack};
use crate::block_map::NIL;

/// The invariants of pages. What is under way, in a [`Plan`](crate::backing::paged::Plan) or a
/// [`Release`](crate::backing::paged::Release), belongs to nobody else.
///
/// 1. The heap of a address range is whole: its chunks fill its regions, free neighbours of one owner are joined, bins
///    and sums agree (`Heap::validate`).
/// 2. Each byte of a address range's regions is in the primary mapping in one handle, and each handle's primary mapping lies in its address range.
/// 3. No two handles, and no two aliases, share an address; nothing leaves its reservation.
/// 4. Mappings of an alias follow each other; each handle knows the aliases that it is in, and no others.
/// 5. A block's pieces are chunks in use, each in one block only. Where one ends and another follows, the
///    first ends with its handle and the second starts with its own.
/// 6. Physical memory is what handles hold, with what plans and releases have under way.
impl Pages {
    /// Panics where an invariant does not hold.
    pub(crate) fn validate(&self) {
        self.heaps.iter().for_each(|heap| heap.validate()); // 1
        self.handles.validate(); // 3
        self.aliases.validate(&self.handles); // 3, 4
        self.validate_ranges();
        self.validate_blocks();
        let unfinished: u64 = self.unfinished.iter().map(|retired| retired.bytes).sum();
        assert!(unfinished <= self.retiring, "what did not go back counts as taken"); // 6
        let reserved: u64 = self.heaps.iter().map(|heap| heap.bytes_reserved).sum();
        assert_eq!(self.bytes_reserved(), reserved + self.planned + self.retiring); // 6
        assert!(self.bytes_reserved() <= self.maximum_bytes, "the pool exceeds its maximum");
    }

    fn validate_ranges(&self) {
        for range in AddressRange::ALL {
            let primaries = self.handles.iter().filter(|(_, handle)| handle.range == range);
            let bytes: u64 = primaries.map(|(_, handle)| handle.bytes).sum();
            assert_eq!(bytes, self.heap(range).bytes_reserved, "bytes of a line"); // 2
            for region in self.heap(range).regions() {
                let handles = self.handles.within(region.base, region.base + region.bytes);
                let mut at = region.base;
                for (_, handle) in handles {
                    assert_eq!((handle.primary, handle.range), (at, range), "homes follow each other"); // 2
                    at = handle.end();
                }
                assert_eq!(at, region.base + region.bytes, "a region ends with a handle"); // 2
            }
        }
    }

    fn validate_blocks(&self) {
        let mut seen = FxHashSet::default();
        let mut links = 0;
        for range in AddressRange::ALL {
            for (id, chunk) in self.heap(range).all_chunks().filter(|(_, chunk)| chunk.is_in_use()) {
                let next = self.heap(range).link(id);
                if next == NIL {
                    continue;
                }
                links += 1;
                assert!(seen.insert(next), "a piece is in two blocks"); // 5
                assert_ne!(next, pack(range, id));
                let (next_line, next) = unpack(next);
                let next = self.heap(next_line).chunk(next);
                assert!(next.is_in_use(), "a piece is in use"); // 5
                let end = self.handles.at(chunk.addr + chunk.bytes - 1).map(|id| self.handles.get(id).end());
                assert_eq!(end, Some(chunk.addr + chunk.bytes), "a piece reaches its handle's end"); // 5
                let start = self.handles.at(next.addr).map(|id| self.handles.get(id).primary);
                assert_eq!(start, Some(next.addr), "a piece starts with its handle"); // 5
            }
        }
        assert!(links <= self.extra_pieces, "pieces beyond the first are counted"); // 5
    }
}
