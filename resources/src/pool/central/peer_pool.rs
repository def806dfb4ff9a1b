//! The calls that a pool makes to the other pools of its device.

/// A pool that holds memory of a device.
pub(crate) trait PeerPool: Send + Sync {
    /// Returns free memory to the device until it has returned at least `bytes`.
    fn release(&self, bytes: u64, how: CompletionCheck) -> Released;
    /// Returns an upper bound of the bytes that the pool holds outside of blocks in use.
    fn idle_bytes(&self) -> u64;
    /// Identifies the pool.
    fn id(&self) -> *const ();
}

/// How a peer pool finds out that work on its free blocks is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompletionCheck {
    /// Not at all: the request's stream captures a graph, which forbids queries and waits.
    No,
    /// It asks the driver.
    Ask,
    /// It waits for the streams, or for the device if a stream may be destroyed.
    Wait,
}

/// The bytes that a peer pool released, and whether it has free blocks that are not known to be completed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Released {
    pub(crate) bytes: u64,
    pub(crate) has_pending: bool,
}
