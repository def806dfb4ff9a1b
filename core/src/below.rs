//! Questions that a layer may ask the resources below it, in addition to the contract. A resource answers by
//! a trait that it [provides](crate::DeviceMemoryResource::provide), and [`find_trait`](crate::find_trait)
//! finds it.

use crate::{Result, StreamRef};

/// A pool below a layer that takes its own memory from the pool.
pub trait PoolBelow {
    /// Returns the bytes that it takes at its start and keeps.
    fn initial_bytes(&self) -> u64;

    /// Returns the most bytes that it may hold, if there is a limit.
    fn maximum_bytes(&self) -> Option<u64>;

    /// Gives back unused memory, without a wait, until `keep_bytes` are left in all; returns the bytes given
    /// back. `stream` is the caller's stream.
    ///
    /// # Errors
    /// The driver's errors.
    fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64>;
}

/// A layer below that gives captured graphs their own memory.
pub trait ScopesBelow {
    /// Returns the number of streams that it serves in this way now.
    fn open_streams(&self) -> usize;
}
