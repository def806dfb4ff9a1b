//! The table of chunks, the pieces of memory that a heap hands out.

use std::ops::{Index, IndexMut};
use std::ptr;

use crate::block_map::{BlockEntry, ChunkId, NIL};
use crate::stream_order::{Epoch, Owner};

/// The owner of a chunk in use.
const IN_USE: Owner = Owner::MAX;
/// The owner of a table entry that holds no chunk.
const VACANT: Owner = Owner::MAX - 1;

/// A piece of a region, in use or free. It takes 64 bytes of host memory; the CPU never accesses the device
/// memory.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Chunk {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// The chunk that ends where this one starts, in the same region.
    pub(crate) prev: u32,
    /// The chunk that starts where this one ends, in the same region.
    pub(crate) next: u32,
    /// The neighbours of a free chunk in its bin. For a chunk in use, `bin_next` links to the next piece; for
    /// a vacant entry, to the next vacant entry.
    pub(crate) bin_prev: u32,
    pub(crate) bin_next: u32,
    /// The owner of a free chunk, or `IN_USE`, or `VACANT`.
    owner: Owner,
    /// The number of its region; see [`Chunk::place`].
    pub(crate) region: u32,
    /// The epoch in which a free chunk was freed.
    epoch: Epoch,
    /// The entry in the block map: set at the first hand-out, and kept while a chunk starts here.
    entry: *const BlockEntry,
}

impl Chunk {
    pub(crate) fn free(addr: u64, bytes: u64, prev: u32, next: u32, owner: Owner, epoch: Epoch) -> Self {
        let (bin_prev, bin_next, region, entry) = (NIL, NIL, 0, ptr::null());
        Self { addr, bytes, prev, next, bin_prev, bin_next, owner, region, epoch, entry }
    }

    /// Returns the same chunk in the region with this number.
    pub(crate) fn in_region(self, region: u32) -> Self {
        Self { region, ..self }
    }

    /// Returns a key that orders chunks by place, whatever addresses the driver returns: the region's number,
    /// then the address, which orders like the offset in the region.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.region, self.addr)
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.owner == IN_USE
    }

    pub(crate) fn is_free(&self) -> bool {
        self.owner < VACANT
    }

    /// Returns whether the chunk is its whole region.
    pub(crate) fn is_whole_region(&self) -> bool {
        self.prev == NIL && self.next == NIL
    }

    /// Returns the owner of a free chunk. For other chunks, returns a number that no owner has.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the epoch in which a free chunk was freed.
    pub(crate) fn epoch(&self) -> Epoch {
        debug_assert!(self.is_free());
        self.epoch
    }

    /// Returns the chunk's entry in the block map.
    pub(crate) fn entry(&self) -> Option<&BlockEntry> {
        // SAFETY: the pool that set the entry has the block map, which lives as long as the pool's chunks.
        unsafe { self.entry.as_ref() }
    }

    pub(crate) fn set_entry(&mut self, entry: &BlockEntry) {
        self.entry = entry;
    }

    pub(crate) fn set_in_use(&mut self) {
        self.owner = IN_USE;
    }

    pub(crate) fn set_free(&mut self, owner: Owner, epoch: Epoch) {
        debug_assert!(owner < VACANT);
        self.owner = owner;
        self.epoch = epoch;
    }
}

// SAFETY: an entry consists of atomics, and lives as long as the pool.
unsafe impl Send for Chunk {}

/// All chunks of a heap, by number; vacant entries are reused.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    table: Vec<Chunk>,
    vacant: Option<u32>,
}

impl Chunks {
    pub(crate) fn add(&mut self, chunk: Chunk) -> u32 {
        match self.vacant {
            Some(id) => {
                self.vacant = Some(self.table[id as usize].bin_next).filter(|id| *id != NIL);
                self.table[id as usize] = chunk;
                id
            }
            None => {
                self.table.push(chunk);
                (self.table.len() - 1) as u32
            }
        }
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.remove_block(id);
        let chunk = &mut self.table[id as usize];
        chunk.owner = VACANT;
        chunk.bin_next = self.vacant.unwrap_or(NIL);
        self.vacant = Some(id);
    }

    /// Removes a chunk from the block map.
    pub(crate) fn remove_block(&mut self, id: ChunkId) {
        let chunk = &mut self.table[id as usize];
        if let Some(entry) = chunk.entry() {
            entry.remove();
            chunk.entry = ptr::null();
        }
    }

    /// Returns the chunk with this number, if there is one.
    pub(crate) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.table.get(id as usize).filter(|chunk| chunk.owner != VACANT)
    }
}

impl Index<u32> for Chunks {
    type Output = Chunk;

    fn index(&self, id: u32) -> &Chunk {
        &self.table[id as usize]
    }
}

impl IndexMut<u32> for Chunks {
    fn index_mut(&mut self, id: u32) -> &mut Chunk {
        &mut self.table[id as usize]
    }
}
