//! Says which stream may use a free block: owners, epochs, and the order between streams.
//!
//! These modules hold no memory and make no driver call. Each free block has an owner: the stream on which it
//! was freed, or [`ANY_STREAM`] once all work on the block is done. A stream's time is counted in recorded
//! events: recording an event on a stream ends its epoch, and the event covers every block that was freed in
//! that epoch or before.

pub(crate) mod backlog;
#[cfg(all(test, not(millpond_loom)))]
pub(crate) mod checker;
#[cfg(all(test, not(millpond_loom)))]
mod clients;
mod reuse;
pub(crate) mod streams;

pub use reuse::Reuse;

/// The owner of free blocks: a number that [`Streams`](crate::stream_order::streams::Streams) gives each
/// stream.
pub(crate) type Owner = u32;

/// The owner of unowned blocks: all work on them is done, and every stream may use them at once.
pub(crate) const ANY_STREAM: Owner = 0;

/// A stream's time, counted in recorded events. The stream's recorded event of an epoch covers every block
/// that was freed in that epoch or before.
pub(crate) type Epoch = u64;
