//! Adds up the memory at one moment: in use, held, lost to rounding, free, and pinned.

use serde::Serialize;

use super::{Moment, Recording};

/// The memory of an allocator at one moment, in bytes. The reserved bytes are a sum: `reserved = active +
/// wholly free + pinned`. The active bytes include the bytes that rounding added, and blocks that wait for
/// other streams.
///
/// If the source has the rounded size of a block, the rounding is exact. PyTorch's snapshots record this size
/// for the blocks that are live at the end. For other blocks in segments, the rounding follows PyTorch's
/// default rules. Blocks outside of segments have no rounding; all blocks in RMM's logs are such blocks.
///
/// Numbers that the source does not tell are 0, and null in JSON.
///
/// ```
/// use millpond_snapshot::recording::Ledger;
/// assert_eq!(Ledger::default().unused_bytes(), 0);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
#[serde(into = "Told")]
#[non_exhaustive]
pub struct Ledger {
    /// The number of the event before this moment, counted from 0. In JSON, events are counted from 1, as in
    /// texts.
    pub event: u64,
    /// The bytes that the allocator has reserved from the driver; `None` if the source does not record them.
    pub reserved_bytes: Option<u64>,
    /// The bytes of blocks that are in use or wait for other streams, as the allocator rounded them.
    pub active_bytes: u64,
    /// The bytes of the same blocks, as the program requested them.
    pub requested_bytes: u64,
    /// The bytes that rounding added: `active - requested`.
    pub rounding_bytes: u64,
    /// The bytes of blocks that the program freed and that wait for other streams, rounded.
    pub held_bytes: u64,
    /// The free bytes in segments without live blocks. The allocator can return these segments to the driver.
    pub wholly_free_bytes: u64,
    /// The free bytes in segments that also hold live blocks. The allocator cannot return these segments to
    /// the driver.
    pub pinned_bytes: u64,
    /// The bytes of the largest contiguous piece of free memory.
    pub largest_free_bytes: u64,
    /// The number of segments. Each mapped range of an expandable segment counts as one.
    pub segments: u64,
    /// The number of blocks that are in use, or that wait for other streams.
    pub live_blocks: u64,
    /// Whether the source does not tell the pieces of free memory, although it has the reserved bytes.
    pub(crate) lacks_pieces: bool,
    /// Whether the source does not tell which bytes rounding added.
    pub(crate) lacks_rounding: bool,
}

/// A ledger in JSON. It has only the numbers that the source tells.
#[derive(Serialize)]
struct Told {
    #[serde(serialize_with = "super::from_one")]
    event: u64,
    reserved_bytes: Option<u64>,
    active_bytes: u64,
    requested_bytes: u64,
    rounding_bytes: Option<u64>,
    held_bytes: Option<u64>,
    wholly_free_bytes: Option<u64>,
    pinned_bytes: Option<u64>,
    largest_free_bytes: Option<u64>,
    segments: Option<u64>,
    live_blocks: Option<u64>,
}

impl From<Ledger> for Told {
    fn from(ledger: Ledger) -> Self {
        let Ledger { event, reserved_bytes, active_bytes, requested_bytes, .. } = ledger;
        let piece = |number: u64| ledger.has_pieces().then_some(number);
        Self {
            event,
            reserved_bytes,
            active_bytes,
            requested_bytes,
            rounding_bytes: ledger.has_rounding().then_some(ledger.rounding_bytes),
            held_bytes: piece(ledger.held_bytes),
            wholly_free_bytes: piece(ledger.wholly_free_bytes),
            pinned_bytes: piece(ledger.pinned_bytes),
            largest_free_bytes: piece(ledger.largest_free_bytes),
            segments: piece(ledger.segments),
            live_blocks: (!ledger.lacks_pieces).then_some(ledger.live_blocks),
        }
    }
}

impl Ledger {
    /// Returns the ledger without the numbers that the recording's source does not tell.
    pub(crate) fn as_recorded(self, recording: &Recording) -> Self {
        Self {
            lacks_pieces: recording.has_sums_only(),
            lacks_rounding: recording.has_sums_only() || recording.lacks("rounded"),
            ..self
        }
    }

    /// Returns whether the source tells the pieces of free memory.
    pub(crate) fn has_pieces(&self) -> bool {
        self.reserved_bytes.is_some() && !self.lacks_pieces
    }

    /// Returns whether the source tells which bytes rounding added.
    pub(crate) fn has_rounding(&self) -> bool {
        self.reserved_bytes.is_some() && !self.lacks_rounding
    }

    /// Returns the free bytes of the allocator: the wholly free bytes and the pinned bytes.
    pub fn unused_bytes(&self) -> u64 {
        self.wholly_free_bytes + self.pinned_bytes
    }
}

impl Moment {
    /// Returns the ledger of this moment.
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
            // Free memory can extend from one mapped range into the next.
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
