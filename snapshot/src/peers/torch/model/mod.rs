//! The rules of PyTorch's native caching allocator, without a driver.
//!
//! Each pool has small blocks, up to 1 MiB, and large blocks, in separate segments. Free blocks are sorted by
//! stream, size, age of the segment if it matters, and address. A request takes the first block that is
//! large enough, which is the best fit. If the rest of the block is large enough, it is split off. Free
//! neighbours in a segment are merged.

mod growing;

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::settings::Settings;
use crate::recording::DEFAULT_POOL;

const MIB: u64 = 1 << 20;

/// The largest request that small segments serve, in bytes after rounding.
const SMALL: u64 = MIB;

/// The smallest block in bytes.
const SMALLEST: u64 = 512;

/// The value that stands for no block.
const NONE: u32 = u32::MAX;

/// Where segments come from: a driver, or the segments of a recording. Sizes are in bytes.
pub(crate) trait Memory {
    /// Allocates a segment, and returns its address. Returns `None` if the driver refuses.
    fn allocate(&mut self, bytes: u64) -> Option<u64>;
    /// Frees a segment.
    fn free(&mut self, address: u64, bytes: u64);
    /// Reserves addresses for a growing segment. Returns the start and the number of bytes.
    fn reserve(&mut self, page: u64) -> Option<(u64, u64)>;
    /// Maps memory at reserved addresses, in pages of `page` bytes. Returns `false` if the driver refuses.
    fn map(&mut self, address: u64, bytes: u64, page: u64) -> bool;
    /// Unmaps memory from reserved addresses.
    fn unmap(&mut self, address: u64, bytes: u64, page: u64);
    /// Frees a reservation that has no memory.
    fn unreserve(&mut self, address: u64, bytes: u64);
    /// Waits for the held blocks. Returns blocks whose frees the caller has to complete.
    fn wait(&mut self) -> Vec<u64>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Used,
    /// The program freed the block, but another stream still uses it.
    Held,
}

/// A block, or a range of a growing segment that has no memory.
#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    bytes: u64,
    stream: u64,
    pool: u32,
    prev: u32,
    next: u32,
    state: State,
    is_mapped: bool,
    /// The address of the growing segment that holds the block, if it is in one.
    growing: Option<u64>,
    /// The number of the segment, in the order of their making, if their age matters.
    segment: u64,
    /// How often the pool had been searched when the block became free.
    free_since: u64,
}

impl Block {
    fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }
}

/// The free blocks of one pool, for small or for large requests.
#[derive(Debug)]
struct Pool {
    id: (u64, u64),
    is_small: bool,
    /// The free blocks by stream, size, segment and address.
    free: BTreeSet<(u64, u64, u64, u64, u32)>,
    /// The ranges without memory, by stream and address.
    unmapped: BTreeSet<(u64, u64, u32)>,
    /// The number of searches; unused segments age by it.
    searches: u64,
}

impl Pool {
    fn page(&self, settings: &Settings) -> u64 {
        if self.is_small { 2 * MIB } else { settings.large_segment }
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The requested size.
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: (u64, u64),
}

/// PyTorch's allocator for one device.
#[derive(Debug)]
pub(crate) struct Torch {
    settings: Settings,
    blocks: Vec<Block>,
    unused: Vec<u32>,
    pools: Vec<Pool>,
    live: FxHashMap<u64, u32>,
    /// All free blocks by address.
    free_at: BTreeSet<(u64, u32)>,
    reserved: u64,
    /// The number of segments so far.
    segments: u64,
}

impl Torch {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut torch = Self {
            settings,
            blocks: Vec::new(),
            unused: Vec::new(),
            pools: Vec::new(),
            live: FxHashMap::default(),
            free_at: BTreeSet::new(),
            reserved: 0,
            segments: 0,
        };
        // Pools return memory in this order, which decides where the driver puts the next segments.
        for is_small in [false, true] {
            torch.pool(DEFAULT_POOL, is_small);
        }
        torch
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    /// Returns the stream of a live block.
    pub(crate) fn stream_of(&self, address: u64) -> Option<u64> {
        self.live.get(&address).map(|&at| self.blocks[at as usize].stream)
    }

