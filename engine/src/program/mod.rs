//! Turns a log into a program of operations that replays fast.
//!
//! Reading a row costs more than an allocation from a good pool. So a log is read once and kept as [`Op`]s of
//! 24 bytes, with small slot numbers instead of addresses. One streaming pass does this. During the pass,
//! only the live blocks are in memory, not the rows. Up to [`Limits::ops_in_memory`] operations (48 MiB) stay
//! in memory. Longer programs go to an unnamed temporary file, from which the replay reads one block after
//! another, outside of the measured time.
//!
//! Rows that cannot be replayed unchanged are counted in the [`LogSummary`] and handled as follows:
//!
//! | in the log | in the program |
//! |---|---|
//! | `allocate failure` | no operation; a replay can make the request there, and free the block |
//! | `free` of an address that no earlier row named | a block from before the log: allocated at the start |
//! | `free` of an address that is already free | none |
//! | `allocate` at an address that is still live | the old block is freed first: the log lacks a free |
//! | a block that is never freed | a leak: freed on its stream after the pass |
//! | `free` with another size than the allocation | freed with the size of the allocation |
//! | `free` on another stream than the allocation | the same |
//! | requests for zero bytes at `(nil)` and their frees | the same |

mod builder;
mod content;
mod failed;
mod lanes;
mod limits;
mod op;
mod read;
mod rows;
mod sparkline;
mod store;
mod summary;

pub use builder::ProgramBuilder;
pub use content::Program;
pub use failed::FailedRequests;
pub use lanes::Lane;
pub use limits::Limits;
pub use op::{Op, OpKind};
pub use rows::for_each_row;
pub use sparkline::Sparkline;
pub use summary::LogSummary;
