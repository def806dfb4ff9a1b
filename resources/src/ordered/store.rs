use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr, Layout, LiveBlock};

/// Whose free blocks: an index that [`Streams`](super::streams::Streams) gives to each stream.
pub(crate) type Owner = u32;

/// Free blocks that every stream may use at once: all work on them is known to be done.
pub(crate) const ANYONE: Owner = 0;

/// A stream's time, counted in recorded points. A block that was given back in an epoch is covered by the
/// stream's recorded point of that epoch or any later one.
pub(crate) type Epoch = u64;

/// No request and no region is larger; far beyond any device.
pub(crate) const LARGEST_REQUEST: u64 = 1 << 55;

/// A request, rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// As asked for.
    pub(crate) requested: u64,
    /// Rounded up as the store cuts blocks, to a multiple of 256.
    pub(crate) bytes: u64,
    /// A power of two, at least 256.
    pub(crate) alignment: u64,
    /// Which part of the store the calling thread uses first, where a store has parts.
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

/// Whose block served a request without a driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hit {
    /// The requesting stream's own.
    Own(DevicePtr),
    /// Anyone's.
    Anyones(DevicePtr),
}

impl Hit {
    pub(crate) fn ptr(self) -> DevicePtr {
        match self {
            Self::Own(ptr) | Self::Anyones(ptr) => ptr,
        }
    }
}

/// How much to take back from threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gather {
    /// The few large blocks.
    Large,
    /// All, if it is worth the work.
    All,
    /// All, however little.
    Everything,
}

/// How far a walk over free blocks has come that looks at a few under each lock: blocks that are passed, or
/// come and go meanwhile, may be missed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cursor {
    /// Which part of the store.
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

/// How much to take from upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Growth {
    /// Bytes to try first.
    pub(crate) preferred: u64,
    /// Bytes without which it is no use.
    pub(crate) least: u64,
    /// Sizes in between are multiples of this.
    pub(crate) unit: u64,
}

impl Growth {
    /// The next size to try after `bytes` were refused.
    pub(crate) fn after_refusal(&self, bytes: u64) -> Option<u64> {
        (bytes > self.least).then(|| {
            let half = (bytes / 2).next_multiple_of(self.unit);
            if half < bytes { half.max(self.least) } else { self.least }
        })
    }
}

/// Sizes and counts of a store, without the streams.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StoreTotals {
    pub(crate) bytes_in_use: u64,
    pub(crate) bytes_requested: u64,
    pub(crate) peak_bytes_in_use: u64,
    pub(crate) bytes_reserved: u64,
    pub(crate) peak_bytes_reserved: u64,
    pub(crate) bytes_beyond_slack: u64,
    pub(crate) blocks_in_use: u64,
    pub(crate) blocks_free: u64,
    pub(crate) regions: u64,
    /// Accepted deallocations so far.
    pub(crate) deallocations: u64,
    /// Allocations that were served past the lock, from the stream's own blocks and from anyone's.
    pub(crate) own_stream: u64,
    pub(crate) completed: u64,
}

/// Where a request stood that could not be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The stream that asked.
    pub(crate) owner: Owner,
    /// Whether it captures a graph: then nobody waits for other streams.
    pub(crate) is_capturing: bool,
    /// What the device has free, where memory that the store gives back goes there, and comes from there.
    pub(crate) device_free: Option<u64>,
    /// The size of a page, where the store could have mapped some instead of taking regions.
    pub(crate) page_bytes: Option<u64>,
}

/// What is free for an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeOf {
    pub(crate) owner: Owner,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) largest: u64,
}

/// Why a store could not serve a request, and what would have helped.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// New memory with which the request would be served, beside what is free for its stream.
    pub(crate) needed: u64,
    /// The most that the store may hold.
    pub(crate) maximum_bytes: Option<u64>,
    pub(crate) free: Vec<FreeOf>,
    /// Whether what is free would serve the request if it were all anyone's.
    pub(crate) merging_suffices: bool,
    /// Blocks in use without which the request would be served; none if there are no such.
    pub(crate) in_the_way: Vec<LiveBlock>,
    /// Free pages that would have served it together: how many are needed.
    pub(crate) pages: Option<u64>,
    /// See [`OutOfMemoryReport::map`](millpond_core::OutOfMemoryReport::map).
    pub(crate) map: Option<String>,
}

/// What new memory is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To serve a request.
    Serve,
    /// To have it.
    Reserve,
}

/// How new memory is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Try {
    /// In the sizes that serve best later.
    Preferred,
    /// A region of at most this many bytes, since a larger one was refused.
    AtMost(u64),
    /// Pages in one driver call, after a rival took a part of what there was: then one of the two gets it,
    /// and not neither. This often again, if it is refused.
    AtOnce(u32),
    /// None: only pages that are free already.
    FreeOnly,
}

impl Try {
    /// What to try after this was refused; `smaller` is the next smaller region, over regions.
    pub(crate) fn after(self, smaller: Option<Option<u64>>) -> Option<Self> {
        match (self, smaller) {
            (Self::AtMost(_), None) => None,
            (_, Some(smaller)) => smaller.map(Self::AtMost),
            (Self::Preferred, None) => Some(Self::AtOnce(1)),
            (Self::AtOnce(again), None) if again > 0 => Some(Self::AtOnce(again - 1)),
            (Self::AtOnce(_), None) => Some(Self::FreeOnly),
            (Self::FreeOnly, None) => None,
        }
    }
}

/// Why a store has no errand that would bring a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// The store may not hold as much as it would need.
    OwnLimit,
    /// It would need more new memory than it was told to plan with.
    NewMemory,
}
