//! A stream-ordered pool that makes a chosen mistake.
//!
//! A checker that never fails proves nothing. So this pool, which is small and correct by default, can make
//! one well-known mistake; the test `museum` checks that the [programs](crate::program) find each one, and
//! shrink it to a few operations, and that they find nothing without a mistake.
//!
//! The pool works like RMM's: a free list and an event for each stream, the event recorded after each free; a
//! stream without a free block of its own takes one of another stream's and waits for that stream's event;
//! failing that it merges other lists into its own, then grows.
//!
//! [`CanaryLayer`] makes mistakes at the edges of a stack, for [random stacks](crate::random_stacks).
//!
//! A [`ZeroingResource`] is a layer that submits work, which can be wrong about the order of that work.

mod free_list;
mod layer;
mod pool;
mod scopes;
mod zeroing;

pub use layer::{CanaryLayer, WrongLayer};
pub use pool::CanaryPool;
pub use scopes::{CanaryScopes, WrongScopes};
pub use zeroing::{WrongWork, ZeroingLayer, ZeroingResource};

/// A mistake of a stream-ordered pool. Most were made in production.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Wrong {
    /// Merging another stream's list makes the taker wait for the donor's event, but does not record the
    /// taker's own event again: a third stream waits for too little. RMM's issue 2489.
    MergeWithoutRecord,
    /// A block of another stream is taken without waiting.
    StealWithoutWait,
    /// The event is recorded when a block is allocated and not when it is freed.
    RecordAtAllocation,
    /// Free lists are keyed by the stream's handle, which the driver gives to the next stream after it was
    /// destroyed (as RMM's were before its pull request 2252).
    KeyedByHandle,
    /// A free region goes back in the order of the last free only.
    ReturnsEarly,
    /// Coalescing makes the merged block one granule too long.
    CoalescesTooFar,
    /// A block is split at the requested size, not at the rounded one.
    SplitsUnrounded,
    /// The remainder of a stolen block goes to the thief's list, without recording the thief's event.
    RemainderToThief,
    /// The event is recorded only when a block is stolen, on a stream that may be destroyed by then (as in
    /// PyTorch's issue 66941).
    RecordsLazily,
    /// A stolen block that fits exactly stays in the donor's list.
    HandsOutTwice,
    /// A completed event still counts as completed after the next record.
    CompletedForever,
    /// Out of memory is reported without looking at other streams' blocks (as in PyTorch's issue 189504).
    GivesUpEarly,
    /// Alignments above 256 are ignored.
    IgnoresAlignment,
    /// All streams share one event.
    OneEventForAll,
    /// A freed block goes to the list of the stream that it was allocated for.
    FreesToAllocatingStream,
    /// Trimming releases regions with blocks that are handed out.
    TrimsLent,
    /// Frees on another stream are not counted.
    MiscountsFrees,
    /// The last region is leaked when the pool is dropped.
    LeaksRegion,
    /// The donor waits for the thief, and not the thief for the donor.
    WaitsBackwards,
}

impl Wrong {
    /// Every mistake.
    pub const ALL: &'static [Self] = &[
        Self::MergeWithoutRecord,
        Self::StealWithoutWait,
        Self::RecordAtAllocation,
        Self::KeyedByHandle,
        Self::ReturnsEarly,
        Self::CoalescesTooFar,
        Self::SplitsUnrounded,
        Self::RemainderToThief,
        Self::RecordsLazily,
        Self::HandsOutTwice,
        Self::CompletedForever,
        Self::GivesUpEarly,
        Self::IgnoresAlignment,
        Self::OneEventForAll,
        Self::FreesToAllocatingStream,
        Self::TrimsLent,
        Self::MiscountsFrees,
        Self::LeaksRegion,
        Self::WaitsBackwards,
    ];
}
