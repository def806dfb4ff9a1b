//! The options of a replay.

use std::fmt;

/// The threads of a replay, and their order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Threads {
    /// A thread for each thread of the log, one at a time, strictly in the order of the log. If threads
    /// alternate in the log, handing over takes most of the time of a replay: about 4 µs a row.
    AsLogged,
    /// A thread for each thread of the log, all at once. A block is freed after its allocation, and
    /// threads drift apart by some thousand frees at most; nothing else of the log's order is kept, so the
    /// peak of live bytes may be another than the log's.
    Free,
    /// One thread, in the order of the log.
    #[default]
    One,
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AsLogged => "as-logged",
            Self::Free => "free",
            Self::One => "1",
        })
    }
}

/// The most threads of a replay; a log with more is replayed with this many, and each stands for several.
pub const MAX_THREADS: usize = 256;

/// How a program is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The threads, and their order.
    pub threads: Threads,
    /// The number of times the program runs on the same resource; at least 1.
    pub passes: u32,
    /// Whether requests that failed when the log was written are made at their place. Served ones are freed
    /// at once; but the resource may have grown for them, and keep that memory.
    pub ask_again: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: Threads::default(), passes: 1, ask_again: false }
    }
}
