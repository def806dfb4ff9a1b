//! A store of regions from upstream.

use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr};

use crate::block_map::{Block, BlockMap, ChunkId};
use crate::heap::chunk::Chunk;
use crate::heap::request::{Fit, Request, Taken, Whose};
use crate::heap::size_class::LARGEST_SMALL;
use crate::heap::{Heap, Region};
use crate::store::{
    Committed, Need, NewRegion, NewSpan, NoMemory, Purpose, RegionSizes, ReturnedRegions, Returning, Store,
    Task, Totals, Try,
};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{CHUNKS_COMPARED, DEVICE_PAGE, LITTLE};

/// The blocks of a pool in which all blocks have one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedBlocks {
    /// Bytes of a block, a multiple of 256.
    pub(crate) block_bytes: u64,
    /// The most blocks of a new region.
    pub(crate) blocks_per_region: u64,
}

/// Large blocks and spans in regions from upstream.
#[derive(Debug)]
pub(crate) struct Regions {
    heap: Heap,
    maximum_bytes: u64,
    /// The bytes of the next region, unless the request needs more.
    next_region: u64,
    /// The size of all blocks, if they have only one.
    fixed: Option<FixedBlocks>,
    peak_bytes_reserved: u64,
    /// Bytes of regions that tasks under way take, and bytes of regions that they return.
    growing: u64,
    returning: u64,
}

impl RegionSizes {
    /// Returns the next size to try after `bytes` were refused.
    pub(crate) fn after_refusal(&self, bytes: u64) -> Option<u64> {
        (bytes > self.least).then(|| {
            let half = (bytes / 2).next_multiple_of(self.unit);
            if half < bytes { half.max(self.least) } else { self.least }
        })
    }
}

impl Regions {
    pub(crate) fn new(maximum_bytes: u64, fixed: Option<FixedBlocks>) -> Self {
        Self {
            heap: Heap::new(CHUNKS_COMPARED),
            maximum_bytes,
            next_region: DEVICE_PAGE,
            fixed,
            peak_bytes_reserved: 0,
            growing: 0,
            returning: 0,
        }
    }

    fn plan_return(&mut self, regions: impl IntoIterator<Item = Region>) -> Task {
        let left: Vec<_> = regions.into_iter().map(|it| (DevicePtr::new(it.base), it.bytes)).collect();
        let regions = ReturnedRegions { bytes: left.iter().map(|(_, bytes)| bytes).sum(), left };
        self.returning += regions.bytes;
        Task::Return(regions)
    }
}

impl Store for Regions {
    fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit> {
        self.heap.fit(owner, upto, request)
    }

    fn take(&mut self, whose: Whose, request: &Request) -> Option<Taken> {
        self.heap.take_best(whose, request)
    }

    fn take_span(
        &mut self,
        whose: Whose,
        wanted: u64,
        request: &Request,
        _anywhere: bool,
    ) -> Option<NewSpan> {
        let (chunk, bytes, epoch) = match whose {
            Whose::Joined(owner) => {
                let Taken { chunk, epoch, .. } = self.heap.take_with_unowned(owner, request)?;
                (chunk, request.bytes, epoch)
            }
            Whose::Of(owner, upto) => {
                let best = self.heap.find(owner, upto, &Request { bytes: wanted, ..*request });
                let found = best.or_else(|| self.heap.largest_for(owner, upto, request))?;
                let (bytes, epoch) = (self.heap.chunk(found).bytes, self.heap.chunk(found).epoch());
                // A rest too small for a large block would serve no request.
                let is_small_rest = bytes.saturating_sub(wanted) <= LARGEST_SMALL;
                let bytes = if is_small_rest { bytes } else { wanted };
                (self.heap.take(found, bytes, ALLOCATION_ALIGNMENT), bytes, epoch)
            }
            Whose::OwnOrUnowned { .. } => return None,
        };
        self.heap.remove_block(chunk);
        let Chunk { addr, region, .. } = *self.heap.chunk(chunk);
        Some(NewSpan { chunk, region, base: addr, bytes, epoch })
    }

    fn insert_block(&mut self, block_map: &BlockMap, block: Block, _addr: u64) {
        self.heap.insert_block(block_map, block.chunk, block);
    }

    fn free(&mut self, block: ChunkId, owner: Owner, epoch: Epoch) {
        self.heap.free(block, owner, epoch);
    }

    fn plan(&mut self, need: &Need) -> Result<Task, NoMemory> {
        let sizes = match need.purpose {
            Purpose::Block(request) | Purpose::Span(request, _) => {
                self.region_sizes(&request).ok_or(NoMemory::OwnLimit)?
            }
            Purpose::Reserve { bytes } => {
                RegionSizes { preferred: bytes, least: bytes, unit: ALLOCATION_ALIGNMENT }
            }
        };
        let mut bytes = match need.how {
            Try::AtMost(most) => most.clamp(sizes.least, sizes.preferred),
            _ => sizes.preferred,
        };
        // The driver serves regions below a page from pages that it has.
        while bytes >= DEVICE_PAGE && bytes > need.most_new {
            bytes = sizes.after_refusal(bytes).ok_or(NoMemory::Below(None))?;
        }
        self.growing += bytes;
        Ok(Task::Region(NewRegion::new(bytes, sizes.after_refusal(bytes), need.purpose)))
    }

