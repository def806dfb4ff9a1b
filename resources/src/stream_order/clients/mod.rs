//! The pool's clients as a small model: Python's buffers, their exports, and layers that submit work.
//!
//! The model of the pool ([`checker`](super::checker)) assumes a duty of its clients. This model's rule is
//! that duty: **a free comes after all work on the block, and work runs only on a block that its client holds
//! and that earlier owners no longer use.** So the two theorems compose.
//!
//! A [`State`] again has two sides:
//!
//! - the **truth**: for each block and each stream that works on it, the streams whose next work comes after
//!   this work (`after`). The streams whose next work comes after the work of the block's earlier owners
//!   (`ready`). Whether work may run on a block that its client does not hold (`stray`).
//! - the **belief**: the notes of `python/src/block.rs`. The block's stream (`home`), whether unknown streams
//!   may use the block (`at_large`), and the uses and exports that are under way (`calls`).
//!
//! The model leaves these out, and loses nothing:
//!
//! - **Captured work.** It does not run during the capture. The program keeps a buffer until the last launch
//!   of its graphs is done, as `docs/book/src/graphs.md` says. The scopes of captures have a model of their
//!   own.
//! - **Slices and second imports.** They share the block, so they are more uses of it.
//! - **More order**: waits of the host, and work that ends early.
//!
//! `scripts/proof/clients.py` has the same formulas for the proof.

mod dump;
mod invariant;
mod mistake;
mod step;
mod tests;

use mistake::Mistake;
use step::actions;

use super::checker::explore::Model;

/// The streams. The first is the legacy default stream.
const STREAMS: usize = 3;
/// The blocks.
const BLOCKS: usize = 2;
/// The uses and exports that are under way at one time.
const THREADS: usize = 2;

/// The index of a stream, a block or a thread.
type Id = u8;

/// The number of the legacy default stream.
const LEGACY: Id = 0;

/// How much of the model is used.
#[derive(Clone, Copy, Debug)]
struct Scale {
    streams: Id,
    blocks: Id,
    threads: Id,
    /// The streams that are threads' default streams: these numbers and all that follow.
    locals: Id,
}

/// The place of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Place {
    /// The pool or another library has it.
    Pool,
    /// A layer has it in an allocation.
    New,
    /// A buffer has it.
    Held,
    /// A layer has it in a free, or another library gets it back.
    Old,
}

/// What a thread does. The work of a call lasts until its end, and a thread stands for each of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Call {
    /// Nothing.
    Idle,
    /// A method of a buffer uses a stream.
    Use,
    /// A consumer has an export, and named its stream.
    Loan,
    /// A consumer has an export, and named no stream.
    Unnamed,
}

/// A state: the beliefs and the truth. Each field is a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct State {
    /// Whether the stream exists.
    exists: [bool; STREAMS],
    /// Whether the stream captures a graph.
    captures: [bool; STREAMS],
    /// Whether the stream is a thread's default stream.
    local: [bool; STREAMS],
    place: [Place; BLOCKS],
    /// The stream on which the block is freed.
    home: [Id; BLOCKS],
    /// Whether the block belongs to another library.
    foreign: [bool; BLOCKS],
    /// Whether unnamed streams may use the block.
    at_large: [bool; BLOCKS],
    /// Whether work may run on the block while its client does not hold it.
    stray: [bool; BLOCKS],
    /// The streams whose next work comes after the work of the block's earlier owners.
    ready: [[bool; STREAMS]; BLOCKS],
    /// For each block and each stream with work on it, the streams whose next work comes after this work.
    after: [[[bool; STREAMS]; STREAMS]; BLOCKS],
    call: [Call; THREADS],
    /// The block of a thread's use or export.
    of: [Id; THREADS],
    /// The stream of a thread's use or export.
    on: [Id; THREADS],
}

