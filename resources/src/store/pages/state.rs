//! The state of pages: heaps over the primary mappings, handles, aliases and counters.

use std::cell::RefCell;
use std::sync::Arc;

use millpond_core::segments::SegmentAction;
use rustc_hash::FxHashMap;

use crate::block_map::{ChunkId, NIL};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::store::pages::access::Backing;
use crate::store::pages::aliases::Aliases;
use crate::store::pages::driver_calls::Retired;
use crate::store::pages::free_ends::FreeEnds;
use crate::store::pages::handles::{AddressRange, Handles, RANGES};
use crate::store::pages::policy::CallBudget;
use crate::stream_order::{Epoch, Owner};
use crate::tuning::{ADDRESS_FACTOR, CHUNKS_COMPARED, Policy};

/// A change of a segment: action, address and bytes.
pub(super) type Change = (SegmentAction, u64, u64);

/// The blocks in aliases, and the changes of segments that no watcher knows yet.
#[derive(Debug, Default)]
pub(super) struct Stitched {
    /// By the number of the block.
    pub(super) addresses: FxHashMap<ChunkId, u64>,
    pub(super) changes: Vec<Change>,
}

/// Returns the number by which the rest of the pool knows a chunk of an address range's heap.
pub(super) fn pack(range: AddressRange, chunk: ChunkId) -> ChunkId {
    debug_assert!(chunk < NIL >> 1);
    chunk << 1 | range as ChunkId
}

pub(super) fn unpack(block: ChunkId) -> (AddressRange, ChunkId) {
    (if block & 1 == 0 { AddressRange::Small } else { AddressRange::Large }, block >> 1)
}

/// The large blocks and spans of a pool, over physical memory that the pool maps itself.
#[derive(Debug)]
pub(crate) struct Pages {
    /// By address range.
    pub(super) heaps: [Heap; RANGES],
    pub(super) handles: Handles,
    pub(super) aliases: Aliases,
    pub(super) policy: Policy,
    pub(super) backing: Arc<Backing>,
    pub(super) granularity: u64,
    /// Bytes of addresses that one reservation asks for.
    pub(super) reservation_bytes: u64,
    pub(super) maximum_bytes: u64,
    /// Driver calls that may be spent to hold less memory.
    pub(super) budget: CallBudget,
    /// Bytes taken beyond the slack because stitching would have cost too many driver calls.
    pub(super) beyond_slack: u64,
    /// Whether the driver refused memory lately.
    pub(crate) is_short: bool,
    /// The most live bytes that a caller noted, at growth or when memory was short.
    pub(super) peak_live: u64,
    /// The most bytes that were not free since [`take_most_used`](Self::take_most_used) was called last.
    pub(super) most_used: u64,
    /// Bytes of plans under way.
    pub(super) planned: u64,
    /// Bytes of releases under way.
    pub(super) retiring: u64,
    /// Bytes that the pool returns when it ends.
    pub(super) returning: u64,
    /// The number of tasks under way, and how many of them are admissions. During an admission nothing is
    /// unmapped.
    pub(super) under_way: u32,
    pub(super) admissions: u32,
    pub(super) peak_bytes_reserved: u64,
    /// Pieces of blocks beyond the first of each, and pieces that plans keep.
    pub(super) extra_pieces: u64,
    /// Memory and mappings whose release failed; the next release tries again.
    pub(super) unfinished: Vec<Retired>,
    /// Empty between two uses; it keeps its memory.
    pub(super) free_ends: RefCell<FreeEnds>,
    pub(super) stitched: Stitched,
}

impl Pages {
    /// Creates pages without memory. `granularity` is the driver's granularity of mappings, `device_total`
    /// the device's memory, both in bytes.
    pub(crate) fn new(granularity: u64, device_total: u64, maximum_bytes: u64, policy: Policy) -> Self {
        let reservation_bytes = (device_total * ADDRESS_FACTOR).next_multiple_of(granularity);
        Self {
            heaps: [(); RANGES].map(|()| Heap::new(CHUNKS_COMPARED)),
            handles: Handles::new(granularity),
            aliases: Aliases::default(),
            policy,
            backing: Arc::default(),
            granularity,
            reservation_bytes,
            maximum_bytes,
            is_short: false,
            budget: CallBudget::default(),
            beyond_slack: 0,
            peak_live: 0,
            most_used: 0,
            planned: 0,
            retiring: 0,
            returning: 0,
            under_way: 0,
            admissions: 0,
            peak_bytes_reserved: 0,
            extra_pieces: 0,
            unfinished: Vec::new(),
            free_ends: RefCell::default(),
            stitched: Stitched::default(),
        }
    }

    pub(super) fn heap(&self, range: AddressRange) -> &Heap {
        &self.heaps[range as usize]
    }

    pub(super) fn heap_mut(&mut self, range: AddressRange) -> &mut Heap {
        &mut self.heaps[range as usize]
    }

    /// Returns the bytes of handles that are not free.
    pub(super) fn used(&self) -> u64 {
        self.handles.bytes - self.heaps.iter().map(|heap| heap.bytes_free).sum::<u64>()
    }

    /// Raises the most used bytes after an allocation.
    #[inline]
    pub(super) fn note_use(&mut self) {
        self.most_used = self.most_used.max(self.used());
    }

    /// Returns the most bytes that were not free since the last call.
    pub(crate) fn take_most_used(&mut self) -> u64 {
        let used = self.used();
        std::mem::replace(&mut self.most_used, used)
    }

    /// Links pieces to one block, and returns its number, which is the number of the first piece.
    pub(super) fn link(&mut self, pieces: &[ChunkId]) -> ChunkId {
        for pair in pieces.windows(2) {
            let (range, chunk) = unpack(pair[0]);
            self.heap_mut(range).set_link(chunk, pair[1]);
        }
        self.extra_pieces += pieces.len() as u64 - 1;
        pieces[0]
    }

    /// Returns the pieces of a block.
    pub(crate) fn each_piece_of(&self, block: ChunkId) -> impl Iterator<Item = &Chunk> {
        std::iter::successors(Some(block), |id| {
            let (range, chunk) = unpack(*id);
            Some(self.heap(range).link(chunk)).filter(|next| *next != NIL)
        })
        .map(|id| {
            let (range, chunk) = unpack(id);
            self.heap(range).chunk(chunk)
        })
    }

    /// Removes a block from the block map.
    pub(crate) fn remove_block(&mut self, block: ChunkId) {
        let (range, chunk) = unpack(block);
        self.heap_mut(range).remove_block(chunk);
    }

    /// Frees a block, with all its pieces, for `owner`.
    pub(super) fn free_block(&mut self, block: ChunkId, owner: Owner, epoch: Epoch) {
        self.note_freed(block);
        let mut next = block;
        while next != NIL {
            let (range, chunk) = unpack(next);
            let heap = self.heap_mut(range);
            next = heap.link(chunk);
            heap.free(chunk, owner, epoch);
            self.extra_pieces -= u64::from(next != NIL);
        }
    }

    /// Returns the bytes of physical memory, including plans and releases under way.
    pub(super) fn held(&self) -> u64 {
        self.handles.bytes + self.planned + self.retiring
    }

    /// Sets how new memory is created, and which devices have access to it.
    pub(crate) fn set_backing(&mut self, backing: Backing) {
        self.backing = Arc::new(backing);
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }
}
