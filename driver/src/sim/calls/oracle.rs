//! Tells the oracle which blocks are lent, returned and used.

use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr, StreamRef};

use crate::sim::model::clock::{Epoch, Epochs};
use crate::sim::model::memory::Pieces;
use crate::sim::model::oracle::Block;
use crate::sim::model::violation::ViolationKind;
use crate::sim::state::State;

impl State {
    /// See [`SimDevice::lend`](crate::sim::SimDevice::lend).
    pub(crate) fn lend(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.begin_step();
        if ptr.is_null() && bytes == 0 {
            return;
        }
        let Some(slot) = self.slot(stream, "lend") else { return };
        let pieces = self.space.translate(ptr.address(), bytes);
        if bytes == 0 || pieces.is_none() || !ptr.is_aligned_to(ALLOCATION_ALIGNMENT) {
            self.violation(ViolationKind::OutOfBounds, || {
                format!(
                    "a block of {bytes} bytes at {ptr} was handed out; a block lies in one allocation, at a \
                     multiple of {ALLOCATION_ALIGNMENT}, and a block of 0 bytes has a null address"
                )
            });
        }
        let pieces = pieces.unwrap_or_default();
        if let Some(&index) = self.oracle.by_address.get(&ptr) {
            self.violation(ViolationKind::Overlap, || format!("{ptr} was handed out twice"));
            self.oracle.take(index);
        }
        let (uses, captured) = (Epochs::default(), Epochs::default());
        let block = Block { ptr, bytes, slot, pieces, uses, captured };
        let pieces = block.pieces.clone();
        let index = self.oracle.insert(block);
        for piece in &pieces {
            let in_same_capture = |epoch| self.captures.has_captured(slot, epoch);
            if let Some((kind, message)) = self.oracle.lend(&self.order, piece, slot, index, in_same_capture)
            {
                self.violation(kind, || {
                    format!("the block of {bytes} bytes at {ptr} was handed out: {message}")
                });
            }
        }
    }

    /// See [`SimDevice::give_back`](crate::sim::SimDevice::give_back).
    pub(crate) fn give_back(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.begin_step();
        if ptr.is_null() && bytes == 0 {
            return;
        }
        let Some(slot) = self.slot(stream, "give_back") else { return };
        let found = self.oracle.by_address.get(&ptr).copied();
        let Some(block) = found.and_then(|index| self.oracle.take(index)) else {
            self.violation(ViolationKind::UnknownPointer, || {
                format!("{ptr} was given back, but is not handed out")
            });
            return;
        };
        if block.bytes != bytes {
            let lent = block.describe();
            self.violation(ViolationKind::Overlap, || format!("{lent} was given back with {bytes} bytes"));
        }
        self.oracle.give_back(&self.order, &block, slot, self.captures.of(slot).is_some());
    }

    /// The memory behind an access, which this checks and records at `epoch`.
    pub(crate) fn access(&mut self, ptr: DevicePtr, bytes: u64, epoch: Epoch) -> Option<Pieces> {
        if bytes == 0 {
            return Some(Pieces::new());
        }
        let Some(pieces) = self.space.translate(ptr.address(), bytes) else {
            self.violation(ViolationKind::OutOfBounds, || {
                format!("{bytes} bytes at {ptr} were used, but they do not lie in one accessible allocation")
            });
            return None;
        };
        let is_captured = self.captures.of(epoch.slot()).is_some();
        for piece in &pieces {
            if let Some((kind, message)) = self.oracle.access(&self.order, piece, epoch, is_captured) {
                self.violation(kind, || format!("{bytes} bytes at {ptr}: {message}"));
            }
        }
        Some(pieces)
    }
}
