//! Segments that grow: ranges of reserved addresses that get memory from their start, page by page.

use super::{Block, Memory, NONE, State, Torch, plain};

impl Torch {
    /// Serves a request from a growing segment. The block is in no list.
    pub(super) fn expand(
        &mut self,
        memory: &mut impl Memory,
        pool: u32,
        stream: u64,
        bytes: u64,
    ) -> Option<u32> {
        let mut block = self.find_room(memory, pool, stream, bytes)?;
        if !self.blocks[block as usize].is_mapped {
            let has = self.blocks[block as usize].bytes;
            block = self.map(memory, block, has.min(bytes))?;
        }
        while self.blocks[block as usize].bytes < bytes {
            let Block { bytes: has, next, .. } = self.blocks[block as usize];
            let room = self.blocks[next as usize].bytes;
            block = self.map(memory, next, room.min(bytes - has))?;
        }
        self.remove_free(block);
        Some(block)
    }

    /// Returns the lowest block from which there is room for a request. The block is free, or has no memory
    /// yet.
    fn find_room(&mut self, memory: &mut impl Memory, pool: u32, stream: u64, bytes: u64) -> Option<u32> {
        let is_usable = |this: &Self, at: u32| at != NONE && this.blocks[at as usize].state == State::Free;
        let range = (stream, 0, 0)..=(stream, u64::MAX, NONE);
        for &(.., at) in self.pools[pool as usize].unmapped.range(range) {
            let prev = self.blocks[at as usize].prev;
            let first = if is_usable(self, prev) { prev } else { at };
            let (mut block, mut room) = (first, 0);
            while room < bytes && is_usable(self, block) {
                room += self.blocks[block as usize].bytes;
                block = self.blocks[block as usize].next;
            }
            if room >= bytes {
                return Some(first);
            }
        }
        let (address, room) = memory.reserve(self.pools[pool as usize].page(&self.settings))?;
        let range = plain(address, room, stream, pool, self.next_segment());
        let range = Block { is_mapped: false, growing: Some(address), ..range };
        let at = self.add_block(range);
        self.pools[pool as usize].unmapped.insert((stream, address, at));
        (room >= bytes).then_some(at)
    }

    /// Adds memory at the start of a range that has no memory. Returns the free block that the memory becomes
    /// a part of.
    fn map(&mut self, memory: &mut impl Memory, at: u32, bytes: u64) -> Option<u32> {
        let range = self.blocks[at as usize];
        let page = self.pools[range.pool as usize].page(&self.settings);
        let mapped = bytes.checked_next_multiple_of(page)?.min(range.bytes);
        if !memory.map(range.address, mapped, page) {
            return None;
        }
        self.pools[range.pool as usize].unmapped.remove(&(range.stream, range.address, at));
        self.blocks[at as usize].is_mapped = true;
        if mapped < range.bytes {
            let (address, rest) = (range.address + mapped, range.bytes - mapped);
            let tail = self.add_block(Block { address, bytes: rest, prev: at, ..range });
            self.blocks[at as usize].bytes = mapped;
            self.link(tail, range.next);
            self.link(at, tail);
            self.pools[range.pool as usize].unmapped.insert((range.stream, address, tail));
        }
        self.merge_with_neighbours(at);
        self.insert_free(at);
        self.reserved = self.reserved.saturating_add(mapped);
        Some(at)
    }

    /// Removes the whole pages of a free block from a growing segment.
    pub(super) fn unmap(&mut self, memory: &mut impl Memory, at: u32) {
        let block = self.blocks[at as usize];
        let page = self.pools[block.pool as usize].page(&self.settings);
        let base = block.growing.unwrap_or(block.address);
        let start = base + (block.address - base).next_multiple_of(page);
        let end = base + (block.address + block.bytes - base) / page * page;
        if start >= end {
            return;
        }
        self.remove_free(at);
        memory.unmap(start, end - start, page);
        self.reserved = self.reserved.saturating_sub(end - start);
        if start > block.address {
            let bytes = start - block.address;
            let before = self.add_block(Block { bytes, ..block });
            self.link(block.prev, before);
            self.link(before, at);
            self.insert_free(before);
        }
        let after = block.address + block.bytes - end;
        if after > 0 {
            let rest = self.add_block(Block { address: end, bytes: after, ..block });
            self.link(rest, block.next);
            self.link(at, rest);
            self.insert_free(rest);
        }
        let range = &mut self.blocks[at as usize];
        (range.address, range.bytes, range.is_mapped) = (start, end - start, false);
        self.merge_with_neighbours(at);
        let range = self.blocks[at as usize];
        if range.is_split() {
            self.pools[range.pool as usize].unmapped.insert((range.stream, range.address, at));
        } else {
            memory.unreserve(range.address, range.bytes);
            self.unused.push(at);
        }
    }
}
