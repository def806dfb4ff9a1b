//! Notes whether streams are far behind the host. While they are, each keeps the blocks that it freed.
//!
//! A stream that is far behind owns its freed blocks until the device reaches their events. If such streams
//! took each other's completed blocks, each would soon own pieces of the other's memory. Neither would have
//! room for its large blocks, and the pool would grow. So while a stream is far behind, each stream uses its
//! own blocks first, and the pool takes new memory before another stream's blocks. If streams keep up, their
//! freed blocks soon become unowned.

use crate::tuning::{FAR_BEHIND_NS, LOOKS_WITHOUT, PATIENCE};

/// Whether streams were far behind recently.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// How many more looks must find no backlog before it is over.
    looks_left: u32,
    seen_ns: u64,
}

impl Backlog {
    /// Returns whether a stream that is this many nanoseconds behind is far behind.
    pub(crate) fn is_far(behind_ns: u64) -> bool {
        behind_ns >= FAR_BEHIND_NS
    }

    /// Notes that at `now_ns` the stream furthest behind was `behind_ns` behind.
    pub(crate) fn note(&mut self, now_ns: u64, behind_ns: u64) {
        if Self::is_far(behind_ns) {
            *self = Self { looks_left: LOOKS_WITHOUT, seen_ns: now_ns };
        } else if now_ns.saturating_sub(self.seen_ns) >= PATIENCE.as_nanos() as u64 {
            self.looks_left = 0;
        } else {
            self.looks_left = self.looks_left.saturating_sub(1);
        }
    }

    /// Notes that the calling thread waited for all work.
    pub(crate) fn end(&mut self) {
        self.looks_left = 0;
    }

    /// Returns whether streams keep the blocks that they freed.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.looks_left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_counts_until_many_looks_found_none() {
        let mut backlog = Backlog::default();
        backlog.note(5, FAR_BEHIND_NS - 1);
        assert!(!backlog.is_long(), "a short backlog does not count");
        backlog.note(5, FAR_BEHIND_NS);
        for _ in 0..LOOKS_WITHOUT {
            assert!(backlog.is_long(), "the backlog was seen a moment ago");
            backlog.note(6, 0);
        }
        assert!(!backlog.is_long());
        let long_after = PATIENCE.as_nanos() as u64;
        backlog.note(7, FAR_BEHIND_NS);
        backlog.note(6 + long_after, 0);
        assert!(backlog.is_long());
        backlog.note(7 + long_after, 0);
        assert!(!backlog.is_long(), "the backlog was seen long ago");
    }
}
