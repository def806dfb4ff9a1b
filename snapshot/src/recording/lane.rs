//! The thread, the stream and the pool of an event.

use millpond_engine::log::StreamKey;

/// The thread, the stream and the pool of an event.
///
/// ```
/// use millpond_snapshot::recording::Lane;
/// assert_eq!((Lane::default().thread, Lane::default().pool), (0, None));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Lane {
    /// The thread; 0 if the source has none.
    pub thread: u64,
    /// The stream; for a free, the block's stream if the source has no other.
    pub stream: StreamKey,
    /// The two numbers of the pool, as PyTorch counts its private pools, if the source has them.
    pub pool: Option<(u64, u64)>,
}

impl Default for Lane {
    fn default() -> Self {
        Self { thread: 0, stream: StreamKey::Legacy, pool: None }
    }
}

impl Lane {
    /// Returns the stream, with its thread if each thread has its own.
    pub(super) fn own_stream(&self) -> (StreamKey, Option<u64>) {
        (self.stream, (self.stream == StreamKey::PerThread).then_some(self.thread))
    }
}