    fn plan_release(&mut self, which: Returning<'_>) -> Option<Task> {
        match which {
            // One region at a time: until upstream has it, no other thread can use it.
            Returning::Free { keep_bytes, .. } if self.heap.bytes_reserved > keep_bytes => {
                let (region, ..) = self.heap.remove_free_region(|chunk| chunk.owner() == ANY_STREAM)?;
                return Some(self.plan_return([region]));
            }
            Returning::Step { at, .. } => at.is_at_end = true,
            Returning::Free { .. } | Returning::Excess { .. } | Returning::Mappings => {}
        }
        None
    }

    fn plan_shutdown(&mut self) -> Task {
        let regions = self.heap.remove_all_regions();
        self.plan_return(regions)
    }

    fn commit(&mut self, task: Task) -> Committed {
        match task {
            Task::Region(NewRegion { bytes, base, owner: (owner, epoch), purpose, .. }) => {
                self.growing -= bytes;
                self.heap.next_number = self.heap.next_number.wrapping_add(1);
                self.heap.add_region(base.address(), bytes, owner, epoch);
                self.next_region = self.next_region.saturating_mul(2);
                self.peak_bytes_reserved = self.peak_bytes_reserved.max(self.heap.bytes_reserved);
                Committed::Memory(owner, purpose.request())
            }
            task => {
                self.abort(task);
                Committed::Nothing
            }
        }
    }

    fn abort(&mut self, task: Task) {
        match task {
            Task::Region(region) => self.growing -= region.bytes,
            Task::Return(regions) => {
                self.returning -= regions.bytes;
                for (base, bytes) in regions.left {
                    self.heap.add_region(base.address(), bytes, ANY_STREAM, 0);
                }
            }
            Task::Map { .. } | Task::Release(_) | Task::Admit(_) => unreachable!("regions map no pages"),
        }
    }

    fn heaps(&self) -> &[Heap] {
        std::slice::from_ref(&self.heap)
    }

    fn heaps_mut(&mut self) -> &mut [Heap] {
        std::slice::from_mut(&mut self.heap)
    }

