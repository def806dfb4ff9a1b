//! Requests to heaps, and their answers.

use millpond_core::{ALLOCATION_ALIGNMENT, Layout};

use crate::stream_order::Epoch;

/// The most bytes of a request or a region, far beyond any device.
pub(crate) const LARGEST_REQUEST: u64 = Layout::MOST_BYTES;

/// A rounded request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// The requested bytes.
    pub(crate) requested: u64,
    /// The bytes, rounded up to the pool's block sizes, which are multiples of 256.
    pub(crate) bytes: u64,
    /// The alignment in bytes: a power of two, at least 256.
    pub(crate) alignment: u64,
    /// The shard that the calling thread uses first, if the pool has shards.
    pub(crate) shard: u8,
}

impl Request {
    /// Returns the request for a layout, or `None` if its bytes exceed any address space.
    pub(crate) fn new(layout: Layout) -> Option<Self> {
        let bytes = layout.rounded_bytes()?;
        bytes.checked_add(layout.alignment()).filter(|sum| *sum <= LARGEST_REQUEST)?;
        Some(Self { requested: layout.bytes(), bytes, alignment: layout.alignment(), shard: 0 })
    }

    /// Returns the request rounded up to a multiple of 256 only.
    pub(crate) fn exact(&self) -> Self {
        Self { bytes: self.requested.next_multiple_of(ALLOCATION_ALIGNMENT), ..*self }
    }

    /// Returns enough bytes for an aligned block at any start.
    pub(crate) fn padded_bytes(&self) -> u64 {
        self.bytes + (self.alignment - ALLOCATION_ALIGNMENT)
    }
}

/// A free block that fits a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fit {
    /// The block's size in bytes.
    pub(crate) bytes: u64,
    /// The epoch in which it was freed.
    pub(crate) epoch: Epoch,
}

/// The progress of an incremental walk over free blocks, which visits a few blocks under each lock. The walk
/// may miss blocks that come and go between its steps.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cursor {
    /// The number of the heap.
    pub(crate) part: usize,
    /// The walk has visited all blocks of that heap with fewer bytes than this.
    pub(crate) bytes: u64,
    pub(crate) is_at_end: bool,
}

impl Cursor {
    /// Continues with the next heap of `parts`.
    pub(crate) fn end_part(&mut self, parts: usize) {
        *self = Self { part: self.part + 1, bytes: 0, is_at_end: self.part + 1 >= parts };
    }
}
