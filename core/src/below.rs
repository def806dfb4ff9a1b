//! Traits through which a layer learns facts about the resources below it that
//! [`DeviceMemoryResource`](crate::DeviceMemoryResource) does not tell. A resource lists such a trait in
//! [`provide`](crate::DeviceMemoryResource::provide). The layer finds it with
//! [`find_trait`](crate::find_trait).

use crate::{Result, Stack, StreamRef};

/// Gives facts about a pool to a layer above the pool. The layer finds this trait with
/// [`find_trait`](crate::find_trait).
pub trait PoolBelow {
    /// Returns the number of bytes that the pool allocates from its upstream when the pool is built. The pool
    /// releases these bytes only if a call asks for it.
    fn initial_bytes(&self) -> u64;

    /// Releases unused memory to the pool's upstream, until the pool holds `keep_bytes`. Stops earlier if the
    /// pool would have to wait before it can release more. Returns the number of bytes released. `stream` is
    /// the stream of the request that needs the memory.
    ///
    /// # Errors
    /// The driver's errors.
    fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64>;
}

/// Gives the resources below a layer that [`upstream`](crate::DeviceMemoryResource::upstream) does not give.
/// An upper layer finds this trait with [`Stack::with`].
pub trait OthersBelow {
    /// Returns the stacks of these resources, in no certain order.
    fn others_below(&self) -> Vec<Stack<'_>>;
}

/// Gives facts about a `capture_scopes` layer to an upper layer. A `capture_scopes` layer allocates separate
/// memory for captured graphs. The upper layer finds this trait with [`find_trait`](crate::find_trait).
pub trait ScopesBelow {
    /// Returns the number of streams on which requests now get memory for captured graphs.
    fn open_streams(&self) -> usize;
}
