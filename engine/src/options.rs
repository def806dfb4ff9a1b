//! The options of a replay.

use std::fmt;

/// The threads of a replay, and the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Threads {
    /// One thread for each thread of the log. Only one of them runs at a time, strictly in the order of the
    /// log. If threads alternate in the log, hand-overs between threads take most of the time of a replay:
    /// about 4 µs per row.
    AsLogged,
    /// One thread for each thread of the log. All of them run at once. The replay keeps only one part of the
    /// log's order: each block is freed after its allocation. Threads drift apart by at most some thousand
    /// frees. So the peak of live bytes may differ from the log's peak.
    Free,
    /// A single thread, which runs in the order of the log.
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

/// The most threads of a replay. If a log has more, each thread of the replay stands for several threads of
/// the log.
pub const MAX_THREADS: usize = 256;

/// The options of a replay.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The threads, and the order in which they run.
    pub threads: Threads,
    /// How many times the program runs on the same resource; at least 1. Each time is a pass.
    pub passes: u32,
    /// Whether to repeat the requests that failed when the log was written, at the same positions in the log.
    /// If such a request is served, the replay frees its block at once. But the resource may have grown for
    /// the request, and may keep that memory.
    pub ask_again: bool,
    /// Whether the replay makes no more requests after the first failed allocation. It still frees its
    /// blocks.
    pub until_failure: bool,
}

impl Options {
    millpond_core::setters! { threads: Threads, passes: u32, ask_again: bool, until_failure: bool }
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: Threads::default(), passes: 1, ask_again: false, until_failure: false }
    }
}
