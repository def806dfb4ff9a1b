//! Traits through which a layer learns facts about the resources below it that
//! [`DeviceMemoryResource`](crate::DeviceMemoryResource) does not tell. A resource lists such a trait in
//! [`provide`](crate::DeviceMemoryResource::provide). The layer finds it with
//! [`find_trait`](crate::find_trait).

use crate::{Result, StreamRef};

/// A pool, as seen by a layer above it that allocates its own memory from the pool.
pub trait PoolBelow {
    /// Returns the number of bytes that the pool allocates from upstream when it is built, and does not
    /// release by itself.
    fn initial_bytes(&self) -> u64;

    /// Returns the most bytes that the pool may hold, if there is a limit.
    fn maximum_bytes(&self) -> Option<u64>;

    /// Releases unused memory to the upstream. The pool stops when it holds `keep_bytes`, or when more would
    /// need a wait. Returns the number of bytes released. `stream` is the stream of the caller.
    ///
    /// # Errors
    /// The driver's errors.
    fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64>;
}

/// A layer that allocates separate memory for captured graphs, as seen by a layer above it.
pub trait ScopesBelow {
    /// Returns the number of streams whose requests now get memory for captured graphs.
    fn open_streams(&self) -> usize;
}
