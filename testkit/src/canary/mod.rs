//! A stream-ordered pool that makes a mistake on purpose.
//!
//! A checker that never fails proves nothing. So this small pool is correct by default, but it can make one
//! well-known mistake. The test `museum` checks that the [programs](crate::program) find each mistake, and
//! shrink the failing program to a few operations. It also checks that the programs find nothing if there is
//! no mistake.
//!
//! The pool works like RMM's pool. Each stream has a list of free blocks, and an event, which is recorded
//! after each free. If a stream has no free block, it takes one from the list of another stream, and waits
//! for that stream's event. If no list has a block, the stream merges the other lists into its own list.
//! After that, the pool grows.
//!
//! [`CanaryLayer`] makes mistakes at the edges of a stack, for [random stacks](crate::random_stacks).
//!
//! A [`ZeroingResource`] is a layer that submits work and can be wrong about its order.

mod free_list;
mod layer;
mod pool;
mod scopes;
mod zeroing;

pub use layer::{CanaryLayer, WrongLayer};
pub use pool::CanaryPool;
pub use scopes::{CanaryScopes, WrongScopes};
pub use zeroing::{WrongWork, ZeroingLayer, ZeroingResource};

/// A mistake of a stream-ordered pool. Most of them happened in production.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Wrong {
    /// Merging another stream's list makes the taker wait for the donor's event, but does not record the
    /// taker's event again. So a third stream waits for too little. RMM's issue 2489.
    MergeWithoutRecord,
    /// A stream takes another stream's block without waiting.
    StealWithoutWait,
    /// The event is recorded when a block is allocated, not when it is freed.
    RecordAtAllocation,
    /// Free lists are keyed by the stream's handle, which the driver reuses after the stream is destroyed (as
    /// in RMM before its pull request 2252).
    KeyedByHandle,
    /// A free region is returned in the order of only the last free.
    ReturnsEarly,
    /// Coalescing makes the merged block one granule too long.
    CoalescesTooFar,
    /// A block is split at the requested size instead of the rounded one.
    SplitsUnrounded,
    /// The remainder of a stolen block goes to the thief's list, without recording the thief's event.
    RemainderToThief,
    /// The event is recorded only when a block is stolen, on a stream that may already be destroyed (as in
    /// PyTorch's issue 66941).
    RecordsLazily,
    /// A stolen block that fits exactly stays in the donor's list.
    HandsOutTwice,
    /// A completed event still counts as completed after the next record.
    CompletedForever,
    /// The pool reports out of memory without trying other streams' blocks (as in PyTorch's issue 189504).
    GivesUpEarly,
    /// Alignments above 256 are ignored.
    IgnoresAlignment,
    /// All streams share one event.
    OneEventForAll,
    /// A freed block goes to the list of the stream that it was allocated for.
    FreesToAllocatingStream,
    /// Trimming releases regions that still have blocks in use.
    TrimsLent,
    /// Frees on another stream are not counted.
    MiscountsFrees,
    /// The last region is leaked when the pool is dropped.
    LeaksRegion,
    /// The donor waits for the thief instead of the thief for the donor.
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
