//! Where memory is at one moment: in use, held, rounded away, free, and pinned.

use serde::Serialize;

use super::Moment;

/// Where the memory of an allocator is at one moment, in bytes. What it has from the driver is the sum of
/// three: `reserved = active + wholly free + pinned`; rounding and held blocks are parts of what is active.
///
/// A block's rounding is exact where the source says it, as PyTorch's state does for the blocks that are live
/// at its end, and otherwise follows PyTorch's default rules for blocks in segments. Blocks outside of
/// segments, as all of RMM's log are, have none.
///
/// ```
/// use millpond_snapshot::recording::Ledger;
/// assert_eq!(Ledger::default().unused_bytes(), 0);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Ledger {
    /// The number of the event after which this holds, counted from 0.
    pub event: u64,
    /// What the allocator has from the driver; `None` if the source does not say.
    pub reserved_bytes: Option<u64>,
    /// The blocks that are in use or wait, as the allocator rounded them.
    pub active_bytes: u64,
    /// The same as the program requested them.
    pub requested_bytes: u64,
    /// What rounding added: `active - requested`.
    pub rounding_bytes: u64,
    /// The blocks that the program has freed and that wait for other streams, rounded.
    pub held_bytes: u64,
    /// Free memory in segments without a block: the allocator can give it back.
    pub wholly_free_bytes: u64,
    /// Free memory in segments that blocks keep from being given back: fragmentation.
    pub pinned_bytes: u64,
    /// The largest piece of free memory.
    pub largest_free_bytes: u64,
    /// The segments; mapped ranges of expandable segments each for itself.
    pub segments: u64,
    /// The blocks that are in use or wait.
    pub live_blocks: u64,
}

impl Ledger {
    /// Free memory that the allocator has: wholly free or pinned.
    pub fn unused_bytes(&self) -> u64 {
        self.wholly_free_bytes + self.pinned_bytes
    }
}

impl Moment {
    /// Where the memory is.
    pub fn ledger(&self) -> Ledger {
        let moment = self;
        let mut ledger = Ledger {
            event: moment.event() as u64,
            live_blocks: moment.blocks().len() as u64,
            segments: moment.segments().len() as u64,
            ..Ledger::default()
        };
        for block in moment.blocks() {
            ledger.requested_bytes = ledger.requested_bytes.saturating_add(block.bytes);
            ledger.active_bytes = ledger.active_bytes.saturating_add(block.rounded_bytes);
            if block.is_held {
                ledger.held_bytes = ledger.held_bytes.saturating_add(block.rounded_bytes);
            }
        }
        ledger.rounding_bytes = ledger.active_bytes.saturating_sub(ledger.requested_bytes);
        let (mut reserved, mut piece) = (0_u64, Piece::default());
        for segment in moment.segments() {
            reserved = reserved.saturating_add(segment.bytes);
            let end = segment.address.saturating_add(segment.bytes);
            // Free memory reaches from one mapped range into the next.
            piece.start(segment.address, segment.is_expandable);
            let (mut at, mut free) = (segment.address, 0);
            let blocks = moment.blocks_in(segment);
            for block in blocks {
                let start = block.address.clamp(at, end);
                free += start - at;
                piece.free_to(start);
                at = at.max(block.end().min(end));
                piece.used_to(at);
            }
            free += end - at;
            piece.free_to(end);
            ledger.largest_free_bytes = ledger.largest_free_bytes.max(piece.largest);
            if blocks.is_empty() {
                ledger.wholly_free_bytes += free;
            } else {
                ledger.pinned_bytes += free;
            }
        }
        ledger.reserved_bytes = (!moment.segments().is_empty()).then_some(reserved);
        ledger
    }
}

/// The piece of free memory that is being measured.
#[derive(Default)]
struct Piece {
    from: u64,
    to: u64,
    is_expandable: bool,
    largest: u64,
}

impl Piece {
    fn start(&mut self, address: u64, is_expandable: bool) {
        if !(is_expandable && self.is_expandable && self.to == address) {
            self.from = address;
        }
        (self.to, self.is_expandable) = (address, is_expandable);
    }

    fn free_to(&mut self, address: u64) {
        self.to = self.to.max(address);
        self.largest = self.largest.max(self.to - self.from);
    }

    fn used_to(&mut self, address: u64) {
        (self.from, self.to) = (address, address);
    }
}
