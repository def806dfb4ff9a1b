//! The invariant: every belief is true. The rule follows from parts 1 to 3.
//!
//! Nothing proves yet that every step keeps it for any number of streams; the checker tests it at one scale.

use super::{Block, Call, Epoch, Epochs, Id, Place, STREAMS, Stage, State};

/// Returns whether these epochs of streams include a block's.
fn includes(block: &Block, epochs: &Epochs) -> bool {
    block.owner().is_some_and(|(owner, epoch)| epoch <= epochs[owner as usize])
}

/// Returns whether this is a block that a stream freed in this epoch or before.
fn is_of(block: &Block, stream: Id, upto: Epoch) -> bool {
    block.owner().is_some_and(|(owner, epoch)| owner == stream && epoch <= upto)
}

impl State {
    /// Returns the part of the invariant that is broken.
    pub(crate) fn broken(&self) -> Option<&'static str> {
        self.broken_epoch().or_else(|| self.blocks.iter().find_map(|block| self.broken_at(block)))
    }

    fn broken_at(&self, block: &Block) -> Option<&'static str> {
        if let Some((owner, _)) = block.owner()
            && !(block.is_before(owner) && self.streams[owner as usize].is_known)
        {
            return Some("1: a stream does not come after the work on a block that it owns");
        }
        if block.place == Place::Unowned && !block.is_done {
            return Some("2: the host does not know that the work on an unowned block is done");
        }
        for (stream, it) in (0..).zip(&self.streams).filter(|(_, it)| it.is_known) {
            if includes(block, &it.seen) && !block.is_before(stream) {
                return Some("3: a stream does not come after the work that it has seen");
            }
            let is_covered = block.is_done || block.covered & (1 << stream) != 0;
            if is_of(block, stream, it.recorded) && !is_covered {
                return Some("4: an event does not cover its epoch");
            }
            if it.recorded > 0 && includes(block, &it.recorded_seen) && !is_covered {
                return Some("5: an event does not cover what its stream had seen");
            }
            if it.has_event && block.covered & (1 << stream) != 0 && !block.is_before(stream) {
                return Some("6: a stream does not come after its own event");
            }
        }
        (0..).zip(&self.calls).find_map(|(thread, call)| self.broken_call(block, thread, call))
    }

    /// Returns the broken part about a block and what a thread holds.
    fn broken_call(&self, block: &Block, thread: Id, call: &Call) -> Option<&'static str> {
        let holds = block.is_done || block.held & (1 << thread) != 0;
        let covers = |stream: Id| block.is_done || block.covered & (1 << stream) != 0;
        match *call {
            Call::Record { stream, seen, is_made: false, .. } => {
                let broken = includes(block, &seen) && !block.is_before(stream);
                broken.then_some("7: a stream does not come after what its next record notes as seen")
            }
            Call::Record { stream, epoch, seen, is_first, .. } => {
                let is_covered = if is_first { holds } else { covers(stream) };
                let broken = (is_of(block, stream, epoch) || includes(block, &seen)) && !is_covered;
                let is_behind = is_first && block.held & (1 << thread) != 0 && !block.is_before(stream);
                (broken || is_behind).then_some("8: a record does not cover its own notes")
            }
            Call::Event { stream, epoch, seen, stage } => {
                let is_noted = is_of(block, stream, epoch) || includes(block, &seen);
                if is_noted && !covers(stream) {
                    return Some("9: a thread's event does not cover the thread's notes");
                }
                let is_true = match stage {
                    Stage::Picked => true,
                    Stage::Reached => block.is_done,
                    Stage::Waits(waiter) => block.is_before(waiter),
                };
                (is_noted && !is_true).then_some("10: what a thread learned from an event is not true")
            }
            Call::Device { epochs, is_made: true } if includes(block, &epochs) && !holds => {
                Some("11: a wait for the device does not cover the epochs that ended before")
            }
            Call::Idle | Call::Device { .. } => None,
        }
    }

    /// Returns the broken part about epochs: only the present epoch of a known stream can have more frees.
    pub(crate) fn broken_epoch(&self) -> Option<&'static str> {
        let is_over = |epochs: &Epochs| {
            (0..STREAMS).all(|stream| epochs[stream] == 0 || epochs[stream] < self.streams[stream].epoch)
        };
        let of = |stream: Id, epoch: Epoch| {
            let mut epochs = [0; STREAMS];
            epochs[stream as usize] = epoch;
            epochs
        };
        let frees = self.blocks.iter().filter_map(Block::owner);
        let are_past = frees.into_iter().all(|(owner, epoch)| epoch <= self.streams[owner as usize].epoch);
        let streams = (0..).zip(&self.streams).all(|(stream, it)| {
            is_over(&it.seen) && is_over(&it.recorded_seen) && is_over(&of(stream, it.recorded))
        });
        let calls = self.calls.iter().all(|call| match call {
            Call::Idle => true,
            Call::Record { stream, epoch, seen, .. } | Call::Event { stream, epoch, seen, .. } => {
                is_over(&of(*stream, *epoch)) && is_over(seen)
            }
            Call::Device { epochs, .. } => is_over(epochs),
        });
        (!(are_past && streams && calls)).then_some("12: a belief names an epoch that is not over")
    }
}
