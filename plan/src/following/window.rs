//! Whether the program follows its plan.

/// The fewest requests over which a plan is judged.
const LEAST_REQUESTS: u32 = 64;

/// The most requests over which a plan is judged before it begins: it may be that of a whole log.
const MOST_BEFORE_BEGIN: u32 = 1024;

/// What became of a plan at the end of a window of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    /// The plan serves, so that upstream needs no more than in this window. Said after 1, 2, 4 and so on good
    /// windows, since the device may have work yet.
    Steady,
    /// The program does not follow the plan.
    Left,
}

/// The requests of a pass over the plan, or of 64 if it is shorter.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The requests of the present window, and those of them that found no slot.
    requests: (u32, u32),
    /// Their bytes.
    bytes: (u64, u64),
    /// The bad windows in a row.
    bad: u32,
    /// The good windows so far.
    good: u32,
    /// The bytes that upstream serves beside the plan, over those at the begin; the most of them in the
    /// present window, and in the one before.
    beside: i64,
    most_beside: i64,
    most_beside_before: i64,
    /// The bytes of this window's requests on streams without a lane for which upstream had no room.
    crowded_bytes: u64,
}

impl Window {
    /// Counts a request; returns whether a window ended. `length` is the number of the plan's allocations.
    #[inline]
    pub(super) fn count(&mut self, length: u32, is_begun: bool, is_miss: bool, bytes: u64) -> bool {
        self.requests.0 += 1;
        self.bytes.0 = self.bytes.0.saturating_add(bytes);
        if is_miss {
            self.requests.1 += 1;
            self.bytes.1 = self.bytes.1.saturating_add(bytes);
        }
        let most = if is_begun { u32::MAX } else { MOST_BEFORE_BEGIN };
        self.requests.0 >= length.clamp(LEAST_REQUESTS, most)
    }

    /// Ends the window, and says whether the plan is worth keeping: not after two windows in a row in which
    /// more than a quarter of the requests, or of their bytes, found no slot, or in which the plan had not
    /// begun.
    pub(super) fn end(&mut self, is_begun: bool) -> Verdict {
        let (requests, misses) = std::mem::take(&mut self.requests);
        let (bytes, missed_bytes) = std::mem::take(&mut self.bytes);
        (self.most_beside_before, self.most_beside) = (self.most_beside, self.beside);
        self.crowded_bytes = 0;
        let is_bad = misses > requests / 4 || missed_bytes > bytes / 4 || !is_begun;
        self.bad = if is_bad { self.bad + 1 } else { 0 };
        self.good += u32::from(!is_bad);
        match self.bad {
            0 if self.good.is_power_of_two() => Verdict::Steady,
            2.. => Verdict::Left,
            _ => Verdict::Good,
        }
    }

    /// Counts bytes that upstream serves, or gets back.
    #[inline]
    pub(super) fn count_beside(&mut self, bytes: i64) {
        self.beside += bytes;
        self.most_beside = self.most_beside.max(self.beside);
    }

    /// How much more upstream served at most in this window and the one before than now, in bytes.
    pub(super) fn most_beside(&self) -> u64 {
        (self.most_beside.max(self.most_beside_before) - self.beside).max(0) as u64
    }

    /// Counts bytes for which upstream has no room, of a request on a stream without a lane; returns those of
    /// the window.
    pub(super) fn count_crowded(&mut self, bytes: u64) -> u64 {
        self.crowded_bytes = self.crowded_bytes.saturating_add(bytes);
        self.crowded_bytes
    }
}
