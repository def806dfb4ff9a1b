//! The memory of a pool: large blocks, and the spans that arenas cut small blocks from.
//!
//! A [`Store`] holds memory in chunks, and chooses the one that serves a request. It has two implementations:
//! [`Regions`] takes regions from upstream, and [`Pages`] maps physical memory itself. Neither calls the
//! driver or upstream. Each change of its memory is a [`Task`]: the store plans it under the pool's lock, the
//! caller runs it without the lock, and the store commits or aborts it under the lock.

pub(crate) mod pages;
mod regions;
mod task;

use std::fmt::Debug;

pub(crate) use crate::store::regions::{FixedBlocks, Regions};
pub(crate) use crate::store::task::{
    Committed, Need, NewRegion, NewSpan, NoMemory, Purpose, ReturnedRegions, Returning, Task, Try,
};

use crate::block_map::{Block, BlockMap, ChunkId};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::{Fit, Request, Taken, Whose};
use crate::store::pages::Pages;
use crate::stream_order::{Epoch, Owner};

/// Memory that serves large blocks and spans, in stream order.
pub(crate) trait Store: Debug + Send {
    /// Finds the best free bytes of `owner` for the request, among those freed in epoch `upto` or before.
    fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit>;

    /// Takes the best free bytes for the request. The caller inserts the block into the block map.
    fn take(&mut self, whose: Whose, request: &Request) -> Option<Taken>;

    /// Takes a span of `wanted` contiguous bytes, or as many as there are, but enough for the request.
    /// `anywhere` lets small blocks use memory for large blocks.
    fn take_span(&mut self, whose: Whose, wanted: u64, request: &Request, anywhere: bool) -> Option<NewSpan>;

    /// Inserts a block that was taken into the block map.
    fn insert_block(&mut self, block_map: &BlockMap, block: Block, addr: u64);

    /// Frees a block for `owner`.
    fn free(&mut self, block: ChunkId, owner: Owner, epoch: Epoch);

    /// Plans new memory.
    ///
    /// # Errors
    /// [`NoMemory::OwnLimit`] if the pool's maximum does not allow it; [`NoMemory::Below`] if it takes more
    /// than the need allows.
    fn plan(&mut self, need: &Need) -> Result<Task, NoMemory>;

    /// Plans the return of unowned memory.
    fn plan_release(&mut self, which: Returning<'_>) -> Option<Task>;

    /// Plans the release of all memory, in use or not. Afterwards the store is used no more.
    fn plan_shutdown(&mut self) -> Task;

    /// Notes the outcome of a task that was run.
    fn commit(&mut self, task: Task) -> Committed;

    /// Undoes the plan of a task that failed or was not run.
    fn abort(&mut self, task: Task);

    /// Returns the heaps that hold all chunks.
    fn heaps(&self) -> &[Heap];

    fn heaps_mut(&mut self) -> &mut [Heap];

    /// Returns the bytes taken from upstream or the driver.
    fn bytes_reserved(&self) -> u64;

    fn totals(&self) -> Totals;

    /// Returns the bytes of a block in use.
    fn bytes_of(&self, block: ChunkId) -> u64;

    /// Returns the chunks of a block in use, in order.
    fn pieces_of(&self, block: ChunkId) -> Vec<&Chunk>;

    /// Returns the first chunk of a block, if there is such a chunk.
    fn first_piece(&self, block: ChunkId) -> Option<&Chunk>;

    /// Returns the chunk that owns the memory at an address. Only error paths call this: it walks all chunks
    /// of a region.
    fn chunk_at(&self, addr: u64) -> Option<&Chunk>;

    /// Returns the regions or handles: address, bytes, and whether a stitched block may begin or end there.
    fn parts(&self) -> Vec<(u64, u64, bool)>;

    /// Returns the bytes of new memory that would serve the request together with the owner's free bytes. For
    /// a small block they are a span's bytes.
    fn needed(&mut self, owner: Owner, request: &Request, is_span: bool) -> u64;

    /// Notes whether memory is short: then small blocks may use memory for large ones.
    fn set_short(&mut self, is_short: bool);

    /// Panics if an invariant does not hold.
    fn validate(&self);

    #[cfg(test)]
    fn raise_maximum(&mut self, bytes: u64);

    /// Returns the sizes of a new region for the request; `None` if the pool's maximum does not allow one,
    /// and for a store of pages.
    fn region_sizes(&self, _request: &Request) -> Option<RegionSizes> {
        None
    }

    /// Returns the store as pages, for operations that only pages support.
    fn pages(&self) -> Option<&Pages> {
        None
    }

    fn pages_mut(&mut self) -> Option<&mut Pages> {
        None
    }

    fn bytes_free(&self) -> u64 {
        self.heaps().iter().map(|heap| heap.bytes_free).sum()
    }

    /// Returns the bytes in the free chunks of an owner.
    fn free_bytes(&self, owner: Owner) -> u64 {
        self.heaps().iter().map(|heap| heap.free_bytes(owner)).sum()
    }

    fn largest_free_block(&self) -> u64 {
        self.heaps().iter().map(Heap::largest_free_block).max().unwrap_or(0)
    }

    /// Moves chunks freed in epoch `upto` or before to another owner, as freed in `epoch`.
    fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        self.heaps_mut().iter_mut().for_each(|heap| heap.migrate(from, upto, to, epoch));
    }

    /// Sets whether only one stream uses the pool.
    fn set_one_stream(&mut self, has_one_stream: bool) {
        self.heaps_mut().iter_mut().for_each(|heap| heap.has_one_stream = has_one_stream);
    }
}

/// The sizes in bytes of a new region from upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegionSizes {
    /// The size to try first.
    pub(crate) preferred: u64,
    /// The smallest size that serves the request.
    pub(crate) least: u64,
    /// Sizes in between are multiples of this.
    pub(crate) unit: u64,
}

/// Sizes and counts of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    /// Bytes taken from upstream or the driver, including tasks under way.
    pub(crate) bytes_reserved: u64,
    pub(crate) peak_bytes_reserved: u64,
    /// Bytes that are no longer reserved, but that upstream or the driver does not have yet.
    pub(crate) bytes_returning: u64,
    pub(crate) bytes_free: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_in_use: u64,
    /// Regions, or handles of physical memory.
    pub(crate) regions: usize,
    /// Mappings in aliases.
    pub(crate) mappings: usize,
    /// Bytes taken so far because stitching would have cost more driver calls than the pool had earned.
    pub(crate) beyond_slack: u64,
}
