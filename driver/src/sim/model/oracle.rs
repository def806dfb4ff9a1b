//! The oracle of stream order: the history of blocks and of their memory.
//!
//! History belongs to *physical* memory, so a block reached through another mapping keeps its history. Each
//! place has two sets of points in the streams' order:
//! - `released`: where earlier owners returned it. A new owner must come after all of them;
//! - `uses`: later accesses outside any block (a resource's own fills, memory that was never lent).
//!
//! If a block comes back on stream `s`, its next owner must come after two things: the present end of `s`,
//! and every older point that `s` does not happen after. This covers a use on another stream that the owner
//! forgot to order before `s`. It also covers earlier owners, if `s` was never ordered after the stream that
//! the block was lent to.
//!
//! Captured work runs when the graph is launched. So it leaves no history for streams outside its capture,
//! and captured order orders no other work. A block that comes back in a capture leaves all uses outside it
//! in the history, unless the host knows them to be done.

use std::ops::Range;

use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr};
use rustc_hash::FxHashMap;

use super::clock::{Epoch, Epochs, Slot};
use super::memory::{Piece, Pieces};
use super::order::Order;
use super::runs::RunMap;
use super::violation::ViolationKind;

/// The history of a range of physical memory. A range without history is fresh.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) owner: Option<u32>,
    pub(crate) released: Epochs,
    pub(crate) uses: Epochs,
    /// Captured releases and uses.
    pub(crate) captured: Epochs,
}

/// The slot of a stream that no longer exists.
pub(crate) const NO_SLOT: Slot = Slot::MAX;

/// A lent block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) ptr: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) slot: Slot,
    pub(crate) pieces: Pieces,
    pub(crate) uses: Epochs,
    /// The captured uses.
    pub(crate) captured: Epochs,
}

/// Every block and the history of all memory.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) places: RunMap<Place>,
    pub(crate) blocks: Vec<Option<Block>>,
    pub(crate) free: Vec<u32>,
    pub(crate) by_address: FxHashMap<DevicePtr, u32>,
    /// The uses through mappings whose memory may have several mappings, by the mapping's start.
    pub(crate) through: FxHashMap<u64, Epochs>,
}

/// A broken rule, found while the state is borrowed.
pub(crate) type Finding = (ViolationKind, String);

impl Oracle {
    pub(crate) fn insert(&mut self, block: Block) -> u32 {
        let index = self.free.pop().unwrap_or(self.blocks.len() as u32);
        self.by_address.insert(block.ptr, index);
        match self.blocks.get_mut(index as usize) {
            Some(place) => *place = Some(block),
            None => self.blocks.push(Some(block)),
        }
        index
    }

    pub(crate) fn take(&mut self, index: u32) -> Option<Block> {
        let block = self.blocks.get_mut(index as usize)?.take()?;
        self.free.push(index);
        if self.by_address.get(&block.ptr) == Some(&index) {
            self.by_address.remove(&block.ptr);
        }
        Some(block)
    }

    /// Lends a piece to a block on `slot`: no other block may hold it, and `slot` must come after its whole
    /// history. Captured work counts only if it is `in_same_capture`.
    pub(crate) fn lend(
        &mut self,
        order: &Order,
        piece: &Piece,
        slot: Slot,
        index: u32,
        in_same_capture: impl Fn(Epoch) -> bool,
    ) -> Option<Finding> {
        let Self { places, blocks, .. } = self;
        let mut finding = None;
        places.update(piece.range(), &Place::default(), |range, place| {
            if let Some(other) = place.owner.and_then(|owner| blocks[owner as usize].as_ref()) {
                let message =
                    format!("{range:x?} in it is already handed out, as a part of {}", other.describe());
                finding.get_or_insert((ViolationKind::Overlap, message));
            }
            let first = {
                let captured = place.captured.iter().filter(|e| in_same_capture(*e));
                let mut history = place.released.iter().chain(place.uses.iter()).chain(captured);
                history.find(|e| !order.covers(slot, *e))
            };
            if let Some(epoch) = first {
                finding.get_or_insert_with(|| (ViolationKind::StreamOrder, unordered(order, slot, epoch)));
                place.released.clear(); // reported once
                place.uses.clear();
            }
            place.owner = Some(index);
        });
        finding
    }

    /// Records the work that a block's next owner must come after. `is_captured`: the block returns in a
    /// capture.
    pub(crate) fn give_back(&mut self, order: &Order, block: &Block, slot: Slot, is_captured: bool) {
        let position = order.position(slot);
        for piece in &block.pieces {
            let mut released = if is_captured { Epochs::default() } else { position.clone() };
            let mut captured = block.captured.clone();
            if is_captured {
                captured.add(order.end(slot));
            }
            let open = |epoch: &Epoch| match is_captured {
                true => !order.host_knows(*epoch),
                false => !order.covers(slot, *epoch),
            };
            if piece.via != 0 {
                let through = self.through.entry(piece.via).or_default();
                released.iter().chain(block.uses.iter()).for_each(|epoch| through.add(epoch));
            }
            block.uses.iter().filter(open).for_each(|epoch| released.add(epoch));
            for (_, place) in self.places.overlapping(piece.range()) {
                let older = place.released.iter().chain(place.uses.iter());
                older.filter(open).for_each(|epoch| released.add(epoch));
                place.captured.iter().for_each(|epoch| captured.add(epoch));
            }
            let place = Place { owner: None, released, captured, uses: Epochs::default() };
            self.places.replace(piece.range(), place);
        }
    }

