//! Which stream may use a free block, and since when: owners, epochs, and what is known of each stream.
//!
//! There is no memory here and no driver. Each free block has an owner, the stream on which it was freed, or
//! [`ANY_STREAM`] once all work on it is known to be done. Time is counted in recorded events: recording an
//! event on a stream ends its epoch, and the event covers every block that was freed in that epoch or before.

pub(crate) mod backlog;
mod reuse;
pub(crate) mod streams;

pub use reuse::Reuse;

/// Whose free blocks: an index that [`Streams`](crate::stream_order::streams::Streams) gives to each stream.
pub(crate) type Owner = u32;

/// Free blocks that every stream may use at once: all work on them is known to be done.
pub(crate) const ANY_STREAM: Owner = 0;

/// A stream's time, counted in recorded events. A block that was freed in an epoch is covered by the
/// stream's recorded event of that epoch or any later one.
pub(crate) type Epoch = u64;
