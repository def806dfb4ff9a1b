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
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use millpond_core::Layout;
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::block_map::ChunkId;
    use crate::heap::request::Request;
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

    /// Of a block's pieces, each ends with its handle, and the next one starts with another handle. Each
    /// mistake is found.
    #[test]
    fn blocks_with_wrong_pieces_are_found() {
        const MIB: u64 = 1 << 20;
        type Places = &'static [(u64, u64)];
        // The pieces in use, by start and bytes, in three handles of 4 MiB; and the blocks made of them.
        let cases: [(&str, Places, &[&[usize]]); 7] = [
            ("", &[(0, 4), (8, 4)], &[&[0, 1]]),
            ("not all counted", &[(0, 4), (8, 4)], &[&[0, 1]]),
            ("in two blocks", &[(0, 4), (4, 4), (8, 4)], &[&[0, 2], &[1, 2]]),
            ("left != right", &[(0, 4)], &[&[0, 0]]),
            ("not in use", &[(0, 4)], &[&[0, 1]]),
            ("ends within a handle", &[(0, 2), (8, 4)], &[&[0, 1]]),
            ("starts within a handle", &[(0, 4), (9, 2)], &[&[0, 1]]),
        ];
        for (mistake, places, blocks) in cases {
            let device = SimDevice::new(SimConfig::h200());
            let policy = Policy { handle_bytes: 4 * MIB, ..Policy::default() };
            let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, policy);
            let request = Request::new(Layout::new(12 * MIB)).expect("not too large");
            let mut plan = pages.plan_block(1, &request, false, 0, u64::MAX).expect("there is room");
            plan.work.make_calls(&*device).expect("the device has room");
            let (block, base) = pages.commit_block(plan);
            pages.free_block(block, 1, 1);
            let (range, _) = unpack(block);
            let free_at = |pages: &Pages, addr| {
                let mut all = pages.heap(range).all_chunks();
                let found = all.find(|(_, chunk)| (chunk.addr..chunk.addr + chunk.bytes).contains(&addr));
                found.expect("the handles have the address").0
            };
            let mut pieces = Vec::new();
            for (start, bytes) in places {
                let addr = base + start * MIB;
                let chunk = free_at(&pages, addr);
                pieces.push(pages.heap_mut(range).take_at(chunk, addr, bytes * MIB));
                pages.heap_mut(range).set_link(pieces[pieces.len() - 1], NIL);
            }
            pieces.push(free_at(&pages, base + 8 * MIB));
            for block in blocks {
                let block: Vec<ChunkId> = block.iter().map(|piece| pack(range, pieces[*piece])).collect();
                pages.link(&block);
            }
            if mistake == "not all counted" {
                pages.extra_pieces = 0;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| pages.validate_all()));
            let said = outcome.err().map_or(String::new(), |panic| {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("an assertion's text")
            });
            assert!(said.contains(mistake) && said.is_empty() == mistake.is_empty(), "{mistake}: {said}");
        }
    }
}