    /// Serves a request; `None` if there is no memory.
    pub(crate) fn allocate(&mut self, memory: &mut impl Memory, request: Request) -> Option<u64> {
        let rounded = self.settings.rounded(request.bytes);
        let pool = self.pool(request.pool, rounded <= SMALL);
        if self.collects() {
            self.pools[pool as usize].searches += 1;
        }
        let found = self.find(pool, request.stream, rounded);
        let block = match found {
            Some(block) => {
                self.remove_free(block);
                block
            }
            None => self.grow(memory, pool, request.stream, rounded)?,
        };
        let rest = self.blocks[block as usize].bytes - rounded;
        if self.splits(pool, rounded, rest) {
            self.split(block, rounded);
        }
        let found = &mut self.blocks[block as usize];
        found.state = State::Used;
        let address = found.address;
        self.live.insert(address, block);
        Some(address)
    }

    /// Returns whether free blocks would serve a request.
    pub(crate) fn has_free(&mut self, request: Request) -> bool {
        let rounded = self.settings.rounded(request.bytes);
        let pool = self.pool(request.pool, rounded <= SMALL);
        self.find(pool, request.stream, rounded).is_some()
    }

    /// Marks a live block as held: the program has freed it, but other streams still use it.
    pub(crate) fn hold(&mut self, address: u64) {
        if let Some(&at) = self.live.get(&address) {
            self.blocks[at as usize].state = State::Held;
        }
    }

    /// Frees a live block. Returns whether there is such a block.
    pub(crate) fn free(&mut self, address: u64) -> bool {
        let Some(block) = self.live.remove(&address) else { return false };
        self.blocks[block as usize].state = State::Free;
        self.merge_with_neighbours(block);
        self.insert_free(block);
        true
    }

    /// Waits for the held blocks, and returns every segment without blocks to the driver, also segments of
    /// private pools.
    pub(crate) fn empty_cache(&mut self, memory: &mut impl Memory) {
        self.wait(memory);
        (0..self.pools.len()).for_each(|pool| self.release_pool(memory, pool));
    }

    /// If the segment at this address is free, returns it to the driver. In a growing segment, does so for
    /// the memory of this range. Returns whether the segment or the range was free.
    pub(crate) fn release_at(&mut self, memory: &mut impl Memory, address: u64) -> bool {
        let Some(&(_, at)) = self.free_at.range(..=(address, NONE)).next_back() else { return false };
        let block = &self.blocks[at as usize];
        let is_it = match block.growing {
            Some(_) => address - block.address < block.bytes,
            None => block.address == address && !block.is_split(),
        };
        if !is_it {
            return false;
        }
        match block.growing {
            Some(_) => self.unmap(memory, at),
            None => self.release(memory, at),
        }
        true
    }

    /// Adds an existing segment with its live blocks, in the order of addresses. Each block has its bytes,
    /// and whether it is held. The ranges between the blocks are free.
    pub(crate) fn adopt(
        &mut self,
        range: (u64, u64),
        stream: u64,
        pool: (u64, u64),
        grows_to: Option<u64>,
        live: &[(u64, u64, bool)],
    ) {
        let (start, bytes) = range;
        let is_small = match grows_to {
            // A growing segment does not show which blocks it is for. It counts as a segment of small blocks
            // if all its blocks are small.
            Some(_) => !live.is_empty() && live.iter().all(|(_, bytes, _)| *bytes <= SMALL),
            None => bytes <= 2 * MIB,
        };
        let pool = self.pool(pool, is_small);
        let end = start + bytes;
        let mut pieces: Vec<(u64, u64, State)> = Vec::new();
        let mut at = start;
        for &(address, bytes, is_held) in live {
            let (from, to) = (address.clamp(at, end), address.saturating_add(bytes).clamp(at, end));
            if to == from {
                continue;
            }
            if from > at {
                pieces.push((at, from - at, State::Free));
            }
            pieces.push((from, to - from, if is_held { State::Held } else { State::Used }));
            at = to;
        }
        if at < end {
            pieces.push((at, end - at, State::Free));
        }
        let mut prev = NONE;
        let segment = self.next_segment();
        for (address, bytes, state) in pieces {
            let growing = grows_to.map(|_| start);
            let block = self.add_block(Block {
                prev,
                state,
                growing,
                ..plain(address, bytes, stream, pool, segment)
            });
            self.link(prev, block);
            match state {
                State::Free => self.insert_free(block),
                _ => drop(self.live.insert(address, block)),
            }
            prev = block;
        }
        if let Some(to) = grows_to.filter(|to| *to > end) {
            let tail = Block {
                prev,
                growing: Some(start),
                is_mapped: false,
                ..plain(end, to - end, stream, pool, segment)
            };
            let tail = self.add_block(tail);
            self.link(prev, tail);
            self.pools[pool as usize].unmapped.insert((stream, end, tail));
        }
        self.reserved = self.reserved.saturating_add(bytes);
    }

