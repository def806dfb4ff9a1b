//! Requests as heaps see them, and what heaps answer.

use millpond_core::{ALLOCATION_ALIGNMENT, Layout};

use crate::stream_order::Epoch;

/// No request and no region is larger; far beyond any device.
pub(crate) const LARGEST_REQUEST: u64 = 1 << 55;

/// A request, rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// As asked for.
    pub(crate) requested: u64,
    /// Rounded up as the pool cuts blocks, to a multiple of 256.
    pub(crate) bytes: u64,
    /// A power of two, at least 256.
    pub(crate) alignment: u64,
    /// Which part of the pool the calling thread uses first, where a pool has parts.
    pub(crate) shard: u8,
}

impl Request {
    /// `None` when no address space holds that much.
    pub(crate) fn new(layout: Layout) -> Option<Self> {
        let bytes = layout.rounded_bytes()?;
        bytes.checked_add(layout.alignment()).filter(|sum| *sum <= LARGEST_REQUEST)?;
        Some(Self { requested: layout.bytes(), bytes, alignment: layout.alignment(), shard: 0 })
    }

    /// The request rounded up to 256 only.
    pub(crate) fn exact(&self) -> Self {
        Self { bytes: self.requested.next_multiple_of(ALLOCATION_ALIGNMENT), ..*self }
    }

    /// Bytes that are enough wherever a block of base alignment starts.
    pub(crate) fn padded_bytes(&self) -> u64 {
        self.bytes + (self.alignment - ALLOCATION_ALIGNMENT)
    }
}

/// A free block that would serve a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fit {
    /// The block's size in bytes.
    pub(crate) bytes: u64,
    /// When it was given back.
    pub(crate) epoch: Epoch,
}

/// How far a walk over free blocks has come that looks at a few under each lock: blocks that are passed, or
/// come and go meanwhile, may be missed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cursor {
    /// Which part of the pool.
    pub(crate) part: usize,
    /// Smaller blocks of that part are passed.
    pub(crate) bytes: u64,
    pub(crate) is_at_end: bool,
}

impl Cursor {
    /// Goes on with the next of so many parts.
    pub(crate) fn end_part(&mut self, parts: usize) {
        *self = Self { part: self.part + 1, bytes: 0, is_at_end: self.part + 1 >= parts };
    }
}
