//! The model at the size of programs.

#[allow(dead_code, unused_imports, clippy::duplicate_mod, reason = "only the checker needs all of the model")]
#[path = "../../../stream_order/model/mod.rs"]
pub(crate) mod model;

/// The most streams in a state.
pub(crate) const STREAMS: usize = 32;
/// The most blocks in a state.
pub(crate) const BLOCKS: usize = 8;
/// The most values that threads hold at one time. Here, a thread of the model holds one of them.
pub(crate) const THREADS: usize = 64;

/// A set of streams, or of threads, as bits.
pub(crate) type Bits = u64;
/// A stream's time, counted in records. 0 stands for none.
pub(crate) type Epoch = u16;
