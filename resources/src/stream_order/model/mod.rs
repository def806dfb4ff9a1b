//! The rule of stream order as a small model, and a checker that visits every state of it.
//!
//! The rule: **a stream gets a block only if its next work comes after all work on the block.** Stream order
//! in the pool is a record of the host's beliefs about this order. So a [`State`] holds two
//! things side by side:
//!
//! - the **truth**: for each block, which streams and events come after all work on it, and whether the host
//!   knows that this work is done. The program, its layers and CUDA change the truth.
//! - the **belief**: the pool's notes about streams (epoch, event, `seen`) and about free blocks (owner,
//!   epoch). The pool decides by the belief alone.
//!
//! The checker tries every [`Action`] in every state. The rule holds if the pool never takes a block
//! ([`Action::Take`]) for a stream that does not come after the block's work. [`State::broken`] names the
//! parts of the invariant from which the rule follows.
//!
//! These files are compiled at two sizes, which the module above sets: small for the
//! [checker](crate::stream_order::checker), and large for the traces of programs (`pool/central/tie/`).
//!
//! The model leaves these out, and loses nothing:
//!
//! - **Queues.** CUDA runs a stream's queue at any speed, so a query may answer "reached" at any moment. The
//!   order between works depends only on submitted records and waits, and the truth has exactly this order.
//! - **Work on live blocks.** The worst work is the last: submitted just before the free, on a stream that no
//!   record covers. [`Action::Free`] submits it.
//! - **Several uses on several streams.** A client orders all of them before the stream of its free. This is
//!   its duty, and [`Mistake::FreeWithoutOrder`] breaks it.
//! - **Order that no work needs**, such as the legacy stream's. More order breaks no rule.
//! - **Numbers of streams.** The model calls a stream's number by its stream. A number that is used again is
//!   then a stream that comes back, or a new stream in the place of a destroyed one.

mod invariant;
mod mistake;
mod step;

pub(crate) use mistake::Mistake;
pub(crate) use step::actions;

use super::{BLOCKS, Bits, Epoch, STREAMS, THREADS};

/// The index of a stream, a block or a thread.
pub(crate) type Id = u8;
/// An epoch for each stream.
pub(crate) type Epochs = [Epoch; STREAMS];

/// How much of the model is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// The streams, at most [`STREAMS`].
    pub(crate) streams: Id,
    /// The blocks, at most [`BLOCKS`].
    pub(crate) blocks: Id,
    /// The host threads, at most [`THREADS`].
    pub(crate) threads: Id,
    /// The most epochs of one stream.
    pub(crate) epochs: Epoch,
}

/// The pool's beliefs about a stream, and whether the stream exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Stream {
    /// Whether the CUDA stream exists. After it is destroyed, no thread may submit work to it.
    pub(crate) exists: bool,
    /// Whether the pool's table has the stream.
    pub(crate) is_known: bool,
    /// The epoch of a block that is freed now.
    pub(crate) epoch: Epoch,
    /// Whether the stream has an event.
    pub(crate) has_event: bool,
    /// The latest epoch that the event covers.
    pub(crate) recorded: Epoch,
    /// The epochs of other streams that the event covers.
    pub(crate) recorded_seen: Epochs,
    /// The epochs of other streams that the stream's next work is ordered after.
    pub(crate) seen: Epochs,
}

impl Stream {
    /// A stream that exists, and that the pool does not know.
    pub(crate) const NEW: Self = Self {
        exists: true,
        is_known: false,
        epoch: 1,
        has_event: false,
        recorded: 0,
        recorded_seen: [0; STREAMS],
        seen: [0; STREAMS],
    };
}

/// The place of a block, and the pool's beliefs about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Place {
    /// The program has it.
    Live,
    /// A thread frees it, and has read the epoch. No other thread can see it.
    Freeing {
        /// The stream of the free.
        owner: Id,
        /// The epoch that the thread has read.
        epoch: Epoch,
    },
    /// It is free, and belongs to a stream.
    Free {
        /// The stream of the free.
        owner: Id,
        /// The epoch of the free.
        epoch: Epoch,
    },
    /// It is free, and every stream may have it.
    Unowned,
}

/// A block: the pool's belief, and the truth about all work on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Block {
    /// The belief.
    pub(crate) place: Place,
    /// The streams whose next work comes after all work on the block.
    pub(crate) before: Bits,
    /// The streams whose event's last record comes after all work on the block.
    pub(crate) covered: Bits,
    /// The threads whose call covers all work on the block: a record of an event of their own, or a wait for
    /// the device.
    pub(crate) held: Bits,
    /// Whether the host knows that all work on the block is done.
    pub(crate) is_done: bool,
}