    fn bytes_reserved(&self) -> u64 {
        self.heap.bytes_reserved
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes_reserved: self.heap.bytes_reserved,
            peak_bytes_reserved: self.peak_bytes_reserved,
            bytes_returning: self.returning,
            bytes_free: self.heap.bytes_free,
            blocks_free: self.heap.blocks_free,
            blocks_in_use: self.heap.blocks_in_use,
            regions: self.heap.regions().len(),
            ..Totals::default()
        }
    }

    fn bytes_of(&self, block: ChunkId) -> u64 {
        self.heap.chunk(block).bytes
    }

    fn pieces_of(&self, block: ChunkId) -> Vec<&Chunk> {
        vec![self.heap.chunk(block)]
    }

    fn first_piece(&self, block: ChunkId) -> Option<&Chunk> {
        self.heap.get(block)
    }

    fn chunk_at(&self, addr: u64) -> Option<&Chunk> {
        self.heap.chunk_at(addr)
    }

    fn parts(&self) -> Vec<(u64, u64, bool)> {
        self.heap.regions().iter().map(|region| (region.base, region.bytes, false)).collect()
    }

    fn needed(&mut self, _owner: Owner, request: &Request, _is_span: bool) -> u64 {
        request.padded_bytes()
    }

    fn set_short(&mut self, _is_short: bool) {}

    fn validate(&self) {
        self.heap.validate();
    }

    #[cfg(test)]
    fn raise_maximum(&mut self, bytes: u64) {
        self.maximum_bytes += bytes;
    }

    fn region_sizes(&self, request: &Request) -> Option<RegionSizes> {
        if let Some(FixedBlocks { block_bytes, blocks_per_region }) = self.fixed {
            // Adds as many blocks as are in use, so that at most half of all blocks are free.
            let blocks = self.heap.blocks_in_use.clamp(1, blocks_per_region);
            return Some(RegionSizes {
                preferred: blocks * block_bytes,
                least: block_bytes,
                unit: block_bytes,
            });
        }
        let held = self.heap.bytes_reserved;
        let room = self.maximum_bytes.saturating_sub(held + self.growing);
        let least = request.padded_bytes();
        if least > room {
            return None;
        }
        let most = (held / LITTLE).max(DEVICE_PAGE);
        let wanted = Heap::region_for(request, self.next_region.min(most), DEVICE_PAGE);
        let preferred = wanted.min(room & !(ALLOCATION_ALIGNMENT - 1)).max(least);
        Some(RegionSizes { preferred, least, unit: ALLOCATION_ALIGNMENT })
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::Layout;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn regions(bytes: u64) -> Regions {
        let mut regions = Regions::new(u64::MAX, None);
        regions.heap.add_region(1 << 40, bytes, ANY_STREAM, 7);
        regions
    }

    fn request(bytes: u64) -> Request {
        Request::new(Layout::new(bytes)).expect("not too large")
    }

    fn need(purpose: Purpose, how: Try) -> Need {
        Need { owner: ANY_STREAM, purpose, how, most_new: u64::MAX, live_bytes: 0, operations: 0 }
    }

    /// A span has the wanted bytes, or takes a whole free block if its rest would serve no large request.
    #[test]
    fn a_span_takes_a_rest_that_would_serve_no_request() {
        let of_any = Whose::Of(ANY_STREAM, 7);
        for (free, wanted, taken) in [
            (16 * MIB, 4 * MIB, 4 * MIB),
            (5 * MIB, 4 * MIB, 5 * MIB),
            (5 * MIB + 256, 4 * MIB, 4 * MIB),
            (3 * MIB, 4 * MIB, 3 * MIB),
        ] {
            let mut regions = regions(free);
            let span = regions.take_span(of_any, wanted, &request(4096), false).expect("there is room");
            assert_eq!((span.base, span.bytes, span.epoch), (1 << 40, taken, 7), "{wanted} of {free}");
            assert_eq!(regions.free_bytes(ANY_STREAM), free - taken);
            regions.validate();
        }
        assert!(regions(64 * MIB).take_span(of_any, 65 * MIB, &request(65 * MIB), false).is_none());
    }

    /// A free block that holds the wanted bytes is better than the best fit for the request.
    #[test]
    fn a_span_comes_from_a_block_of_the_wanted_size() {
        let mut regions = regions(2 * MIB);
        regions.heap.add_region(1 << 41, 6 * MIB, ANY_STREAM, 7);
        let span = regions.take_span(Whose::Of(ANY_STREAM, 7), 4 * MIB, &request(4096), false);
        let span = span.expect("there is room");
        assert_eq!((span.base, span.bytes), (1 << 41, 4 * MIB));
        regions.validate();
    }

    /// A region counts for the pool's maximum while a task takes it, and as returning until upstream has it
    /// back.
    #[test]
    fn regions_count_from_their_plan_to_their_end() {
        let mut regions = Regions::new(16 * MIB, None);
        let need = need(Purpose::Block(request(10 * MIB)), Try::Preferred);
        let task = regions.plan(&need).expect("there is room");
        assert!(matches!(regions.plan(&need), Err(NoMemory::OwnLimit)), "two are more than the maximum");
        regions.abort(task);
        let Ok(Task::Region(mut region)) = regions.plan(&need) else { panic!("there is room again") };
        region.base = millpond_core::DevicePtr::new(1 << 40);
        assert!(matches!(regions.commit(Task::Region(region)), Committed::Memory(ANY_STREAM, Some(_))));
        let Some(Task::Return(mut back)) =
            regions.plan_release(Returning::Free { keep_bytes: 0, most_calls: 64 })
        else {
            panic!("it is free")
        };
        let held = |regions: &Regions| (regions.bytes_reserved(), regions.totals().bytes_returning);
        assert_eq!(held(&regions), (0, back.bytes));
        assert!(back.bytes >= 10 * MIB);
        let bytes = back.bytes;
        back.left.clear();
        regions.commit(Task::Return(back));
        assert_eq!(held(&regions), (0, 0));
        // A region that upstream did not take back belongs to the pool again.
        regions.heap.add_region(1 << 40, bytes, ANY_STREAM, 0);
        let back =
            regions.plan_release(Returning::Free { keep_bytes: 0, most_calls: 64 }).expect("it is free");
        regions.abort(back);
        assert_eq!(held(&regions), (bytes, 0));
        regions.validate();
    }

    /// After each refusal the pool tries half the size, down to the least size.
    #[test]
    fn refused_sizes_become_smaller_down_to_the_least() {
        let sizes = |preferred, least, unit| {
            let sizes = RegionSizes { preferred, least, unit };
            std::iter::successors(Some(preferred), |bytes| sizes.after_refusal(*bytes)).collect::<Vec<u64>>()
        };
        assert_eq!(sizes(64, 10, 8), [64, 32, 16, 10]);
        assert_eq!(sizes(24, 3, 8), [24, 16, 8, 3], "half of one unit is a unit again");
        assert_eq!(sizes(8, 8, 8), [8]);
        assert_eq!(sizes(20, 20, 8), [20]);
    }

    /// `validate()` looks at the heap.
    #[test]
    #[should_panic(expected = "left")]
    fn validate_looks_at_the_heap() {
        let mut regions = regions(MIB);
        regions.validate();
        regions.heap.bytes_free += 256;
        regions.validate();
    }
}
