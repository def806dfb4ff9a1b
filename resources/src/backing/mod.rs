//! The pool's large blocks and spans: over regions from upstream, or over pages that the pool maps itself.

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId};

use crate::block_map::ChunkId;
use crate::block_map::{Block, BlockMap};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::size_class::LARGEST_SMALL;
pub(crate) mod paged;
use crate::backing::paged::Pages;
use crate::heap::request::Request;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

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
    /// Says how pages are made, and who may use them.
    pub(crate) fn set_backing(&mut self, backing: paged::Backing) {
        if let Self::Pages(pages) = self {
            pages.set_backing(backing);
        }
    }

    /// The other devices that have access to what is mapped.
    pub(crate) fn peers(&self) -> Vec<DeviceId> {
        match self {
            Self::Regions(_) => Vec::new(),
            Self::Pages(pages) => pages.backing().peers(),
        }
    }

    /// The physical memory behind the bytes of a block; nothing over regions.
    #[cfg(unix)]
    pub(crate) fn physical_of(&self, addr: u64, bytes: u64) -> Vec<paged::Part> {
        match self {
            Self::Regions(_) => Vec::new(),
            Self::Pages(pages) => pages.physical_of(addr, bytes),
        }
    }

    fn in_region(heap: &Heap, id: ChunkId) -> Found {
        let chunk = heap.chunk(id);
        Found { bytes: chunk.bytes, epoch: chunk.epoch(), owner: chunk.owner(), place: Location::Chunk(id) }
    }

    fn in_pages(found: paged::Found) -> Found {
        let (bytes, epoch, owner) = (found.bytes, found.epoch, found.owner);
        Found { bytes, epoch, owner, place: Location::Pages(found) }
    }

    /// The best of `owner` for the request, among what was freed in epoch `upto` or before.
    pub(crate) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Found> {
        match self {
            Self::Regions(heap) => heap.find(owner, upto, request).map(|id| Self::in_region(heap, id)),
            Self::Pages(pages) => pages.find(owner, upto, request).map(Self::in_pages),
        }
    }

    /// The better of the owner's best and the best of unowned, or any of the owner's first (`is_own_first`).
    pub(crate) fn find_for(&self, owner: Owner, request: &Request, is_own_first: bool) -> Option<Found> {
        match self {
            Self::Regions(heap) => {
                heap.find_for(owner, request, is_own_first).map(|id| Self::in_region(heap, id))
            }
            Self::Pages(pages) => pages.find_for(owner, request, is_own_first).map(Self::in_pages),
        }
    }

    /// Hands out what was found, and enters it as `block`, but for the chunk; says where it starts.
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
            _ => unreachable!("what was found here is taken here"),
        }
    }

    /// A span of `wanted` bytes, or of as many as there are in a row, but enough for the request.
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
                let taken = if anywhere {
                    pages.take_span_anywhere(owner, upto, wanted, request)
                } else {
                    pages.take_span(owner, upto, wanted, request)
                };
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
        // A rest too small for a large block would be of no use to anybody.
        let is_small_rest = bytes.saturating_sub(wanted) <= LARGEST_SMALL;
        let bytes = if is_small_rest { bytes } else { wanted };
        let chunk = heap.take(found, bytes, ALLOCATION_ALIGNMENT);
        heap.remove_block(chunk);
        Some(NewSpan { chunk, base: heap.chunk(chunk).addr, bytes, epoch })
    }

    /// The number of the region that a span lies in; 0 for all over pages, where addresses do not differ.
    pub(crate) fn region_of(&self, span: &NewSpan) -> u32 {
        match self {
            Self::Regions(heap) => heap.chunk(span.chunk).region,
            Self::Pages(_) => 0,
        }
    }

    /// How many bytes a span has at most.
    pub(crate) fn largest_span(&self, are_contended: bool) -> u64 {
        match self {
            Self::Pages(_) if !are_contended => 2 << 20,
            _ => 16 << 20,
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

    /// The chunk that owns the memory at an address. Error path: it walks.
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

    /// How many heaps there are.
    pub(crate) fn parts(&self) -> usize {
        self.heaps().len()
    }

    /// [`Heap::migrate_step`] of one of them.
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

    /// Hands out bytes that are the owner's in part and unowned in part, and enters them as `block`, but for
    /// the chunk; says where they start.
    pub(crate) fn take_with_unowned(
        &mut self,
        owner: Owner,
        request: &Request,
        block: impl FnOnce() -> Block,
        to: &BlockMap,
    ) -> Option<u64> {
        match self {
            Self::Regions(heap) => {
                let (first, addr) = heap.find_run(owner, request)?;
                let chunk = heap.take_run(first, addr, request.bytes);
                Some(heap.insert_block(to, Block { chunk, ..block() }))
            }
            Self::Pages(pages) => {
                let (chunk, addr) = pages.take_with_unowned(owner, request)?;
                pages.insert_block(to, Block { chunk, ..block() }, addr);
                Some(addr)
            }
        }
    }

    pub(crate) fn free_bytes(&self, owner: Owner) -> u64 {
        match self {
            Self::Regions(heap) => heap.free_bytes(owner),
            Self::Pages(pages) => pages.free_bytes(owner),
        }
    }

    pub(crate) fn remove_owner(&mut self, owner: Owner) {
        match self {
            Self::Regions(heap) => heap.remove_owner(owner),
            Self::Pages(pages) => pages.remove_owner(owner),
        }
    }

    pub(crate) fn largest_free_block(&self) -> u64 {
        match self {
            Self::Regions(heap) => heap.largest_free_block(),
            Self::Pages(pages) => pages.largest_free_block(),
        }
    }

    /// Whether one stream has the pool to itself.
    pub(crate) fn set_one_stream(&mut self, has_one_stream: bool) {
        match self {
            Self::Regions(heap) => heap.has_one_stream = has_one_stream,
            Self::Pages(pages) => {
                pages.heaps_mut().iter_mut().for_each(|heap| heap.has_one_stream = has_one_stream)
            }
        }
    }

    /// The heaps of chunks, in which all of it lies.
    pub(crate) fn heaps(&self) -> &[Heap] {
        match self {
            Self::Regions(heap) => std::slice::from_ref(heap),
            Self::Pages(pages) => pages.heaps(),
        }
    }

    /// Bytes taken from upstream or the driver.
    pub(crate) fn bytes_reserved(&self) -> u64 {
        match self {
            Self::Regions(heap) => heap.bytes_reserved,
            Self::Pages(pages) => pages.bytes_reserved(),
        }
    }

    /// The most that was taken; 0 where upstream's caller counts that.
    pub(crate) fn peak_bytes_reserved(&self) -> u64 {
        match self {
            Self::Regions(_) => 0,
            Self::Pages(pages) => pages.totals().peak_bytes_reserved,
        }
    }

    /// Bytes taken so far since stitching would have cost too many driver calls.
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

    /// Regions, or handles of physical memory.
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

    /// The chunk that a block is, or its first piece, if there is such a chunk.
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

    /// Whether the block is one in use, of this base and size.
    pub(crate) fn has_block(&self, block: ChunkId, base: u64, bytes: u64) -> bool {
        match self {
            Self::Regions(heap) => heap.chunk(block).addr == base && heap.chunk(block).bytes == bytes,
            Self::Pages(pages) => pages.bytes_of(block) == bytes,
        }
    }

    /// Removes the oldest region that is free for anyone.
    pub(crate) fn remove_free_region(&mut self) -> Option<(u64, u64)> {
        let Self::Regions(heap) = self else { return None };
        let (region, ..) = heap.remove_free_region(|chunk| chunk.owner() == ANY_STREAM)?;
        Some((region.base, region.bytes))
    }
}