    /// Records an access, captured or not. It must come after everything that earlier owners submitted.
    pub(crate) fn access(
        &mut self,
        order: &Order,
        piece: &Piece,
        epoch: Epoch,
        is_captured: bool,
    ) -> Option<Finding> {
        let Self { places, blocks, through, .. } = self;
        if piece.via != 0 && !is_captured {
            through.entry(piece.via).or_default().add(epoch);
        }
        if let Some(Place { owner: Some(owner), .. }) = places.containing(&piece.range())
            && let Some(Some(block)) = blocks.get_mut(*owner as usize)
            && block.slot == epoch.slot()
        {
            block.history(is_captured).add(epoch); // checked when the block was lent
            return None;
        }
        let mut finding = None;
        let start = piece.physical - piece.physical % ALLOCATION_ALIGNMENT;
        let end = piece.range().end.next_multiple_of(ALLOCATION_ALIGNMENT);
        places.update(start..end, &Place::default(), |_, place| {
            let before = place.released.iter().find(|e| !order.covers(epoch.slot(), *e));
            if let Some(before) = before {
                finding.get_or_insert_with(|| {
                    let message = format!("used in a race: {}", unordered(order, epoch.slot(), before));
                    (ViolationKind::StreamOrder, message)
                });
                place.released.clear();
            }
            match place.owner.and_then(|owner| blocks[owner as usize].as_mut()) {
                Some(block) => block.history(is_captured).add(epoch),
                None if is_captured => place.captured.add(epoch),
                None => place.uses.add(epoch),
            }
        });
        finding
    }

    /// Ends the history of memory that goes away. `ordered` tells which uses are over by then.
    pub(crate) fn retire(
        &mut self,
        range: Range<u64>,
        mut ordered: impl FnMut(Epoch) -> bool,
    ) -> Option<ViolationKind> {
        let mut kind = None;
        let mut owners: Vec<u32> = Vec::new();
        for (_, place) in self.places.overlapping(range.clone()) {
            owners.extend(place.owner);
            if !place.released.iter().chain(place.uses.iter()).all(&mut ordered) {
                kind = Some(ViolationKind::EarlyReturn);
            }
        }
        self.places.remove(range);
        if !owners.is_empty() {
            kind = Some(ViolationKind::LentReturned);
            for owner in owners {
                self.take(owner);
            }
        }
        kind
    }

    /// Ends a mapping of memory that may have others. The memory's history continues, and so do blocks that
    /// were lent at other addresses. `ordered` tells which uses are over by then.
    pub(crate) fn unmapped(
        &mut self,
        piece: &Piece,
        addresses: Range<u64>,
        mut ordered: impl FnMut(Epoch) -> bool,
    ) -> Option<ViolationKind> {
        let uses = self.through.remove(&piece.via).unwrap_or_default();
        let early = !uses.iter().all(&mut ordered);
        let owners: Vec<u32> = self.places.overlapping(piece.range()).filter_map(|(_, p)| p.owner).collect();
        let mut lent = false;
        for owner in owners {
            let block = self.blocks.get(owner as usize).and_then(Option::as_ref);
            let here = block.is_some_and(|block| {
                let start = block.ptr.address();
                start < addresses.end && start + block.bytes > addresses.start
            });
            if here {
                lent = true;
                self.take(owner);
            }
        }
        match (lent, early) {
            (true, _) => Some(ViolationKind::LentReturned),
            (false, true) => Some(ViolationKind::EarlyReturn),
            (false, false) => None,
        }
    }

    /// Starts a new life of memory: its users must come after `epoch`.
    pub(crate) fn begin(&mut self, range: Range<u64>, epoch: Epoch) {
        let mut released = Epochs::default();
        released.add(epoch);
        self.places.replace(range, Place { released, ..Place::default() });
    }

    /// Calls `each` for every epoch that may still be compared.
    pub(crate) fn for_each_epoch(&self, mut each: impl FnMut(Epoch)) {
        for place in self.places.values() {
            place.released.iter().chain(place.uses.iter()).for_each(&mut each);
        }
        for block in self.blocks.iter().flatten() {
            block.uses.iter().for_each(&mut each);
        }
        self.through.values().flat_map(Epochs::iter).for_each(each);
    }

    /// Because slots are reused, a block that was lent to a destroyed stream loses its slot.
    pub(crate) fn forget_slots(&mut self, is_free: impl Fn(Slot) -> bool) {
        for block in self.blocks.iter_mut().flatten() {
            if block.slot != NO_SLOT && is_free(block.slot) {
                block.slot = NO_SLOT;
            }
        }
    }

    pub(crate) fn lent_blocks(&self) -> usize {
        self.by_address.len()
    }
}

impl Block {
    /// The set in which to record a use.
    fn history(&mut self, is_captured: bool) -> &mut Epochs {
        if is_captured { &mut self.captured } else { &mut self.uses }
    }

    pub(crate) fn describe(&self) -> String {
        format!("the block of {} bytes at {}", self.bytes, self.ptr)
    }
}

pub(crate) fn unordered(order: &Order, slot: Slot, epoch: Epoch) -> String {
    let stream = |slot: Slot| format!("{:#x}", order.lane(slot).handle);
    format!(
        "stream {} is not ordered after point {} of stream {}, where an earlier owner may have used the \
         memory",
        stream(slot),
        epoch.tick(),
        stream(epoch.slot()),
    )
}
