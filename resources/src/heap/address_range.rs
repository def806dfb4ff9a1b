//! Lets a heap grow and shrink by handles, for the address ranges of [`pages`](crate::store::pages).

use crate::block_map::{ChunkId, NIL};
use crate::heap::chunk::Chunk;
use crate::heap::{Heap, Region};
use crate::stream_order::{Epoch, Owner};

impl Heap {
    /// Returns the last chunk of the address range, if there is one.
    pub(crate) fn tail(&self) -> Option<ChunkId> {
        Some(self.tail).filter(|id| *id != NIL)
    }

    /// Adds free memory. It joins the region that ends at `base`, if there is one. Returns the free chunk
    /// that holds it.
    pub(crate) fn extend(&mut self, base: u64, bytes: u64, owner: Owner, epoch: Epoch) -> ChunkId {
        let Some((region, last)) = self.region_before(base) else {
            let first = self.add_region(base, bytes, owner, epoch);
            self.tail = first;
            return first;
        };
        self.regions[region].bytes += bytes;
        self.bytes_reserved += bytes;
        let id = self.chunks.add(Chunk::free(base, bytes, last, NIL, owner, epoch));
        if self.chunks[last].is_free() && self.chunks[last].is_whole_region() {
            self.regions_free -= 1;
        }
        self.chunks[last].next = id;
        self.tail = id;
        let joined = self.join(id);
        self.put_in_bin(joined);
        joined
    }

    /// Returns the region that ends at an address, and its last chunk, which is mostly the tail.
    fn region_before(&self, end: u64) -> Option<(usize, ChunkId)> {
        let index = self.regions.partition_point(|region| region.base < end).checked_sub(1)?;
        let region = self.regions[index];
        if region.base + region.bytes != end {
            return None;
        }
        let ends_there = |id: &ChunkId| self.chunks[*id].addr + self.chunks[*id].bytes == end;
        Some((
            index,
            self.tail().filter(ends_there).unwrap_or_else(|| self.chunk_from(region.first, end - 1)),
        ))
    }

    /// Fuses a chunk in use with the next one, which is also in use.
    pub(crate) fn fuse_with_next(&mut self, id: ChunkId) {
        debug_assert!(self.chunks[id].is_in_use() && self.chunks[self.chunks[id].next].is_in_use());
        self.merge_next(id);
        self.blocks_in_use -= 1;
    }

    /// Removes these bytes of a free chunk from the heap.
    pub(crate) fn remove_range(&mut self, id: ChunkId, addr: u64, bytes: u64) {
        self.take_from_bin(id);
        let id = self.cut_out(id, addr, bytes);
        let Chunk { prev, next, .. } = self.chunks[id];
        let index = self.regions.partition_point(|region| region.base <= addr) - 1;
        let region = self.regions[index];
        let end = region.base + region.bytes;
        self.regions[index].bytes = addr - region.base;
        if prev != NIL {
            self.chunks[prev].next = NIL;
        }
        if next != NIL {
            self.chunks[next].prev = NIL;
            let after = Region { base: addr + bytes, bytes: end - (addr + bytes), first: next };
            self.regions.insert(index + 1, after);
        }
        if prev == NIL {
            self.regions.remove(index);
        }
        if self.tail == id {
            self.tail = prev;
        }
        let sides = [prev, next].into_iter().filter(|side| *side != NIL).map(|side| &self.chunks[side]);
        self.regions_free += sides.filter(|side| side.is_free() && side.is_whole_region()).count();
        self.chunks.remove(id);
        self.bytes_reserved -= bytes;
    }

    /// Returns the free chunks of an owner with at least `bytes`, and a few smaller ones, smallest bins
    /// first.
    pub(crate) fn free_from(&self, owner: Owner, bytes: u64) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        let bins = self.bins(owner).into_iter();
        bins.flat_map(move |bins| bins.iter_from(&self.chunks, bytes)).map(|id| (id, &self.chunks[id]))
    }

    /// Returns the run of neighbours that are free for `owner`, starting at its first chunk.
    pub(crate) fn run(&self, first: ChunkId, owner: Owner) -> impl Iterator<Item = &Chunk> {
        let chunk = move |id| (id != NIL && self.is_joinable(id, owner)).then(|| &self.chunks[id]);
        std::iter::successors(chunk(first), move |last| chunk(last.next))
    }

    /// Returns the first chunk of the run of neighbours that are free for `owner`.
    pub(crate) fn first_of_run(&self, id: ChunkId, owner: Owner) -> ChunkId {
        self.run_around(id, owner).0
    }

    /// Returns the first chunk of the run of neighbours that are free for `owner`, if no chunk before `id`
    /// has `least` bytes.
    pub(crate) fn run_led_by(&self, id: ChunkId, owner: Owner, least: u64) -> Option<ChunkId> {
        let mut first = id;
        loop {
            let before = self.chunks[first].prev;
            if before == NIL || !self.is_joinable(before, owner) {
                return Some(first);
            }
            if self.chunks[before].bytes >= least {
                return None;
            }
            first = before;
        }
    }

    /// Hands out these bytes of free neighbours and keeps the rest free. `from` or a later chunk holds
    /// `addr`.
    pub(crate) fn take_run(&mut self, from: ChunkId, addr: u64, bytes: u64) -> ChunkId {
        let first = self.chunk_from(from, addr);
        self.take_from_bin(first);
        let Chunk { addr: start, bytes: there, .. } = self.chunks[first];
        let id = self.cut_out(first, addr, bytes.min(start + there - addr));
        while self.chunks[id].bytes < bytes {
            let (next, missing) = (self.chunks[id].next, bytes - self.chunks[id].bytes);
            self.take_from_bin(next);
            if self.chunks[next].bytes > missing {
                let rest = self.cut(next, missing);
                self.put_in_bin(rest);
            }
            self.merge_next(id);
        }
        self.chunks[id].set_in_use();
        self.blocks_in_use += 1;
        id
    }

    /// Returns the chunk that holds an address: `from`, or a later chunk of its region.
    pub(crate) fn chunk_from(&self, from: ChunkId, addr: u64) -> ChunkId {
        let mut id = from;
        while self.chunks[id].addr + self.chunks[id].bytes <= addr {
            id = self.chunks[id].next;
        }
        id
    }

    /// A block in use may consist of several pieces. Returns the piece after this one, or `NIL`.
    pub(crate) fn link(&self, id: ChunkId) -> ChunkId {
        debug_assert!(self.chunks[id].is_in_use());
        self.chunks[id].bin_next
    }

    pub(crate) fn set_link(&mut self, id: ChunkId, link: ChunkId) {
        debug_assert!(self.chunks[id].is_in_use());
        self.chunks[id].bin_next = link;
    }

    /// Returns all chunks, by address.
    pub(crate) fn all_chunks(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        self.regions.iter().flat_map(|region| {
            let first = Some(region.first);
            let next = |id: &ChunkId| Some(self.chunks[*id].next).filter(|id| *id != NIL);
            std::iter::successors(first, next).map(|id| (id, &self.chunks[id]))
        })
    }
}
