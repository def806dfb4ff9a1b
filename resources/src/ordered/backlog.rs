//! How far the device is behind the host, and whether streams keep to themselves what they free because of
//! it.
//!
//! A stream that is far behind holds what it freed until the device gets there. Where such streams take
//! blocks of each other's whenever some are done, each soon owns pieces of the other's memory, none has room
//! for its large blocks, and the resource grows. So while any stream is far behind, each serves itself
//! first, and new memory is taken before another stream's. Where streams keep up, what they freed is soon
//! for all.

/// A stream is far behind if its last recorded event is older than this, in nanoseconds, and not reached.
///
/// A host that is four kernels of 100 µs ahead stays below this limit, also where streams wait for each
/// other; one that never waits is 15 to 60 ms ahead (docs/BENCHMARKS.md, "With work in flight").
const FAR_BEHIND_NS: u64 = 1_000_000;

/// A backlog counts until this many looks in a row have found none. Without, a program that is far ahead for
/// most of the time changes to and fro, which takes more memory than either: multistream with kernels of 5 to
/// 25 µs took 5.4 GiB instead of 3.7.
const LOOKS_WITHOUT: u32 = 256;

/// Whether streams were far behind lately.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Looks that have to find none before it is over.
    looks_left: u32,
}

impl Backlog {
    /// Notes that somebody looked, and that the stream that is furthest behind is so by `behind_ns`.
    pub(super) fn note(&mut self, behind_ns: u64) {
        self.looks_left = match behind_ns {
            0..FAR_BEHIND_NS => self.looks_left.saturating_sub(1),
            _ => LOOKS_WITHOUT,
        };
    }

    /// Whether streams keep what they free to themselves.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.looks_left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_backlog_counts_for_a_while() {
        let mut backlog = Backlog::default();
        backlog.note(FAR_BEHIND_NS - 1);
        assert!(!backlog.is_long(), "a short one does not count");
        backlog.note(FAR_BEHIND_NS);
        for _ in 0..LOOKS_WITHOUT {
            assert!(backlog.is_long(), "it was seen not long ago");
            backlog.note(0);
        }
        assert!(!backlog.is_long());
    }
}
