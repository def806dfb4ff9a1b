//! Allocates by best fit with coalescing, over regions or address ranges.

pub(crate) mod address_range;
pub(crate) mod bins;
pub(crate) mod chunk;
pub(crate) mod incremental;
pub(crate) mod owner_bits;
pub(crate) mod request;
pub(crate) mod size_class;
mod validate;

use std::sync::Arc;

use millpond_core::{ALLOCATION_ALIGNMENT, align_up};

pub(crate) use crate::heap::incremental::next_size;

use crate::block_map::{Block, BlockMap, ChunkId, NIL};
use crate::heap::bins::{Bins, Wanted};
use crate::heap::chunk::{Chunk, Chunks};
use crate::heap::owner_bits::OwnerBits;
use crate::heap::request::{Fit, Request, Taken, Whose};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{BY_ADDRESS_SHARE, JOIN_SCAN_LIMIT, LEAST_BY_ADDRESS};

/// Contiguous memory, divided into chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// The chunk at the base. Its number never changes.
    pub(crate) first: ChunkId,
}

/// Best fit with coalescing over regions.
///
/// It follows TensorFlow's BFC allocator: chunks know their physical neighbours, are binned by size, split at
/// allocation, and join free neighbours at deallocation. Here a free chunk also has an owner (see
/// [`central`](crate::pool::central)), and only chunks of one owner join. So a chunk depends on the work of
/// one stream alone. When the owner's work is done, its chunks become unowned and join.
///
/// All operations take constant time, except a bounded scan of a bin, and operations that walk regions.
#[derive(Debug)]
pub(crate) struct Heap {
    chunks: Chunks,
    /// Indexed by owner.
    bins: Vec<Option<Bins>>,
    pub(crate) owners: Arc<OwnerBits>,
    /// Sorted by address for look-ups; no choice depends on this order.
    regions: Vec<Region>,
    /// The last chunk of the memory that [`extend`](Self::extend) added last.
    tail: ChunkId,
    /// The number of chunks of a bin that a search compares.
    scan: usize,
    /// While only one stream uses the pool: whether large requests take the lowest of the compared chunks
    /// instead of the smallest.
    pub(crate) by_address: bool,
    /// Whether only one stream uses the pool. Its chunks then join unowned ones.
    pub(crate) has_one_stream: bool,
    pub(crate) bytes_reserved: u64,
    pub(crate) bytes_free: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_in_use: u64,
    /// The number of regions that are one free chunk.
    pub(crate) regions_free: usize,
    /// The number of the next region; 0 for all regions if every run has the same addresses.
    pub(crate) next_number: u32,
}

impl Heap {
    pub(crate) fn new(scan: usize) -> Self {
        Self {
            chunks: Chunks::default(),
            bins: Vec::new(),
            owners: Arc::default(),
            regions: Vec::new(),
            tail: NIL,
            scan,
            by_address: false,
            has_one_stream: true,
            bytes_reserved: 0,
            bytes_free: 0,
            blocks_free: 0,
            blocks_in_use: 0,
            regions_free: 0,
            next_number: 0,
        }
    }

    fn bins(&self, owner: Owner) -> Option<&Bins> {
        self.bins.get(owner as usize)?.as_ref()
    }

    fn all_bins(&self) -> impl Iterator<Item = &Bins> {
        self.bins.iter().flatten()
    }

    fn put_in_bin(&mut self, id: ChunkId) {
        let chunk = &self.chunks[id];
        let index = chunk.owner() as usize;
        self.blocks_free += 1;
        self.bytes_free += chunk.bytes;
        self.regions_free += usize::from(chunk.is_whole_region());
        if self.bins.len() <= index {
            self.bins.resize_with(index + 1, || None);
        }
        self.bins[index].get_or_insert_with(Bins::new).insert(&mut self.chunks, id);
        self.owners.add(index);
    }