impl Block {
    /// A live block without work.
    pub(crate) const NEW: Self = Self { place: Place::Live, before: 0, covered: 0, held: 0, is_done: true };

    /// Returns whether a stream's next work comes after all work on the block.
    pub(crate) const fn is_before(&self, stream: Id) -> bool {
        self.is_done || self.before & (1 << stream) != 0
    }

    /// Returns the stream and the epoch of a block that is owned.
    pub(crate) const fn owner(&self) -> Option<(Id, Epoch)> {
        match self.place {
            Place::Freeing { owner, epoch } | Place::Free { owner, epoch } => Some((owner, epoch)),
            Place::Live | Place::Unowned => None,
        }
    }
}

/// What a thread is doing without the pool's lock, and the values that it read under the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Call {
    /// Nothing. A thread that frees a block is idle here, and the block is [`Place::Freeing`].
    Idle,
    /// It records a stream's event.
    Record {
        /// The stream.
        stream: Id,
        /// The epoch that the record ends.
        epoch: Epoch,
        /// The epochs that the stream had seen before the record.
        seen: Epochs,
        /// Whether the record is of an event of the thread's own, since the stream had none.
        is_first: bool,
        /// Whether the record was made.
        is_made: bool,
        /// Whether the thread knows that the device has reached the record.
        is_reached: bool,
    },
    /// It has an event that covers a stream's epoch.
    Event {
        /// The stream.
        stream: Id,
        /// The epoch.
        epoch: Epoch,
        /// The epochs of other streams that the event covers.
        seen: Epochs,
        /// The last step of the thread with the event.
        stage: Stage,
    },
    /// It waits for the device.
    Device {
        /// The epochs that ended before the wait.
        epochs: Epochs,
        /// Whether the wait is over.
        is_made: bool,
    },
}

/// What a thread has done with an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Stage {
    /// Nothing yet.
    Picked,
    /// It knows that the device has reached the event.
    Reached,
    /// It has made a stream wait for the event.
    Waits(Id),
}

/// A state: the beliefs, the truth, and the threads' calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct State {
    /// The streams.
    pub(crate) streams: [Stream; STREAMS],
    /// The threads' calls.
    pub(crate) calls: [Call; THREADS],
    /// The blocks.
    pub(crate) blocks: [Block; BLOCKS],
}

/// A step. Each is atomic: it happens under the pool's lock, or is one call of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// The program makes its first call on a stream, and the call takes no block.
    Meet { stream: Id },
    /// The program, or a layer for it, submits the last work on a live block, on a stream that comes after
    /// all earlier work. It frees the block on this stream. The freeing thread reads the stream's epoch.
    Free { block: Id, stream: Id },
    /// The freed block reaches the heap.
    EndFree { block: Id },
    /// The pool hands a free block to a stream.
    Take { block: Id, stream: Id },
    /// A thread ends a stream's epoch, to record its event.
    BeginRecord { thread: Id, stream: Id },
    /// The driver records the event.
    MakeRecord { thread: Id },
    /// The pool notes the record, or that it was not made and no event exists.
    Settle { thread: Id },
    /// The pool does not note the record, and keeps the event: the driver created it and did not record it,
    /// or failed later.
    Leave { thread: Id },
    /// A thread reads a stream's recorded event.
    Pick { thread: Id, stream: Id },
    /// The driver says that the device has reached the event, or the record that the pool has yet to note: a
    /// query, or a synchronisation with the event.
    Query { thread: Id },
    /// The pool makes the blocks of a reached event unowned.
    Complete { thread: Id },
    /// The pool makes one block of a reached event unowned, and keeps the event for the others.
    Disown { thread: Id, block: Id },
    /// The driver makes a stream wait for the event.
    Wait { thread: Id, stream: Id },
    /// The pool notes the wait.
    NoteWait { thread: Id },
    /// A thread gives up the values that it holds.
    GiveUp { thread: Id },
    /// A thread ends all epochs, to wait for the device.
    BeginDevice { thread: Id },
    /// The device has done all work that was submitted before the wait.
    MakeDevice { thread: Id },
    /// The pool makes all blocks of the ended epochs unowned.
    EndDevice { thread: Id },
    /// The pool forgets a stream's record, after an error of the driver.
    Skip { stream: Id },
    /// The pool forgets a stream that owns no block. Its number and event are used again.
    Sweep { stream: Id },
    /// The program destroys a stream.
    Destroy { stream: Id },
    /// The program creates a stream, in the place of one that was destroyed and forgotten.
    Create { stream: Id },
}
