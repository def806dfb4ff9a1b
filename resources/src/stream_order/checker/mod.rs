//! The checker: visits every state of a small model of stream order.

pub(crate) mod dump;
pub(crate) mod explore;
#[path = "../model/mod.rs"]
pub(crate) mod model;
mod of_pool;
mod shape;
mod tests;

/// The most streams in a state.
pub(crate) const STREAMS: usize = 3;
/// The most blocks in a state.
pub(crate) const BLOCKS: usize = 3;
/// The most host threads in a state.
pub(crate) const THREADS: usize = 2;

/// A set of streams, or of threads, as bits.
pub(crate) type Bits = u8;
/// A stream's time, counted in records. 0 stands for none.
pub(crate) type Epoch = u8;