    fn take_from_bin(&mut self, id: ChunkId) {
        let chunk = &self.chunks[id];
        self.blocks_free -= 1;
        self.bytes_free -= chunk.bytes;
        self.regions_free -= usize::from(chunk.is_whole_region());
        let bins = self.bins[chunk.owner() as usize].as_mut().expect("a binned chunk's owner has bins");
        bins.remove(&mut self.chunks, id);
        if bins.blocks == 0 {
            let index = self.chunks[id].owner() as usize;
            self.owners.remove(index, self.bins.len());
        }
    }

    /// Splits a chunk, in no bin, in two. Returns the second: a free chunk of the same owner, in no bin.
    fn cut(&mut self, id: ChunkId, at: u64) -> ChunkId {
        let Chunk { addr, bytes, next, .. } = self.chunks[id];
        debug_assert!(0 < at && at < bytes && at.is_multiple_of(ALLOCATION_ALIGNMENT), "I7");
        let (owner, epoch) = (self.chunks[id].owner(), self.chunks[id].epoch());
        let region = self.chunks[id].region;
        let rest = Chunk::free(addr + at, bytes - at, id, next, owner, epoch).in_region(region);
        let rest = self.chunks.add(rest);
        if next != NIL {
            self.chunks[next].prev = rest;
        }
        self.chunks[id].next = rest;
        self.chunks[id].bytes = at;
        if self.tail == id {
            self.tail = rest;
        }
        rest
    }

    /// Joins a free chunk, in no bin, with free neighbours of the same owner. If only one stream uses the
    /// pool, it also joins unowned neighbours. Returns the joined chunk.
    fn join(&mut self, mut id: ChunkId) -> ChunkId {
        let owner = self.chunks[id].owner();
        while let Some(next) = self.neighbour_for(owner, self.chunks[id].next) {
            self.take_from_bin(next);
            self.absorb_next(id);
        }
        while let Some(prev) = self.neighbour_for(owner, self.chunks[id].prev) {
            self.take_from_bin(prev);
            let epoch = self.chunks[prev].epoch();
            self.chunks[prev].set_free(owner, epoch);
            self.absorb_next(prev);
            id = prev;
        }
        id
    }

    fn neighbour_for(&self, owner: Owner, neighbour: ChunkId) -> Option<ChunkId> {
        let other = (neighbour != NIL).then(|| self.chunks[neighbour].owner())?;
        (other == owner || (self.has_one_stream && other == ANY_STREAM)).then_some(neighbour)
    }

    fn absorb_next(&mut self, id: ChunkId) {
        let next = self.chunks[id].next;
        let (owner, epoch) =
            (self.chunks[id].owner(), self.chunks[id].epoch().max(self.chunks[next].epoch()));
        self.merge_next(id);
        self.chunks[id].set_free(owner, epoch);
    }

    /// Merges a chunk with the next one; neither is in a bin.
    fn merge_next(&mut self, id: ChunkId) {
        let next = self.chunks[id].next;
        let Chunk { bytes, next: after, .. } = self.chunks[next];
        self.chunks[id].bytes += bytes;
        self.chunks[id].next = after;
        if after != NIL {
            self.chunks[after].prev = id;
        }
        if self.tail == next {
            self.tail = id;
        }
        self.chunks.remove(next);
    }

    fn is_joinable(&self, id: ChunkId, owner: Owner) -> bool {
        let chunk = &self.chunks[id];
        chunk.owner() == owner || chunk.owner() == ANY_STREAM
    }

    /// Returns the run of neighbours around a chunk that are free for `owner`: the first chunk, and the total
    /// bytes.
    fn run_around(&self, id: ChunkId, owner: Owner) -> (ChunkId, u64) {
        let mut first = id;
        while self.chunks[first].prev != NIL && self.is_joinable(self.chunks[first].prev, owner) {
            first = self.chunks[first].prev;
        }
        let (mut bytes, mut id) = (0, first);
        while id != NIL && self.is_joinable(id, owner) {
            bytes += self.chunks[id].bytes;
            id = self.chunks[id].next;
        }
        (first, bytes)
    }

