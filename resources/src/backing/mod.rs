//! Provides large blocks and spans, over regions from upstream or over pages that the pool maps itself.

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId};

pub(crate) mod paged;

use crate::backing::paged::Pages;
use crate::block_map::{Block, BlockMap, ChunkId};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::Request;
use crate::heap::size_class::LARGEST_SMALL;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{PAGED_SPAN_BYTES, SPAN_BYTES};

/// Where large blocks come from.
#[derive(Debug)]
pub(crate) enum Large {
    Regions(Heap),
    Pages(Box<Pages>),
}

/// Free bytes that serve a request.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) bytes: u64,
    pub(crate) epoch: Epoch,
    pub(crate) owner: Owner,
    place: Location,
}

#[derive(Debug)]
enum Location {
    Chunk(ChunkId),
    Pages(paged::Found),
}

/// A span for small blocks: a block of the large heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSpan {
    pub(crate) chunk: ChunkId,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) epoch: Epoch,
}

impl Large {
    /// Sets how pages are made, and which devices have access to them.
    pub(crate) fn set_backing(&mut self, backing: paged::Backing) {
        if let Self::Pages(pages) = self {
            pages.set_backing(backing);
        }
    }

    /// Returns the other devices that have access to mapped memory.
    pub(crate) fn peers(&self) -> Vec<DeviceId> {
        match self {
            Self::Regions(_) => Vec::new(),
            Self::Pages(pages) => pages.backing().peers(),
        }
    }

    /// Returns the parts of handles that hold the bytes of a block; none over regions.
    #[cfg(unix)]
    pub(crate) fn physical_of(&self, addr: u64, bytes: u64) -> Vec<paged::Part> {
        match self {
            Self::Regions(_) => Vec::new(),
            Self::Pages(pages) => pages.physical_of(addr, bytes),
        }
    }

    fn found_in_region(heap: &Heap, id: ChunkId) -> Found {
        let chunk = heap.chunk(id);
        Found { bytes: chunk.bytes, epoch: chunk.epoch(), owner: chunk.owner(), place: Location::Chunk(id) }
    }

    fn found_in_pages(found: paged::Found) -> Found {
        let (bytes, epoch, owner) = (found.bytes, found.epoch, found.owner);
        Found { bytes, epoch, owner, place: Location::Pages(found) }
    }

    /// Finds the best free bytes of `owner` for the request, among those freed in epoch `upto` or before.
    pub(crate) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Found> {
        match self {
            Self::Regions(heap) => heap.find(owner, upto, request).map(|id| Self::found_in_region(heap, id)),
            Self::Pages(pages) => pages.find(owner, upto, request).map(Self::found_in_pages),
        }
    }

    /// Finds the best free bytes among the owner's and the unowned ones; with `is_own_first`, among the
    /// owner's alone if they serve.
    pub(crate) fn find_for(&self, owner: Owner, request: &Request, is_own_first: bool) -> Option<Found> {
        match self {
            Self::Regions(heap) => {
                heap.find_for(owner, request, is_own_first).map(|id| Self::found_in_region(heap, id))
            }
            Self::Pages(pages) => pages.find_for(owner, request, is_own_first).map(Self::found_in_pages),
        }
    }

    /// Hands out what was found, inserts it into the block map as `block` with its chunk, and returns its
    /// address.
    pub(crate) fn take(&mut self, found: Found, request: &Request, block: Block, to: &BlockMap) -> u64 {
        match (self, found.place) {
            (Self::Regions(heap), Location::Chunk(id)) => {
                let chunk = heap.take(id, request.bytes, request.alignment);
                heap.insert_block(to, Block { chunk, ..block })
            }
            (Self::Pages(pages), Location::Pages(found)) => {
                let (chunk, addr) = pages.take(found, request);
                pages.insert_block(to, Block { chunk, ..block }, addr);
                addr
            }
            _ => unreachable!("the bytes were found in another backing"),
        }
    }

