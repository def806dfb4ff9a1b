//! The names of the columns that a recording adds to RMM's columns when the recording is written as a log.

/// The time in nanoseconds since 1970.
pub const UNIX: &str = "UnixNs";
/// The time in nanoseconds of a monotonic clock.
pub const MONOTONIC: &str = "MonotonicNs";
/// The time as a number that increases from event to event.
pub const STEP: &str = "Step";
/// The number of the call stack that made the call. A note in this row or in an earlier row lists the frames
/// of this call stack.
pub const STACK: &str = "Stack";
/// The pool of the block, as two numbers with a colon between them.
pub const POOL: &str = "Pool";
/// The program's name for the block.
pub const TAG: &str = "Tag";
/// The size in bytes to which the allocator rounded the request.
pub const ROUNDED: &str = "RoundedSize";
/// `1` if the block was live before recording began.
pub const BEFORE: &str = "Before";
/// Data that has no column of its own: notes, separated by `;`.
pub const NOTES: &str = "Notes";

/// A number that grows from row to row. Only millpond writes it.
pub const SEQUENCE: &str = "Sequence";

/// The columns that only recordings have. [`Event`](super::Event) has none of them.
pub const OF_RECORDINGS: [&str; 8] = [UNIX, STEP, STACK, POOL, TAG, ROUNDED, BEFORE, NOTES];
