//! The rule, and the invariant from which it follows. `scripts/proof` proves that each step keeps it.

use super::{BLOCKS, Call, Id, LEGACY, Place, STREAMS, State, THREADS};

/// A part of the invariant: what a broken part means, and whether a state has it.
type Part = (&'static str, fn(&State) -> bool);

const PARTS: [Part; 8] = [
    ("1: the stream of a block that is handed on does not come after all work on it", |state| {
        state.all_blocks(|it| {
            !state.is_handed_on(it) || state.after[it].iter().all(|order| state.comes_after(it, order))
        })
    }),
    ("2: the stream of a block is not ready for it, or does not exist", |state| {
        state.all_blocks(|it| {
            let home = state.home[it] as usize;
            state.place[it] == Place::Pool || state.ready[it][home] && state.exists[home]
        })
    }),
    ("3: a thread uses a block that no buffer holds, or on a stream that is not ready", |state| {
        state.all_threads(|it| {
            let (block, stream) = (state.of[it] as usize, state.on[it] as usize);
            let is_ready = state.call[it] == Call::Unnamed || state.ready[block][stream];
            state.call[it] == Call::Idle || state.place[block] == Place::Held && is_ready
        })
    }),
    ("4: work may run on a block that its client does not hold", |state| {
        state.all_blocks(|it| !state.stray[it])
    }),
    ("5: no note says that the block's stream does not come after the work of a stream", |state| {
        state.all_blocks(|it| {
            state.place[it] != Place::Held
                || state.at_large[it]
                || (0..STREAMS).all(|worker| {
                    state.after[it][worker][state.home[it] as usize] || state.is_under_way(it, worker)
                })
        })
    }),
    ("6: a stream does not come after its own work", |state| {
        state.all_orders(|worker, order| (0..STREAMS).all(|it| !state.is_gained(worker, it) || order[it]))
    }),
    ("7: the legacy stream does not come after the work of a thread's stream", |state| {
        let is_closed = |order: &[bool; STREAMS]| {
            (0..STREAMS).all(|it| !state.local[it] || !order[it] || order[LEGACY as usize])
        };
        state.all_orders(|_, order| is_closed(order)) && state.ready.iter().all(is_closed)
    }),
    ("8: the legacy stream is gone, captures, or belongs to a thread", |state| {
        let legacy = LEGACY as usize;
        state.exists[legacy] && !state.captures[legacy] && !state.local[legacy]
    }),
];

impl State {
    /// Says which block is freed too early, or which work may run too early.
    pub(super) fn broken_rule(&self) -> Option<&'static str> {
        let is_freed_early = !self.all_blocks(|it| {
            let is_last = self.after[it].iter().all(|order| self.comes_after(it, order));
            let home = self.home[it] as usize;
            !self.is_handed_on(it) || is_last && self.exists[home] && self.ready[it][home]
        });
        if is_freed_early {
            return Some("a block is handed on before the work on it is ordered");
        }
        if self.stray.contains(&true) {
            return Some("work may run on a block that its client does not hold");
        }
        let is_early = !self.all_threads(|it| {
            let (block, on) = (self.of[it] as usize, self.on[it]);
            let is_held = self.place[block] == Place::Held;
            match self.call[it] {
                Call::Idle => true,
                Call::Unnamed => {
                    is_held || (0..STREAMS).all(|on| !self.may_work_ready(block as Id, on as Id))
                }
                Call::Use | Call::Loan => !self.may_work(on) || is_held && self.ready[block][on as usize],
            }
        });
        is_early.then_some("work may run before the work of earlier owners")
    }

    /// Returns each part of the invariant that is broken. Each begins with its number.
    pub(super) fn parts_broken(&self) -> impl Iterator<Item = &'static str> {
        PARTS.iter().filter(|(_, has)| !has(self)).map(|(part, _)| *part)
    }

    /// Returns whether a layer or a library gets the block now.
    fn is_handed_on(&self, block: usize) -> bool {
        matches!(self.place[block], Place::New | Place::Old)
    }

    /// Returns whether the block's free comes after this work. Another library needs it to be done.
    fn comes_after(&self, block: usize, order: &[bool; STREAMS]) -> bool {
        order[self.home[block] as usize] && (!self.foreign[block] || order.iter().all(|it| *it))
    }

    /// Returns whether a use or an export that is under way may have submitted work on this stream.
    fn is_under_way(&self, block: usize, worker: usize) -> bool {
        (0..THREADS).any(|it| {
            let has_stream = self.call[it] == Call::Unnamed || self.on[it] as usize == worker;
            self.call[it] != Call::Idle && self.of[it] as usize == block && has_stream
        })
    }

    fn is_gained(&self, stream: usize, other: usize) -> bool {
        self.gains(stream as Id, other as Id)
    }

    fn all_blocks(&self, is_true: impl Fn(usize) -> bool) -> bool {
        (0..BLOCKS).all(is_true)
    }

    fn all_threads(&self, is_true: impl Fn(usize) -> bool) -> bool {
        (0..THREADS).all(is_true)
    }

    fn all_orders(&self, is_true: impl Fn(usize, &[bool; STREAMS]) -> bool) -> bool {
        self.after.iter().all(|orders| orders.iter().enumerate().all(|(worker, it)| is_true(worker, it)))
    }
}
