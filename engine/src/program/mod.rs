//! Converts a log to a program of operations that can be replayed fast.
//!
//! Reading a row costs more than an allocation from a good pool. So a log is read once, and kept as [`Op`]s
//! of 24 bytes, with small slot numbers instead of addresses. The log is read in one pass. During this pass,
//! only the live blocks are in memory, not the rows. Up to [`Limits::ops_in_memory`] operations (48 MiB) stay
//! in memory. Longer programs go to an unnamed temporary file. The replay reads one block of operations after
//! another from this file, outside of the measured time.
//!
//! Some rows cannot be replayed unchanged. They are counted in the [`LogSummary`], and handled as follows:
//!
//! | in the log | in the program |
//! |---|---|
//! | `allocate failure` | no operation; a replay can repeat the request there, and free its block |
//! | `free` of an address that no earlier row named | an older block, which is allocated at the start |
//! | `free` of an address that is already free | no operation |
//! | `allocate` at an address that is still live | the old block is freed first: the log lacks a free |
//! | a block that is never freed | a leak: the block is freed on its stream after the pass |
//! | `free` with another size than the allocation | the block is freed with the size of the allocation |
//! | `free` on another stream than the allocation | a free on that stream, as in the log |
//! | requests for zero bytes at `(nil)` and their frees | the same calls, as in the log |
//! | any row of another device than the first row's | no operation |

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
