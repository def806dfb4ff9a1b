//! One operation of a program.

use millpond_core::Layout;

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[expect(clippy::exhaustive_enums, reason = "a replay must know each kind of operation")]
pub enum OpKind {
    /// Allocates a block into a slot.
    Allocate,
    /// Frees the block in a slot.
    Free,
    /// Allocates zero bytes. This needs no memory and no slot.
    AllocateNothing,
    /// Frees a null pointer.
    FreeNothing,
    /// Repeats a request that failed when the log was written, and frees the block at once. The slot is the
    /// number of the request; see [`Program::is_retry`](super::Program::is_retry).
    AskAgain,
}

/// One operation of a [`Program`](super::Program).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a program has millions, so its size is fixed")]
pub struct Op {
    /// The requested size of the block in bytes, for allocations and for frees.
    pub bytes: u64,
    /// The slot that holds the block between its allocation and its free.
    pub slot: u32,
    /// The number of the thread and stream: an index into [`Program::lanes`](super::Program::lanes).
    pub lane: u32,
    /// The number of the line in the log. `u32::MAX` also stands for every higher number.
    pub line: u32,
    /// The kind of the operation.
    pub kind: OpKind,
    /// The binary logarithm of the alignment.
    pub alignment_log2: u8,
    /// The number of earlier operations on the same slot, modulo 2^16. Threads that run freely use it to keep
    /// the order of these operations.
    pub ticket: u16,
}

/// Long logs are streamed through the CPU's caches, so operations must stay small.
const _: () = assert!(size_of::<Op>() == Op::PACKED_BYTES);

impl Op {
    pub(super) const PACKED_BYTES: usize = 24;

    /// Returns the layout of the call.
    #[inline]
    pub fn layout(&self) -> Layout {
        let plain = Layout::new(self.bytes);
        if 1 << self.alignment_log2 == plain.alignment() {
            plain
        } else {
            // All values are powers of two, so the error never occurs.
            Layout::with_alignment(self.bytes, 1 << self.alignment_log2).unwrap_or(plain)
        }
    }

    /// Packs the operation for the temporary file.
    pub(super) fn pack(&self) -> [u8; Self::PACKED_BYTES] {
        let mut packed = [0; Self::PACKED_BYTES];
        packed[0..8].copy_from_slice(&self.bytes.to_le_bytes());
        packed[8..12].copy_from_slice(&self.slot.to_le_bytes());
        packed[12..16].copy_from_slice(&self.lane.to_le_bytes());
        packed[16..20].copy_from_slice(&self.line.to_le_bytes());
        packed[20] = self.kind as u8;
        packed[21] = self.alignment_log2;
        packed[22..24].copy_from_slice(&self.ticket.to_le_bytes());
        packed
    }

    pub(super) fn unpack(packed: &[u8; Self::PACKED_BYTES]) -> Self {
        let [b0, b1, b2, b3, b4, b5, b6, b7, rest @ ..] = *packed;
        let word = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        Self {
            bytes: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            slot: word(0),
            lane: word(4),
            line: word(8),
            kind: match rest[12] {
                0 => OpKind::Allocate,
                1 => OpKind::Free,
                2 => OpKind::AllocateNothing,
                3 => OpKind::FreeNothing,
                _ => OpKind::AskAgain,
            },
            alignment_log2: rest[13],
            ticket: u16::from_le_bytes([rest[14], rest[15]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_loses_nothing() {
        let nothing = [OpKind::AllocateNothing, OpKind::FreeNothing];
        for kind in [OpKind::Allocate, OpKind::Free, OpKind::AskAgain].into_iter().chain(nothing) {
            let op = Op {
                bytes: u64::MAX - 7,
                slot: 0x0102_0304,
                lane: 5,
                line: u32::MAX,
                kind,
                alignment_log2: 12,
                ticket: 0x0607,
            };
            assert_eq!(Op::unpack(&op.pack()), op);
            assert_eq!(op.layout().alignment(), 4096);
        }
    }
}