    /// Frees the blocks that other streams still use, after waiting for these streams.
    fn wait(&mut self, memory: &mut impl Memory) {
        for address in memory.wait() {
            self.free(address);
        }
    }

    fn collects(&self) -> bool {
        self.settings.garbage_collection > 0.0 && self.settings.limit != u64::MAX
    }

    fn pool(&mut self, id: (u64, u64), is_small: bool) -> u32 {
        let known = self.pools.iter().position(|pool| (pool.id, pool.is_small) == (id, is_small));
        known.unwrap_or_else(|| {
            let (free, unmapped) = (BTreeSet::new(), BTreeSet::new());
            self.pools.push(Pool { id, is_small, free, unmapped, searches: 0 });
            self.pools.len() - 1
        }) as u32
    }

    /// Returns the number of a new segment; always 0 if the age of segments does not matter.
    fn next_segment(&mut self) -> u64 {
        self.segments += u64::from(self.settings.is_oldest_first);
        self.segments
    }

    fn add_block(&mut self, block: Block) -> u32 {
        if let Some(at) = self.unused.pop() {
            self.blocks[at as usize] = block;
            return at;
        }
        self.blocks.push(block);
        self.blocks.len() as u32 - 1
    }

    fn link(&mut self, prev: u32, next: u32) {
        if prev != NONE {
            self.blocks[prev as usize].next = next;
        }
        if next != NONE {
            self.blocks[next as usize].prev = prev;
        }
    }

    fn insert_free(&mut self, at: u32) {
        let block = &mut self.blocks[at as usize];
        let pool = &mut self.pools[block.pool as usize];
        block.free_since = pool.searches;
        pool.free.insert((block.stream, block.bytes, block.segment, block.address, at));
        self.free_at.insert((block.address, at));
    }

    fn remove_free(&mut self, at: u32) {
        let block = &self.blocks[at as usize];
        let entry = (block.stream, block.bytes, block.segment, block.address, at);
        self.pools[block.pool as usize].free.remove(&entry);
        self.free_at.remove(&(block.address, at));
    }

    /// Returns the free block that a request takes.
    fn find(&self, pool: u32, stream: u64, bytes: u64) -> Option<u32> {
        let range = (stream, bytes, 0, 0, 0)..=(stream, u64::MAX, u64::MAX, u64::MAX, NONE);
        let mut candidates = self.pools[pool as usize].free.range(range).map(|entry| entry.4).peekable();
        let mut found = candidates.next()?;
        if self.blocks[found as usize].growing.is_some() && self.settings.is_expandable {
            // For a block at the end of a growing segment, the memory that the segment can still get counts
            // as well.
            while let Some(&next) = candidates.peek()
                && self.blocks[found as usize].growing.is_some()
                && self.room(next) < self.room(found)
            {
                found = next;
                candidates.next();
            }
        }
        let (has, max_split) = (self.blocks[found as usize].bytes, self.settings.max_split);
        if bytes < max_split {
            return (has < max_split).then_some(found);
        }
        (has < bytes.saturating_add(self.settings.max_non_split_rounding)).then_some(found)
    }

