use std::ops::{Index, IndexMut};
use std::ptr;

use crate::block_map::BlockEntry;
use crate::block_map::{ChunkId, NIL};
use crate::stream_order::{Epoch, Owner};

/// The owner of a chunk that is handed out.
const IN_USE: Owner = Owner::MAX;
/// The owner of a place in the table that holds no chunk.
const VACANT: Owner = Owner::MAX - 1;

/// A piece of a region, handed out or free. 64 bytes of host memory; device memory is never touched.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Chunk {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// The chunk that ends where this one starts, in the same region.
    pub(crate) prev: u32,
    /// The chunk that starts where this one ends, in the same region.
    pub(crate) next: u32,
    /// Neighbours in the bin of a free chunk; the next vacant place where there is no chunk.
    pub(crate) bin_prev: u32,
    pub(crate) bin_next: u32,
    /// Whose free chunk, or `IN_USE`, or `VACANT`.
    owner: Owner,
    /// The number of its region; see [`Chunk::place`].
    pub(crate) region: u32,
    /// When it was given back, of a free chunk.
    epoch: Epoch,
    /// Its place in the block map, once it was handed out: as long as a chunk starts here.
    entry: *const BlockEntry,
}

impl Chunk {
    pub(crate) fn free(addr: u64, bytes: u64, prev: u32, next: u32, owner: Owner, epoch: Epoch) -> Self {
        let (bin_prev, bin_next, region, entry) = (NIL, NIL, 0, ptr::null());
        Self { addr, bytes, prev, next, bin_prev, bin_next, owner, region, epoch, entry }
    }

    /// The same chunk in the region with this number.
    pub(crate) fn in_region(self, region: u32) -> Self {
        Self { region, ..self }
    }

    /// Where the chunk lies, in an order that does not depend on the addresses that the driver returns: its
    /// region's number, then its address, which within one region stands for the offset.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.region, self.addr)
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.owner == IN_USE
    }

    pub(crate) fn is_free(&self) -> bool {
        self.owner < VACANT
    }

    /// Whether nothing else is in its region.
    pub(crate) fn is_whole_region(&self) -> bool {
        self.prev == NIL && self.next == NIL
    }

    /// Whose free chunk this is; compare only with owners.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// When a free chunk was given back.
    pub(crate) fn epoch(&self) -> Epoch {
        debug_assert!(self.is_free());
        self.epoch
    }

    /// The chunk's place in the block map.
    pub(crate) fn entry(&self) -> Option<&BlockEntry> {
        // SAFETY: entries are set by the pool that has the block map, which lives as long as its chunks.
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

// SAFETY: what an entry is made of is atomic, and it lives as long as the pool.
unsafe impl Send for Chunk {}

/// All chunks of a heap, by number; vacant places are reused.
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

    /// Takes a chunk out of the block map.
    pub(crate) fn remove_block(&mut self, id: ChunkId) {
        let chunk = &mut self.table[id as usize];
        if let Some(entry) = chunk.entry() {
            entry.remove();
            chunk.entry = ptr::null();
        }
    }

    /// The chunk, if this number is one.
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