    /// Takes a span of `wanted` contiguous bytes, or of as many as there are, but enough for the request.
    /// `anywhere` lets small blocks use pages for large blocks.
    pub(crate) fn take_span(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
        anywhere: bool,
    ) -> Option<NewSpan> {
        let heap = match self {
            Self::Regions(heap) => heap,
            Self::Pages(pages) => {
                let taken = pages.take_span(owner, upto, wanted, request, anywhere);
                return taken.map(|(chunk, base, bytes, epoch)| {
                    // The first small block starts where the span does.
                    pages.remove_block(chunk);
                    NewSpan { chunk, base, bytes, epoch }
                });
            }
        };
        let best = heap.find(owner, upto, &Request { bytes: wanted, ..*request });
        let found = best.or_else(|| heap.largest_for(owner, upto, request))?;
        let (bytes, epoch) = (heap.chunk(found).bytes, heap.chunk(found).epoch());
        // A rest too small for a large block would serve no request.
        let is_small_rest = bytes.saturating_sub(wanted) <= LARGEST_SMALL;
        let bytes = if is_small_rest { bytes } else { wanted };
        let chunk = heap.take(found, bytes, ALLOCATION_ALIGNMENT);
        heap.remove_block(chunk);
        Some(NewSpan { chunk, base: heap.chunk(chunk).addr, bytes, epoch })
    }

    /// Returns the number of a span's region; always 0 over pages, whose addresses alone give the order.
    pub(crate) fn region_of(&self, span: &NewSpan) -> u32 {
        match self {
            Self::Regions(heap) => heap.chunk(span.chunk).region,
            Self::Pages(_) => 0,
        }
    }

    /// Returns the most bytes of a span.
    pub(crate) fn largest_span(&self, are_contended: bool) -> u64 {
        match self {
            Self::Pages(_) if !are_contended => PAGED_SPAN_BYTES,
            _ => SPAN_BYTES,
        }
    }

    pub(crate) fn free(&mut self, block: ChunkId, owner: Owner, epoch: Epoch) {
        match self {
            Self::Regions(heap) => heap.free(block, owner, epoch),
            Self::Pages(pages) => pages.free(block, owner, epoch),
        }
    }

    pub(crate) fn bytes_of(&self, block: ChunkId) -> u64 {
        match self {
            Self::Regions(heap) => heap.chunk(block).bytes,
            Self::Pages(pages) => pages.bytes_of(block),
        }
    }

    /// Returns the chunk that owns the memory at an address. Only error paths call this: it walks all chunks
    /// of a region.
    pub(crate) fn chunk_at(&self, addr: u64) -> Option<&Chunk> {
        match self {
            Self::Regions(heap) => heap.chunk_at(addr),
            Self::Pages(pages) => pages.chunk_at(addr),
        }
    }