    /// Returns the bytes of a block, including the bytes by which its segment can grow after the block.
    fn room(&self, at: u32) -> u64 {
        let block = &self.blocks[at as usize];
        let next = (block.next != NONE).then(|| &self.blocks[block.next as usize]);
        block.bytes + next.filter(|next| !next.is_mapped).map_or(0, |next| next.bytes)
    }

    fn splits(&self, pool: u32, bytes: u64, rest: u64) -> bool {
        if self.pools[pool as usize].is_small || self.settings.is_expandable {
            return rest >= SMALLEST;
        }
        bytes < self.settings.max_split && rest > self.settings.unsplit
    }

    /// Splits the end off a block that is in no list. The end becomes a free block.
    fn split(&mut self, at: u32, bytes: u64) {
        let block = self.blocks[at as usize];
        let (address, rest) = (block.address + bytes, block.bytes - bytes);
        let end = self.add_block(Block { address, bytes: rest, prev: at, state: State::Free, ..block });
        self.blocks[at as usize].bytes = bytes;
        self.link(end, block.next);
        self.link(at, end);
        self.insert_free(end);
    }

    /// Merges a free block that is in no list with its neighbours.
    fn merge_with_neighbours(&mut self, at: u32) {
        for other in [self.blocks[at as usize].prev, self.blocks[at as usize].next] {
            self.merge(at, other);
        }
    }

    /// Merges a neighbour into a block. The neighbour must be free, and both of them or none of them must
    /// have memory.
    fn merge(&mut self, at: u32, other: u32) {
        if other == NONE {
            return;
        }
        let (block, source) = (self.blocks[at as usize], self.blocks[other as usize]);
        if source.state != State::Free || source.is_mapped != block.is_mapped {
            return;
        }
        if source.is_mapped {
            self.remove_free(other);
        } else {
            self.pools[source.pool as usize].unmapped.remove(&(source.stream, source.address, other));
        }
        let merged = &mut self.blocks[at as usize];
        merged.address = block.address.min(source.address);
        merged.bytes += source.bytes;
        if block.prev == other {
            self.link(source.prev, at);
        } else {
            self.link(at, source.next);
        }
        self.unused.push(other);
    }

    /// Reserves memory for a request that no free block serves. The block is in no list.
    fn grow(&mut self, memory: &mut impl Memory, pool: u32, stream: u64, bytes: u64) -> Option<u32> {
        if self.collects() {
            self.collect(memory);
        }
        if let Some(block) = self.take(memory, pool, stream, bytes) {
            return Some(block);
        }
        if self.release_oversize(memory, pool, stream, bytes)
            && let Some(block) = self.take(memory, pool, stream, bytes)
        {
            return Some(block);
        }
        self.wait(memory);
        for pool in 0..self.pools.len() {
            if self.pools[pool].id == DEFAULT_POOL {
                self.release_pool(memory, pool);
            }
        }
        self.take(memory, pool, stream, bytes)
    }

    fn take(&mut self, memory: &mut impl Memory, pool: u32, stream: u64, bytes: u64) -> Option<u32> {
        let segment = self.settings.segment(bytes);
        let reserved = self.reserved.checked_add(segment)?;
        if reserved > self.settings.limit {
            return None;
        }
        if self.settings.is_expandable {
            return self.expand(memory, pool, stream, bytes);
        }
        let address = memory.allocate(segment)?;
        self.reserved = reserved;
        let number = self.next_segment();
        Some(self.add_block(plain(address, segment, stream, pool, number)))
    }

