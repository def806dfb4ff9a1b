//! Lists a pool's segments and blocks by address.

use millpond_core::{BlockState, MemoryBlock, MemorySegment};
use rustc_hash::FxHashMap;

use crate::block_map::{BlockEntry, ChunkId};
use crate::heap::chunk::Chunk;
use crate::heap::{Heap, Region};
use crate::pool::heaps::{Heaps, LARGE};
use crate::stream_order::{ANY_STREAM, Owner};

/// What a chunk of the large heaps holds, other than one block.
enum Content {
    /// The small blocks of an arena.
    Span(Vec<MemoryBlock>),
    /// A piece of a block or span that starts in an alias, and is listed there.
    Piece,
}

/// Reads the map under the pool's lock.
struct Reader<'a, F> {
    heaps: &'a Heaps,
    /// Returns the raw handle of a stream.
    handle_of: F,
    /// The owners of the blocks in the threads' caches, by address.
    cached: FxHashMap<u64, Owner>,
    /// By the address of the chunk.
    contents: FxHashMap<u64, Content>,
    segments: Vec<MemorySegment>,
}

impl Heaps {
    /// Returns all segments, in no order. Blocks that threads move through their caches meanwhile count as
    /// free.
    pub(super) fn segments(&self, handle_of: impl Fn(Owner) -> Option<u64>) -> Vec<MemorySegment> {
        let mut cached = FxHashMap::default();
        self.shared.thread_caches.each(|thread_cache| {
            for stream_cache in thread_cache.stream_caches() {
                let owner = stream_cache.stream.owner;
                stream_cache.each_address(|addr| _ = cached.insert(addr, owner));
            }
        });
        let (contents, segments) = (FxHashMap::default(), Vec::new());
        let mut reader = Reader { heaps: self, handle_of, cached, contents, segments };
        reader.read_spans();
        reader.read_aliases();
        for heap in self.store.heaps() {
            heap.regions().iter().for_each(|region| reader.read_region(heap, region));
        }
        reader.segments
    }
}

impl<F: Fn(Owner) -> Option<u64>> Reader<'_, F> {
    fn block(&self, addr: u64, bytes: u64, requested: u64, owner: Option<Owner>) -> MemoryBlock {
        let mut block = MemoryBlock::new(addr, bytes, requested);
        if block.state == BlockState::Free {
            let owner = owner.or_else(|| self.cached.get(&addr).copied());
            block.stream = owner.filter(|owner| *owner != ANY_STREAM).and_then(&self.handle_of);
        }
        block
    }

    fn block_of(&self, chunk: &Chunk) -> MemoryBlock {
        let requested = chunk.entry().filter(|_| chunk.is_in_use()).map_or(0, BlockEntry::requested);
        self.block(chunk.addr, chunk.bytes, requested, chunk.is_free().then(|| chunk.owner()))
    }

    /// Reads the arenas, one after the other. Their spans change only under the pool's lock.
    fn read_spans(&mut self) {
        for (_, arena) in self.heaps.shared.arenas.each() {
            for (region, chunk) in arena.spans() {
                let blocks = arena.heap.region_chunks(region).map(|chunk| self.block_of(chunk)).collect();
                self.place(chunk, region.base, blocks);
            }
        }
    }

    /// Reads the large blocks that start in aliases.
    fn read_aliases(&mut self) {
        if self.heaps.store.totals().mappings == 0 {
            return;
        }
        let mut found = Vec::new();
        self.heaps.shared.block_map.each(|addr, entry| {
            let (heap, chunk) = entry.block();
            if heap == LARGE && entry.is_in_alias() {
                found.push((addr, chunk, entry.requested()));
            }
        });
        for (addr, chunk, requested) in found {
            let block = self.block(addr, self.heaps.store.bytes_of(chunk), requested, None);
            self.place(chunk, addr, vec![block]);
        }
    }

    /// Notes the blocks in a chunk of the large heaps. If they are at another address than the chunk, they
    /// are a segment of several pieces.
    fn place(&mut self, chunk: ChunkId, addr: u64, blocks: Vec<MemoryBlock>) {
        let pieces: Vec<(u64, u64)> =
            self.heaps.store.pieces_of(chunk).iter().map(|piece| (piece.addr, piece.bytes)).collect();
        if let [(first, _)] = pieces[..]
            && first == addr
        {
            self.contents.insert(addr, Content::Span(blocks));
            return;
        }
        self.contents.extend(pieces.iter().map(|(piece, _)| (*piece, Content::Piece)));
        let mut segment = MemorySegment::new(blocks);
        (segment.is_mapped, segment.pieces) = (true, pieces);
        self.segments.push(segment);
    }

    /// Adds the parts of a region between the pieces of other segments.
    fn read_region(&mut self, heap: &Heap, region: &Region) {
        let mut blocks = Vec::new();
        for chunk in heap.region_chunks(region) {
            match self.contents.remove(&chunk.addr) {
                None => blocks.push(self.block_of(chunk)),
                Some(Content::Span(small)) => blocks.extend(small),
                Some(Content::Piece) => self.add(std::mem::take(&mut blocks)),
            }
        }
        self.add(blocks);
    }

    fn add(&mut self, blocks: Vec<MemoryBlock>) {
        if !blocks.is_empty() {
            let mut segment = MemorySegment::new(blocks);
            segment.is_mapped = self.heaps.shared.over_pages;
            self.segments.push(segment);
        }
    }
}
