//! Requests to heaps, and their answers.

use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr, Layout};

use crate::block_map::ChunkId;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

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

/// The owners whose free bytes may serve a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    /// An owner's, freed in this epoch or before.
    Of(Owner, Epoch),
    /// An owner's and unowned ones; with `is_own_first` the owner's alone if they serve.
    OwnOrUnowned { owner: Owner, is_own_first: bool },
    /// Contiguous bytes: the owner owns some of them, and the rest are unowned.
    Joined(Owner),
}

impl Whose {
    /// Returns the possible owners of such bytes.
    pub(crate) fn owners(self) -> [Owner; 2] {
        match self {
            Self::Of(owner, _) | Self::Joined(owner) => [owner; 2],
            Self::OwnOrUnowned { owner, .. } => [owner, ANY_STREAM],
        }
    }

    /// Returns the last epoch in which such bytes may have been freed.
    pub(crate) fn upto(self) -> Epoch {
        if let Self::Of(_, upto) = self { upto } else { Epoch::MAX }
    }
}

/// Bytes that were taken for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) chunk: ChunkId,
    pub(crate) addr: u64,
    pub(crate) was_unowned: bool,
    /// The latest epoch in which any of them was freed.
    pub(crate) epoch: Epoch,
}

impl Taken {
    pub(crate) fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.addr)
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
