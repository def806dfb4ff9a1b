//! The thread, the stream and the pool of an event.

use millpond_engine::log::StreamKey;

/// PyTorch's default pool. It serves all requests outside of private pools.
pub(crate) const DEFAULT_POOL: (u64, u64) = (0, 0);

/// The thread, the stream and the pool of an event.
///
/// ```
/// use millpond_snapshot::recording::Lane;
/// assert_eq!((Lane::default().thread, Lane::default().pool), (0, None));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Lane {
    /// The number of the thread; 0 if the source does not record it.
    pub thread: u64,
    /// The stream. If the source records no stream for a free, this is the block's stream.
    pub stream: StreamKey,
    /// The two numbers that PyTorch gives to a private pool, if the source records them.
    pub pool: Option<(u64, u64)>,
}

impl Default for Lane {
    fn default() -> Self {
        Self { thread: 0, stream: StreamKey::Legacy, pool: None }
    }
}

impl Lane {
    /// Returns whether the memory belongs to a private pool, as the memory of CUDA graphs does.
    pub(crate) fn is_private(&self) -> bool {
        self.pool.is_some_and(|pool| pool != DEFAULT_POOL)
    }

    /// Returns the stream. If each thread has its own such stream, also returns the thread.
    pub(super) fn own_stream(&self) -> (StreamKey, Option<u64>) {
        (self.stream, (self.stream == StreamKey::PerThread).then_some(self.thread))
    }
}