    /// Returns the chunk with this number, if there is one.
    pub(crate) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.chunks.get(id)
    }

    /// Returns a chunk, in use or free.
    pub(crate) fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id]
    }

    /// Inserts chunk `id`, in use, into the block map under the block's own chunk number.
    pub(crate) fn insert_block(&mut self, block_map: &BlockMap, id: ChunkId, block: Block) {
        let chunk = &mut self.chunks[id];
        match chunk.entry() {
            Some(entry) => entry.renew(block),
            None => chunk.set_entry(block_map.insert(chunk.addr, block)),
        }
    }

    /// Removes a chunk from the block map.
    pub(crate) fn remove_block(&mut self, id: ChunkId) {
        self.chunks.remove_block(id);
    }

    /// Finds the best free chunk of `owner` for the request that was freed in epoch `upto` or before.
    pub(crate) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<ChunkId> {
        let wanted = Wanted { bytes: request.bytes, alignment: request.alignment, upto };
        let bins = self.bins(owner)?;
        let is_large = request.bytes >= LEAST_BY_ADDRESS.max(self.bytes_reserved / BY_ADDRESS_SHARE);
        let is_by_address = self.by_address && self.has_one_stream && is_large;
        let lowest = if is_by_address { bins.find_lowest(&self.chunks, wanted, self.scan) } else { None };
        lowest.or_else(|| bins.find(&self.chunks, wanted, self.scan))
    }

    /// Finds the best free chunk among the owner's and the unowned ones. With `is_own_first`, an owner's
    /// chunk wins if one fits.
    pub(crate) fn find_for(&self, owner: Owner, request: &Request, is_own_first: bool) -> Option<ChunkId> {
        let own = self.find(owner, Epoch::MAX, request);
        if own.is_some_and(|own| is_own_first || self.chunks[own].bytes == request.bytes) {
            return own;
        }
        match (own, self.find(ANY_STREAM, Epoch::MAX, request)) {
            (Some(own), Some(free)) if self.chunks[free].bytes < self.chunks[own].bytes => Some(free),
            (Some(own), _) => Some(own),
            (None, free) => free,
        }
    }

    /// Returns the best fit of `owner` for the request, among the chunks freed in epoch `upto` or before.
    pub(crate) fn fit(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit> {
        let chunk = &self.chunks[self.find(owner, upto, request)?];
        Some(Fit { bytes: chunk.bytes, epoch: chunk.epoch() })
    }

    /// Returns the largest free chunk of `owner`, if it was freed in epoch `upto` or before and fits the
    /// request; otherwise the best one.
    pub(crate) fn largest_for(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<ChunkId> {
        let largest = self.bins(owner)?.largest_chunk(&self.chunks)?;
        let wanted = Wanted { bytes: request.bytes, alignment: request.alignment, upto };
        let chunk = &self.chunks[largest];
        if wanted.accepts(chunk.addr, chunk.bytes, chunk.epoch()) {
            return Some(largest);
        }
        self.find(owner, upto, request)
    }

    /// Hands out the best free bytes for the request.
    pub(crate) fn take_best(&mut self, whose: Whose, request: &Request) -> Option<Taken> {
        let found = match whose {
            Whose::Of(owner, upto) => self.find(owner, upto, request)?,
            Whose::OwnOrUnowned { owner, is_own_first } => self.find_for(owner, request, is_own_first)?,
            Whose::Joined(owner) => return self.take_with_unowned(owner, request),
        };
        let Chunk { addr, .. } = self.chunks[found];
        let (was_unowned, epoch) = (self.chunks[found].owner() == ANY_STREAM, self.chunks[found].epoch());
        let addr = align_up(addr, request.alignment)?;
        let chunk = self.take_at(found, addr, request.bytes);
        Some(Taken { chunk, addr, was_unowned, epoch })
    }

    /// Hands out `bytes` of a free chunk, starting at the first multiple of `alignment`. The rest stays free.
    pub(crate) fn take(&mut self, id: ChunkId, bytes: u64, alignment: u64) -> ChunkId {
        let addr = self.chunks[id].addr;
        let padding = addr.wrapping_neg() & (alignment - 1);
        self.take_at(id, addr + padding, bytes)
    }

    /// Hands out these bytes of a free chunk.
    pub(crate) fn take_at(&mut self, id: ChunkId, addr: u64, bytes: u64) -> ChunkId {
        self.take_from_bin(id);
        let id = self.cut_out(id, addr, bytes);
        self.chunks[id].set_in_use();
        self.blocks_in_use += 1;
        id
    }

    /// Cuts these bytes out of a free chunk, in no bin. The rest goes to the bins.
    fn cut_out(&mut self, mut id: ChunkId, addr: u64, bytes: u64) -> ChunkId {
        let before = addr - self.chunks[id].addr;
        if before > 0 {
            let rest = self.cut(id, before);
            self.put_in_bin(id);
            id = rest;
        }
        if self.chunks[id].bytes > bytes {
            let rest = self.cut(id, bytes);
            self.put_in_bin(rest);
        }
        id
    }

    /// Frees a chunk for `owner`.
    pub(crate) fn free(&mut self, id: ChunkId, owner: Owner, epoch: Epoch) {
        debug_assert!(self.chunks[id].is_in_use());
        self.blocks_in_use -= 1;
        self.chunks[id].set_free(owner, epoch);
        let joined = self.join(id);
        self.put_in_bin(joined);
    }

    /// Moves free chunks freed in epoch `upto` or before to another owner, as freed in `epoch`.
    pub(crate) fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        let Some(bins) = self.bins(from) else { return };
        let moving: Vec<u32> =
            bins.iter(&self.chunks).filter(|id| self.chunks[*id].epoch() <= upto).collect();
        self.hand_over(&moving, from, to, epoch);
    }

    /// Moves these free chunks to another owner.
    fn hand_over(&mut self, moving: &[ChunkId], from: Owner, to: Owner, epoch: Epoch) {
        for id in moving.iter().copied() {
            // If only one stream uses the pool, a chunk that moves may join another chunk of `moving`.
            if self.chunks.get(id).is_some_and(|chunk| chunk.owner() == from) {
                self.take_from_bin(id);
                self.chunks[id].set_free(to, epoch);
                let joined = self.join(id);
                self.put_in_bin(joined);
            }
        }
    }

    /// Finds free neighbours, some of `owner` and some unowned, that together fit the request. Callers have
    /// looked for a single chunk before. Returns the first neighbour, and the block's address.
    pub(crate) fn find_run(&self, owner: Owner, request: &Request) -> Option<(ChunkId, u64)> {
        // Free neighbours of one owner are one chunk, so a run of several chunks has an unowned one.
        let (own, unowned) = (self.bins(owner)?, self.bins(ANY_STREAM)?);
        if own.bytes + unowned.bytes < request.bytes {
            return None;
        }
        // Fewer chunks tell sooner that no run fits.
        let fits_around = |id| self.run_that_fits(id, owner, request).is_some();
        if unowned.blocks < own.blocks && !unowned.iter(&self.chunks).any(fits_around) {
            return None;
        }
        own.iter(&self.chunks).take(JOIN_SCAN_LIMIT).find_map(|id| self.run_that_fits(id, owner, request))
    }

    /// Returns the run of neighbours around a chunk that are free for `owner`, if it fits the request: its
    /// first chunk, and the block's address.
    fn run_that_fits(&self, id: ChunkId, owner: Owner, request: &Request) -> Option<(ChunkId, u64)> {
        let (first, bytes) = self.run_around(id, owner);
        let (start, end) = (self.chunks[first].addr, self.chunks[first].addr + bytes);
        // If the block starts at the owner's chunk, it takes the fewest bytes of unowned neighbours.
        let from = self.chunks[id].addr.min(end.saturating_sub(request.bytes)).max(start);
        let fits = |from| align_up(from, request.alignment).filter(|addr| addr + request.bytes <= end);
        Some((first, fits(from).or_else(|| fits(start))?))
    }

    /// Hands out free neighbours, owned by `owner` or unowned, that together fit the request.
    pub(crate) fn take_with_unowned(&mut self, owner: Owner, request: &Request) -> Option<Taken> {
        let (first, addr) = self.find_run(owner, request)?;
        let epoch = self.run(first, owner).map(Chunk::epoch).max()?;
        let chunk = self.take_run(first, addr, request.bytes);
        Some(Taken { chunk, addr, was_unowned: false, epoch })
    }

    /// Returns the bytes in the free chunks of an owner.
    pub(crate) fn free_bytes(&self, owner: Owner) -> u64 {
        self.bins(owner).map_or(0, |bins| bins.bytes)
    }

    pub(crate) fn largest_free_block(&self) -> u64 {
        self.all_bins().map(|bins| bins.largest(&self.chunks)).max().unwrap_or(0)
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Adds memory as one free chunk of `owner`, and returns that chunk.
    pub(crate) fn add_region(&mut self, base: u64, bytes: u64, owner: Owner, epoch: Epoch) -> ChunkId {
        let chunk = Chunk::free(base, bytes, NIL, NIL, owner, epoch).in_region(self.next_number);
        let first = self.chunks.add(chunk);
        let at = self.regions.partition_point(|region| region.base < base);
        self.regions.insert(at, Region { base, bytes, first });
        self.bytes_reserved += bytes;
        self.put_in_bin(first);
        first
    }

    /// Removes the oldest region that is one free chunk, if `accepts` allows it. Returns the region, and the
    /// owner and epoch of the chunk.
    pub(crate) fn remove_free_region(
        &mut self,
        accepts: impl Fn(&Chunk) -> bool,
    ) -> Option<(Region, Owner, Epoch)> {
        if self.regions_free == 0 {
            return None;
        }
        let firsts = self.regions.iter().map(|region| &self.chunks[region.first]).enumerate();
        let is_free =
            |(_, first): &(usize, &Chunk)| first.is_free() && first.is_whole_region() && accepts(first);
        let (index, _) = firsts.filter(is_free).min_by_key(|(_, first)| first.place())?;
        let region = self.regions.remove(index);
        let (owner, epoch) = (self.chunks[region.first].owner(), self.chunks[region.first].epoch());
        self.take_from_bin(region.first);
        self.chunks.remove(region.first);
        self.bytes_reserved -= region.bytes;
        Some((region, owner, epoch))
    }

    /// Removes all regions, in use or not.
    pub(crate) fn remove_all_regions(&mut self) -> Vec<Region> {
        std::mem::take(&mut self.regions)
    }

    /// Returns the bytes of a region for the request: at least `wanted`, and a multiple of `unit`.
    pub(crate) fn region_for(request: &Request, wanted: u64, unit: u64) -> u64 {
        let least = request.padded_bytes();
        align_up(wanted.max(least), unit).unwrap_or(least)
    }

    /// Returns the chunk that holds an address. Walks the chunks of a region.
    pub(crate) fn chunk_at(&self, addr: u64) -> Option<&Chunk> {
        let after = self.regions.partition_point(|region| region.base <= addr);
        let region = after.checked_sub(1).map(|index| &self.regions[index])?;
        if addr - region.base >= region.bytes {
            return None;
        }
        self.region_chunks(region).find(|chunk| addr < chunk.addr + chunk.bytes)
    }

    /// Returns the chunks of a region, by address.
    pub(crate) fn region_chunks(&self, region: &Region) -> impl Iterator<Item = &Chunk> {
        let first = Some(&self.chunks[region.first]);
        std::iter::successors(first, |chunk| (chunk.next != NIL).then(|| &self.chunks[chunk.next]))
    }

    /// Returns each owner with free blocks: their number, their bytes, and the bytes of the largest.
    pub(crate) fn free_by_owner(&self) -> impl Iterator<Item = (Owner, u64, u64, u64)> {
        let owners = (0..).zip(&self.bins).filter_map(|(owner, bins)| Some((owner, bins.as_ref()?)));
        owners
            .filter(|(_, bins)| bins.blocks > 0)
            .map(|(owner, bins)| (owner, bins.blocks, bins.bytes, bins.largest(&self.chunks)))
    }
}

#[cfg(test)]
mod tests;