/// A step. `here` says whether the calling thread is the thread of the block's stream, and `there`, whether
/// it is the thread of the consumer's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// The pool hands a block to a layer or a buffer.
    Allocate { block: Id, stream: Id },
    /// A buffer takes memory of another library, whose work comes before this stream's next work.
    TakeForeign { block: Id, stream: Id },
    /// A layer submits work on a new block.
    WorkNew { block: Id },
    /// The layer hands the block to a buffer.
    HandOver { block: Id },
    /// A method of a buffer begins to use a stream: the stream waits for the block's stream.
    Use { thread: Id, block: Id, stream: Id, here: bool },
    /// A consumer that names its stream takes an export. The stream waits for the block's stream.
    Lend { thread: Id, block: Id, stream: Id, here: bool },
    /// A consumer that names no stream takes an export.
    LendUnnamed { thread: Id, block: Id },
    /// The buffer's address goes to a library whose streams are unknown: `__cuda_array_interface__`.
    Share { block: Id },
    /// A method or a consumer submits work on its stream.
    Work { thread: Id },
    /// A consumer that named no stream submits work, on a stream that it has ordered.
    WorkUnnamed { thread: Id, stream: Id },
    /// A library whose streams are unknown submits work.
    WorkAtLarge { block: Id, stream: Id },
    /// A method or an export ends: the block's stream waits for the stream of the work.
    End { thread: Id, here: bool, there: bool },
    /// The driver refuses this wait.
    Fail { thread: Id },
    /// The last owner of a block is gone. The block goes to a layer, or back to its library.
    Release { block: Id, here: bool },
    /// A layer submits work on a freed block.
    WorkOld { block: Id },
    /// The layer frees the block in the pool.
    PassOn { block: Id },
    /// The program makes a stream wait for another.
    Order { stream: Id, other: Id },
    /// The program destroys a stream.
    Destroy { stream: Id },
    /// A capture begins on a stream.
    BeginCapture { stream: Id },
    /// It ends.
    EndCapture { stream: Id },
}

impl Model for State {
    type Scale = Scale;
    type Action = Action;
    type Mistake = Mistake;

    /// The pool has all blocks, and nothing is under way.
    fn start(scale: Scale) -> Self {
        Self {
            exists: [true; STREAMS],
            captures: [false; STREAMS],
            local: std::array::from_fn(|stream| stream >= scale.locals as usize),
            place: [Place::Pool; BLOCKS],
            home: [LEGACY; BLOCKS],
            foreign: [false; BLOCKS],
            at_large: [false; BLOCKS],
            stray: [false; BLOCKS],
            ready: [[false; STREAMS]; BLOCKS],
            after: [[[true; STREAMS]; STREAMS]; BLOCKS],
            call: [Call::Idle; THREADS],
            of: [0; THREADS],
            on: [LEGACY; THREADS],
        }
    }

    fn actions(scale: Scale) -> Vec<Action> {
        actions(scale)
    }

    fn after(&self, action: Action, scale: Scale, mistake: Option<Mistake>) -> Option<Self> {
        let mut next = *self;
        next.act(action, scale, mistake).then_some(next)
    }

    /// Forgets notes that the steps do not read: about blocks of the pool, and about idle threads.
    fn shape(mut self, scale: Scale) -> Self {
        for block in 0..BLOCKS {
            if self.place[block] == Place::Pool {
                (self.home[block], self.foreign[block], self.at_large[block]) = (LEGACY, false, false);
                (self.ready[block], self.after[block]) = ([false; STREAMS], [[true; STREAMS]; STREAMS]);
            }
        }
        let mut calls: [_; THREADS] = std::array::from_fn(|it| match self.call[it] {
            Call::Idle => (Call::Idle, 0, LEGACY),
            call => (call, self.of[it], self.on[it]),
        });
        calls[..scale.threads as usize].sort_unstable();
        for (it, call) in calls.into_iter().enumerate() {
            (self.call[it], self.of[it], self.on[it]) = call;
        }
        self
    }

    fn breaks_rule(&self, _: Scale) -> Option<&'static str> {
        self.broken_rule()
    }

    fn broken_parts(&self) -> impl Iterator<Item = &'static str> {
        self.parts_broken()
    }
}