    pub(crate) fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        match self {
            Self::Regions(heap) => heap.migrate(from, upto, to, epoch),
            Self::Pages(pages) => pages.migrate(from, upto, to, epoch),
        }
    }

    /// Returns the number of heaps.
    pub(crate) fn parts(&self) -> usize {
        self.heaps().len()
    }

    /// Does [`Heap::migrate_step`] in heap number `part`.
    pub(crate) fn migrate_step(
        &mut self,
        part: usize,
        from: Owner,
        upto: Epoch,
        to: Owner,
        epoch: Epoch,
        bytes: u64,
    ) -> Option<u64> {
        let heap = match self {
            Self::Regions(heap) => heap,
            Self::Pages(pages) => &mut pages.heaps_mut()[part],
        };
        heap.migrate_step(from, upto, to, epoch, bytes)
    }

    /// Takes contiguous bytes of which the owner owns a part and the rest is unowned, inserts them into the
    /// block map as `block` with their chunk, and returns their address.
    pub(crate) fn take_with_unowned(
        &mut self,
        owner: Owner,
        request: &Request,
        block: impl FnOnce() -> Block,
        to: &BlockMap,
    ) -> Option<u64> {
        match self {
            Self::Regions(heap) => {
                let (chunk, ..) = heap.take_with_unowned(owner, request)?;
                Some(heap.insert_block(to, Block { chunk, ..block() }))
            }
            Self::Pages(pages) => {
                let (chunk, addr, _) = pages.take_with_unowned(owner, request)?;
                pages.insert_block(to, Block { chunk, ..block() }, addr);
                Some(addr)
            }
        }
    }

    /// Takes a span as large as the request, of which the owner owns a part and the rest is unowned.
    pub(crate) fn take_span_with_unowned(&mut self, owner: Owner, request: &Request) -> Option<NewSpan> {
        let (chunk, base, epoch) = match self {
            Self::Regions(heap) => {
                let taken = heap.take_with_unowned(owner, request)?;
                heap.remove_block(taken.0);
                taken
            }
            Self::Pages(pages) => {
                let taken = pages.take_with_unowned(owner, request)?;
                pages.remove_block(taken.0);
                taken
            }
        };
        Some(NewSpan { chunk, base, bytes: request.bytes, epoch })
    }

    pub(crate) fn free_bytes(&self, owner: Owner) -> u64 {
        match self {
            Self::Regions(heap) => heap.free_bytes(owner),
            Self::Pages(pages) => pages.free_bytes(owner),
        }
    }

    pub(crate) fn largest_free_block(&self) -> u64 {
        match self {
            Self::Regions(heap) => heap.largest_free_block(),
            Self::Pages(pages) => pages.largest_free_block(),
        }
    }

    /// Sets whether one stream alone uses the pool.
    pub(crate) fn set_one_stream(&mut self, has_one_stream: bool) {
        match self {
            Self::Regions(heap) => heap.has_one_stream = has_one_stream,
            Self::Pages(pages) => {
                pages.heaps_mut().iter_mut().for_each(|heap| heap.has_one_stream = has_one_stream)
            }
        }
    }

    /// Returns the heaps that hold all chunks.
    pub(crate) fn heaps(&self) -> &[Heap] {
        match self {
            Self::Regions(heap) => std::slice::from_ref(heap),
            Self::Pages(pages) => pages.heaps(),
        }
    }

    /// Returns the bytes taken from upstream or the driver.
    pub(crate) fn bytes_reserved(&self) -> u64 {
        match self {
            Self::Regions(heap) => heap.bytes_reserved,
            Self::Pages(pages) => pages.bytes_reserved(),
        }
    }

    /// Returns the most bytes that were taken from the driver; 0 over regions, whose caller counts them.
    pub(crate) fn peak_bytes_reserved(&self) -> u64 {
        match self {
            Self::Regions(_) => 0,
            Self::Pages(pages) => pages.totals().peak_bytes_reserved,
        }
    }

    /// Returns the bytes taken so far because stitching would have cost too many driver calls.
    pub(crate) fn bytes_beyond_slack(&self) -> u64 {
        match self {
            Self::Regions(_) => 0,
            Self::Pages(pages) => pages.totals().beyond_slack,
        }
    }

    pub(crate) fn bytes_free(&self) -> u64 {
        self.heaps().iter().map(|heap| heap.bytes_free).sum()
    }

    pub(crate) fn blocks_free(&self) -> u64 {
        self.heaps().iter().map(|heap| heap.blocks_free).sum()
    }

    /// Returns the number of regions, or of handles of physical memory.
    pub(crate) fn regions(&self) -> usize {
        match self {
            Self::Regions(heap) => heap.regions().len(),
            Self::Pages(pages) => pages.totals().handles,
        }
    }

    pub(crate) fn blocks_in_use(&self) -> u64 {
        match self {
            Self::Regions(heap) => heap.blocks_in_use,
            Self::Pages(pages) => pages.totals().blocks_in_use,
        }
    }

    /// Returns a block's chunk, or that of its first piece, if there is such a chunk.
    pub(crate) fn block(&self, block: ChunkId) -> Option<&Chunk> {
        match self {
            Self::Regions(heap) => heap.get(block),
            Self::Pages(pages) => pages.block(block),
        }
    }

    pub(crate) fn validate(&self) {
        match self {
            Self::Regions(heap) => heap.validate(),
            Self::Pages(pages) => pages.validate(),
        }
    }

    /// Returns whether the block in use has this base and size.
    pub(crate) fn has_block(&self, block: ChunkId, base: u64, bytes: u64) -> bool {
        match self {
            Self::Regions(heap) => heap.chunk(block).addr == base && heap.chunk(block).bytes == bytes,
            Self::Pages(pages) => pages.bytes_of(block) == bytes,
        }
    }

    /// Returns whether a region may be free as a whole, whoever owns its parts.
    pub(crate) fn may_have_free_region(&self) -> bool {
        match self {
            Self::Regions(heap) => heap.regions().iter().any(|region| region.bytes <= heap.bytes_free),
            Self::Pages(_) => false,
        }
    }

    /// Removes the oldest region that is free and unowned, and returns its base and bytes.
    pub(crate) fn remove_free_region(&mut self) -> Option<(u64, u64)> {
        let Self::Regions(heap) = self else { return None };
        let (region, ..) = heap.remove_free_region(|chunk| chunk.owner() == ANY_STREAM)?;
        Some((region.base, region.bytes))
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::Layout;

    use super::*;
    use crate::tuning::{CHUNKS_COMPARED, Policy};

    const MIB: u64 = 1 << 20;

    fn regions() -> Large {
        let mut heap = Heap::new(CHUNKS_COMPARED);
        heap.add_region(1 << 40, 64 * MIB, ANY_STREAM, 0);
        Large::Regions(heap)
    }

    /// A span over pages is one handle, which can be released alone, unless threads contend: then growth
    /// costs more than the memory.
    #[test]
    fn spans_over_pages_are_small_while_threads_do_not_contend() {
        let pages = Large::Pages(Box::new(Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default())));
        assert_eq!((pages.largest_span(false), pages.largest_span(true)), (PAGED_SPAN_BYTES, SPAN_BYTES));
        assert_eq!((regions().largest_span(false), regions().largest_span(true)), (SPAN_BYTES, SPAN_BYTES));
    }

    /// `validate()` finds a span that has another address or size than its block.
    #[test]
    fn a_block_has_one_base_and_one_size() {
        let Large::Regions(mut heap) = regions() else { unreachable!("regions were made") };
        let free = heap.find(ANY_STREAM, Epoch::MAX, &request(MIB)).expect("there is room");
        let block = heap.take(free, 4 * MIB, ALLOCATION_ALIGNMENT);
        let base = heap.chunk(block).addr;
        let large = Large::Regions(heap);
        assert!(large.has_block(block, base, 4 * MIB));
        assert!(!large.has_block(block, base + 256, 4 * MIB) && !large.has_block(block, base, 4 * MIB - 256));
    }

    fn request(bytes: u64) -> Request {
        Request::new(Layout::new(bytes)).expect("not too large")
    }

    /// A span has the bytes wanted, or all of a free block whose rest would serve no large request.
    #[test]
    fn a_span_takes_a_rest_that_would_serve_no_request() {
        for (free, wanted, taken) in [
            (16 * MIB, 4 * MIB, 4 * MIB),
            (5 * MIB, 4 * MIB, 5 * MIB),
            (5 * MIB + 256, 4 * MIB, 4 * MIB),
            (3 * MIB, 4 * MIB, 3 * MIB),
        ] {
            let mut heap = Heap::new(CHUNKS_COMPARED);
            heap.add_region(1 << 40, free, ANY_STREAM, 7);
            let mut large = Large::Regions(heap);
            let span = large.take_span(ANY_STREAM, 7, wanted, &request(4096), false).expect("there is room");
            assert_eq!((span.base, span.bytes, span.epoch), (1 << 40, taken, 7), "{wanted} of {free}");
            assert_eq!(large.free_bytes(ANY_STREAM), free - taken);
            large.validate();
        }
        assert!(regions().take_span(ANY_STREAM, 0, 65 * MIB, &request(65 * MIB), false).is_none());
    }

    /// `validate()` looks at the heaps, over regions and over pages.
    #[test]
    fn validate_looks_at_all_heaps() {
        let pages = Large::Pages(Box::new(Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default())));
        for mut large in [regions(), pages] {
            large.validate();
            match &mut large {
                Large::Regions(heap) => heap.bytes_free += 256,
                Large::Pages(pages) => pages.heaps_mut()[0].bytes_free += 256,
            }
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| large.validate()));
            assert!(outcome.is_err(), "the sum of free bytes is wrong");
        }
    }
}