    /// Returns oversize blocks to the driver until there is room for a request. If there are too few of them,
    /// returns none.
    fn release_oversize(&mut self, memory: &mut impl Memory, pool: u32, stream: u64, bytes: u64) -> bool {
        let max_split = self.settings.max_split;
        if max_split == u64::MAX {
            return false;
        }
        let wanted = bytes.max(max_split);
        let free = &self.pools[pool as usize].free;
        // A part of a segment that grows or was split cannot be returned as a segment.
        let is_whole = |at: u32| {
            let block = &self.blocks[at as usize];
            block.growing.is_none() && !block.is_split()
        };
        let large =
            free.range((stream, wanted, 0, 0, 0)..=(stream, u64::MAX, u64::MAX, u64::MAX, NONE)).next();
        if let Some(block) = large.map(|entry| entry.4).filter(|block| is_whole(*block)) {
            self.release(memory, block);
            return true;
        }
        let smaller = free.range((stream, max_split, 0, 0, 0)..(stream, wanted, 0, 0, 0)).rev();
        let oversize: Vec<u32> = smaller.map(|entry| entry.4).filter(|block| is_whole(*block)).collect();
        let mut released = 0;
        for block in oversize {
            if released >= wanted {
                break;
            }
            released += self.blocks[block as usize].bytes;
            self.release(memory, block);
        }
        released >= wanted
    }

    /// Returns memory without blocks to the driver.
    fn release_pool(&mut self, memory: &mut impl Memory, pool: usize) {
        let free: Vec<u32> = self.pools[pool].free.iter().map(|entry| entry.4).collect();
        let (growing, whole): (Vec<u32>, Vec<u32>) =
            free.into_iter().partition(|block| self.blocks[*block as usize].growing.is_some());
        for block in whole {
            if !self.blocks[block as usize].is_split() {
                self.release(memory, block);
            }
        }
        growing.into_iter().for_each(|block| self.unmap(memory, block));
    }

    /// Returns a segment whose only block is free to the driver.
    fn release(&mut self, memory: &mut impl Memory, at: u32) {
        let Block { address, bytes, .. } = self.blocks[at as usize];
        self.remove_free(at);
        memory.free(address, bytes);
        self.reserved = self.reserved.saturating_sub(bytes);
        self.unused.push(at);
    }

    /// Returns segments that were unused for longer than average to the driver, until the reserved memory is
    /// below the threshold.
    fn collect(&mut self, memory: &mut impl Memory) {
        let threshold = (self.settings.garbage_collection * self.settings.limit as f64) as u64;
        if self.reserved <= threshold {
            return;
        }
        let target = self.reserved - threshold;
        let large = self.pool(DEFAULT_POOL, false) as usize;
        let whole = |this: &Self| -> Vec<u32> {
            let free = this.pools[large].free.iter().map(|entry| entry.4);
            free.filter(|block| !this.blocks[*block as usize].is_split()).collect()
        };
        let age = |this: &Self, block: u32| {
            (this.pools[large].searches - this.blocks[block as usize].free_since) as f64
        };
        let mut candidates = whole(self);
        let mut total: f64 = candidates.iter().map(|block| age(self, *block)).sum();
        let (mut reclaimed, mut has_freed) = (0, true);
        while reclaimed < target && has_freed && !candidates.is_empty() {
            let oldest = total / candidates.len() as f64;
            has_freed = false;
            for block in std::mem::take(&mut candidates) {
                let is_growing = self.blocks[block as usize].growing.is_some();
                if is_growing || age(self, block) < oldest {
                    candidates.push(block);
                    continue;
                }
                has_freed = true;
                reclaimed += self.blocks[block as usize].bytes;
                total -= age(self, block);
                self.release(memory, block);
            }
        }
    }

    /// Returns the bytes of the largest free block, and the number of free blocks.
    pub(crate) fn free_blocks(&self) -> (u64, u64) {
        let sizes = self.pools.iter().flat_map(|pool| &pool.free).map(|entry| entry.1);
        sizes.fold((0, 0), |(largest, count), bytes| (largest.max(bytes), count + 1))
    }
}

/// Returns a free block that has memory and no neighbours.
fn plain(address: u64, bytes: u64, stream: u64, pool: u32, segment: u64) -> Block {
    Block {
        address,
        bytes,
        stream,
        pool,
        prev: NONE,
        next: NONE,
        state: State::Free,
        is_mapped: true,
        growing: None,
        segment,
        free_since: 0,
    }
}
