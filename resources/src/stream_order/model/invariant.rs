//! The invariant: every belief is true. The rule follows from parts 1 to 3, 13 and 14; the other parts carry
//! these over every step.
//!
//! `scripts/proof` proves that every step keeps every part, for any number of streams, blocks, threads and
//! epochs. The checker tests the same at one scale.

use super::{Block, Call, Epoch, Epochs, Id, Place, STREAMS, Stage, State, Stream};

/// A part of the invariant: what a broken part means, and whether a state has it.
type Part = (&'static str, fn(&State) -> bool);

/// The part that the checker looks at in every state, even with a mistake.
const EPOCHS: Part = ("12: a belief names an epoch that is not over", epochs_are_over);

/// All parts.
const PARTS: [Part; 18] = [
    ("1: a stream does not come after the work on a block that it owns", |state| {
        state.blocks.iter().all(|block| {
            block.owner().is_none_or(|(owner, _)| block.is_before(owner) && state.stream(owner).is_known)
        })
    }),
    ("2: the host does not know that the work on an unowned block is done", |state| {
        state.blocks.iter().all(|block| block.place != Place::Unowned || block.is_done)
    }),
    ("3: a stream does not come after the work that it has seen", |state| {
        state.all_known(|block, stream, it| !includes(block, &it.seen) || block.is_before(stream))
    }),
    ("4: an event does not cover its epoch", |state| {
        state.all_known(|block, stream, it| !is_of(block, stream, it.recorded) || covers(block, stream))
    }),
    ("5: an event does not cover what its stream had seen", |state| {
        state.all_known(|block, stream, it| {
            it.recorded == 0 || !includes(block, &it.recorded_seen) || covers(block, stream)
        })
    }),
    ("6: a stream does not come after its own event", |state| {
        state.all_known(|block, stream, it| {
            !it.has_event || block.covered & (1 << stream) == 0 || block.is_before(stream)
        })
    }),
    ("7: a stream does not come after what its next record notes as seen", |state| {
        state.all_calls(|block, _, call| match call {
            Call::Record { stream, seen, is_made: false, .. } => {
                !includes(block, seen) || block.is_before(*stream)
            }
            _ => true,
        })
    }),
    ("8: a record does not cover its own notes", |state| {
        state.all_calls(|block, thread, call| match call {
            Call::Record { stream, is_made: true, is_first: true, .. } => {
                let is_behind = is_held(block, thread) && !block.is_before(*stream);
                !is_behind && (!is_noted(block, call) || holds(block, thread))
            }
            Call::Record { stream, is_made: true, .. } => !is_noted(block, call) || covers(block, *stream),
            _ => true,
        })
    }),
    ("9: a thread's event does not cover the thread's notes", |state| {
        state.all_calls(|block, _, call| match call {
            Call::Event { stream, .. } => !is_noted(block, call) || covers(block, *stream),
            _ => true,
        })
    }),
    ("10: what a thread learned from an event is not true", |state| {
        state.all_calls(|block, _, call| match call {
            Call::Event { stage: Stage::Reached, .. } => !is_noted(block, call) || block.is_done,
            Call::Event { stage: Stage::Waits(waiter), .. } => {
                !is_noted(block, call) || block.is_before(*waiter)
            }
            _ => true,
        })
    }),
    ("11: a wait for the device does not cover the epochs that ended before", |state| {
        state.all_calls(|block, thread, call| match call {
            Call::Device { epochs, is_made: true } => !includes(block, epochs) || holds(block, thread),
            _ => true,
        })
    }),
    EPOCHS,
    ("13: the pool has notes about a stream that it does not know", |state| {
        state.streams.iter().all(|it| {
            it.is_known || !it.has_event && it.recorded == 0 && it.seen.iter().all(|epoch| *epoch == 0)
        })
    }),
    ("14: a stream's first epoch is not 1 or more", |state| {
        let are_counted = state.blocks.iter().all(|block| block.owner().is_none_or(|(_, epoch)| epoch > 0));
        are_counted && state.streams.iter().all(|it| it.epoch > 0)
    }),
    ("15: a thread works for a stream that the pool does not know", |state| {
        state.calls.iter().all(|call| match call {
            Call::Event { stream, stage: Stage::Waits(waiter), .. } => {
                state.stream(*stream).is_known && state.stream(*waiter).is_known
            }
            Call::Record { stream, .. } | Call::Event { stream, .. } => state.stream(*stream).is_known,
            Call::Idle | Call::Device { .. } => true,
        })
    }),
    ("16: a note is about the event of a stream that has none", |state| {
        let are_kept = state.calls.iter().all(|call| match call {
            Call::Record { stream, is_first: false, .. } | Call::Event { stream, .. } => {
                state.stream(*stream).has_event
            }
            _ => true,
        });
        are_kept && state.streams.iter().all(|it| it.recorded == 0 || it.has_event)
    }),
    ("17: the device has not reached a record that a thread knows as reached", |state| {
        state.all_calls(|block, _, call| match call {
            Call::Record { is_made, is_reached: true, .. } => {
                *is_made && (!is_noted(block, call) || block.is_done)
            }
            _ => true,
        })
    }),
    ("18: a thread holds work without a call that covers it", |state| {
        state.all_calls(|block, thread, call| match call {
            Call::Record { is_first: true, is_made: true, .. } | Call::Device { is_made: true, .. } => true,
            _ => !is_held(block, thread),
        })
    }),
];

/// Only the present epoch of a stream can have more frees.
fn epochs_are_over(state: &State) -> bool {
    let is_over = |stream: Id, epoch: Epoch| epoch == 0 || epoch < state.stream(stream).epoch;
    let are_over = |epochs: &Epochs| (0..STREAMS).all(|it| is_over(it as Id, epochs[it]));
    let mut frees = state.blocks.iter().filter_map(Block::owner);
    let streams = (0..).zip(&state.streams).all(|(stream, it)| {
        are_over(&it.seen) && are_over(&it.recorded_seen) && is_over(stream, it.recorded)
    });
    let calls = state.calls.iter().all(|call| match call {
        Call::Idle => true,
        Call::Record { stream, epoch, seen, .. } | Call::Event { stream, epoch, seen, .. } => {
            is_over(*stream, *epoch) && are_over(seen)
        }
        Call::Device { epochs, .. } => are_over(epochs),
    });
    frees.all(|(owner, epoch)| epoch <= state.stream(owner).epoch) && streams && calls
}

/// Returns whether these epochs of streams include a block's.
fn includes(block: &Block, epochs: &Epochs) -> bool {
    block.owner().is_some_and(|(owner, epoch)| epoch <= epochs[owner as usize])
}

/// Returns whether this is a block that a stream freed in this epoch or before.
fn is_of(block: &Block, stream: Id, upto: Epoch) -> bool {
    block.owner().is_some_and(|(owner, epoch)| owner == stream && epoch <= upto)
}

/// Returns whether a thread's record or event notes that it covers the block.
fn is_noted(block: &Block, call: &Call) -> bool {
    match call {
        Call::Record { stream, epoch, seen, .. } | Call::Event { stream, epoch, seen, .. } => {
            is_of(block, *stream, *epoch) || includes(block, seen)
        }
        Call::Idle | Call::Device { .. } => false,
    }
}

/// Returns whether a stream's event comes after all work on the block, as far as it is not done.
fn covers(block: &Block, stream: Id) -> bool {
    block.is_done || block.covered & (1 << stream) != 0
}

fn is_held(block: &Block, thread: Id) -> bool {
    block.held & (1 << thread) != 0
}

/// Returns whether a thread's call comes after all work on the block, as far as it is not done.
fn holds(block: &Block, thread: Id) -> bool {
    block.is_done || is_held(block, thread)
}

impl State {
    /// Returns each part of the invariant that is broken. Each begins with its number.
    pub(crate) fn broken_parts(&self) -> impl Iterator<Item = &'static str> {
        PARTS.iter().filter(|(_, has)| !has(self)).map(|(part, _)| *part)
    }

    /// Returns the broken part about epochs: only the present epoch of a known stream can have more frees.
    pub(crate) fn broken_epoch(&self) -> Option<&'static str> {
        let (part, has) = EPOCHS;
        (!has(self)).then_some(part)
    }

    fn stream(&self, stream: Id) -> &Stream {
        &self.streams[stream as usize]
    }

    /// Returns whether this is true for each block and each stream that the pool knows.
    fn all_known(&self, is_true: impl Fn(&Block, Id, &Stream) -> bool) -> bool {
        let mut known = (0..).zip(&self.streams).filter(|(_, it)| it.is_known);
        known.all(|(stream, it)| self.blocks.iter().all(|block| is_true(block, stream, it)))
    }

    /// Returns whether this is true for each block and each thread's call.
    fn all_calls(&self, is_true: impl Fn(&Block, Id, &Call) -> bool) -> bool {
        let mut calls = (0..).zip(&self.calls);
        calls.all(|(thread, call)| self.blocks.iter().all(|block| is_true(block, thread, call)))
    }
}
