//! What a layer may ask of the resources below it beside the contract. They provide it as a trait
//! ([`provide`](crate::DeviceMemoryResource::provide)), and [`find_trait`](crate::find_trait) finds it.

use crate::{Result, StreamRef};

/// A pool below a layer that takes memory of its own from it.
pub trait PoolBelow {
    /// The bytes that it takes at its start and keeps.
    fn initial_bytes(&self) -> u64;

    /// The most bytes that it may have.
    fn maximum_bytes(&self) -> Option<u64>;

    /// Gives back what it does not use, but for `keep_bytes` in all, without a wait; returns the bytes. The
    /// caller's stream is `stream`.
    ///
    /// # Errors
    /// What the driver reports.
    fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64>;
}

/// A layer below that serves captured graphs from memory of their own.
pub trait ScopesBelow {
    /// The number of streams that it serves so now.
    fn open_streams(&self) -> usize;
}
