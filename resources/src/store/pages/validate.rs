//! Checks the invariants of paged memory.

use rustc_hash::FxHashSet;

use crate::block_map::NIL;
use crate::store::pages::handles::AddressRange;
use crate::store::pages::state::{Pages, pack, unpack};

/// The invariants of pages. While a [`Plan`](crate::store::pages::Plan) or a
/// [`Release`](crate::store::pages::Release) holds a piece or a handle, nothing else uses it.
///
/// 1. The chunks of an address range's heap fill its regions, free neighbours of one owner are joined, and
///    bins and sums agree (`Heap::validate`).
/// 2. Each byte of an address range's regions is in the primary mapping of one handle, and each handle's
///    primary mapping lies in its address range.
/// 3. No two handles, and no two aliases, share an address, and none exceeds its reservation.
/// 4. Mappings of an alias are contiguous; each handle lists exactly the aliases that it is in.
/// 5. A block's pieces are chunks in use, each in one block only. Of two consecutive pieces, the first ends
///    at the end of its handle, and the second starts at the start of its handle.
/// 6. The bytes of physical memory equal the handles' bytes, plus plans and releases under way. Once its
///    release is committed, a handle no longer counts, even if another release still has to unmap it from an
///    alias. The driver keeps its memory until then.
impl Pages {
    /// Panics if an invariant does not hold.
    pub(super) fn validate_all(&self) {
        self.heaps.iter().for_each(|heap| heap.validate()); // 1
        self.handles.validate(); // 3
        self.aliases.validate(&self.handles); // 3, 4
        self.validate_ranges();
        self.validate_blocks();
        let unfinished: u64 = self.unfinished.iter().map(|retired| retired.bytes).sum();
        assert!(unfinished <= self.retiring, "an unfinished release does not count as reserved"); // 6
        let reserved: u64 = self.heaps.iter().map(|heap| heap.bytes_reserved).sum();
        assert_eq!(self.held(), reserved + self.planned + self.retiring); // 6
        assert!(self.held() <= self.maximum_bytes, "the pool exceeds its maximum");
    }

    fn validate_ranges(&self) {
        for range in AddressRange::ALL {
            let primaries = self.handles.iter().filter(|(_, handle)| handle.range == range);
            let bytes: u64 = primaries.map(|(_, handle)| handle.bytes).sum();
            assert_eq!(bytes, self.heap(range).bytes_reserved, "bytes of an address range"); // 2
            for region in self.heap(range).regions() {
                let handles = self.handles.within(region.base, region.base + region.bytes);
                let mut at = region.base;
                for (_, handle) in handles {
                    assert_eq!(
                        (handle.primary, handle.range),
                        (at, range),
                        "primary mappings are not contiguous"
                    ); // 2
                    at = handle.end();
                }
                assert_eq!(at, region.base + region.bytes, "a region ends within a handle"); // 2
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
                let (next_range, next) = unpack(next);
                let next = self.heap(next_range).chunk(next);
                assert!(next.is_in_use(), "a piece is not in use"); // 5
                let end = self.handles.at(chunk.addr + chunk.bytes - 1).map(|id| self.handles.get(id).end());
                assert_eq!(end, Some(chunk.addr + chunk.bytes), "a piece ends within a handle"); // 5
                let start = self.handles.at(next.addr).map(|id| self.handles.get(id).primary);
                assert_eq!(start, Some(next.addr), "a piece starts within a handle"); // 5
            }
        }
        assert!(links <= self.extra_pieces, "pieces beyond the first are not all counted"); // 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::stream_order::ANY_STREAM;
    use crate::tuning::Policy;

    #[test]
    #[should_panic(expected = "bytes of an address range")]
    fn a_region_without_handles_is_found() {
        let mut pages = Pages::new(2 << 20, 1 << 30, u64::MAX, Policy::default());
        pages.validate();
        pages.heap_mut(AddressRange::Large).add_region(1 << 40, 2 << 20, ANY_STREAM, 0);
        pages.validate();
    }
}
