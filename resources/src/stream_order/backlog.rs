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
/// 25 µs took 5.4 GiB instead of 3.7
/// (`millpond-replay busy multistream.csv.gz --device sim:h200 --host ahead -k 5..25 --passes 5`).
const LOOKS_WITHOUT: u32 = 256;

/// It is over, too, when it was last seen this many nanoseconds ago: a program that found its device idle for
/// so long is not ahead of it.
const LONGEST_NS: u64 = 2_000_000_000;

/// Whether streams were far behind lately.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Looks that have to find none before it is over.
    looks_left: u32,
    seen_ns: u64,
}

impl Backlog {
    /// Whether a stream that is this many nanoseconds behind is far behind.
    pub(crate) fn is_far(behind_ns: u64) -> bool {
        behind_ns >= FAR_BEHIND_NS
    }

    /// Notes that somebody looked at `now_ns`, and that the stream that is furthest behind is so by
    /// `behind_ns`.
    pub(crate) fn note(&mut self, now_ns: u64, behind_ns: u64) {
        if Self::is_far(behind_ns) {
            *self = Self { looks_left: LOOKS_WITHOUT, seen_ns: now_ns };
        } else if now_ns.saturating_sub(self.seen_ns) >= LONGEST_NS {
            self.looks_left = 0;
        } else {
            self.looks_left = self.looks_left.saturating_sub(1);
        }
    }

    /// Notes that all work was waited for.
    pub(crate) fn end(&mut self) {
        self.looks_left = 0;
    }

    /// Whether streams keep what they free to themselves.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.looks_left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_backlog_counts_for_a_while() {
        let mut backlog = Backlog::default();
        backlog.note(5, FAR_BEHIND_NS - 1);
        assert!(!backlog.is_long(), "a short one does not count");
        backlog.note(5, FAR_BEHIND_NS);
        for _ in 0..LOOKS_WITHOUT {
            assert!(backlog.is_long(), "it was seen not long ago");
            backlog.note(6, 0);
        }
        assert!(!backlog.is_long());
        backlog.note(7, FAR_BEHIND_NS);
        backlog.note(6 + LONGEST_NS, 0);
        assert!(backlog.is_long());
        backlog.note(7 + LONGEST_NS, 0);
        assert!(!backlog.is_long(), "it was seen long ago");
    }
}
