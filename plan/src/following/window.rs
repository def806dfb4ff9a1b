//! Checks whether the program follows its plan.

/// The fewest requests over which a plan is judged.
const LEAST_REQUESTS: u32 = 64;

/// The most requests over which a plan is judged before it begins. The limit is needed because a plan may
/// cover a whole log.
const MOST_BEFORE_BEGIN: u32 = 1024;

/// The verdict on a plan at the end of a window of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    /// The plan serves requests, so upstream needs no more memory than in this window. This verdict is
    /// reported after 1, 2, 4 and so on good windows, because the device may still have work.
    Steady,
    /// The program does not follow the plan.
    Left,
}

/// The requests of one pass over the plan, but at least 64 requests.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The number of requests in the present window, and how many of them found no slot.
    requests: (u32, u32),
    /// The bytes of all requests in the window, and the bytes of the requests that found no slot.
    bytes: (u64, u64),
    /// The number of bad windows in a row.
    bad: u32,
    /// The number of good windows so far.
    good: u32,
    /// The bytes that upstream serves outside the plan, minus the bytes that it served at the beginning. The
    /// next two fields are the most such bytes in the present window, and in the previous window.
    beside: i64,
    most_beside: i64,
    most_beside_before: i64,
    /// The bytes of requests in this window for which upstream had no room, and whose streams have no lane.
    crowded_bytes: u64,
}

impl Window {
    /// Counts a request. Returns whether a window ended with it. `length` is the number of the plan's
    /// allocations.
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

    /// Ends the window, and decides whether the plan is worth keeping. After two bad windows in a row, the
    /// plan is not worth keeping. A window is bad if the plan had not begun. It is also bad if more than a
    /// quarter of the requests, or of their bytes, found no slot.
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

    /// Counts bytes that upstream serves or gets back.
    #[inline]
    pub(super) fn count_beside(&mut self, bytes: i64) {
        self.beside += bytes;
        self.most_beside = self.most_beside.max(self.beside);
    }

    /// Returns how many bytes upstream served at its highest in this window and the last one, minus the bytes
    /// it serves now.
    pub(super) fn most_beside(&self) -> u64 {
        (self.most_beside.max(self.most_beside_before) - self.beside).max(0) as u64
    }

    /// Counts the bytes of a request on a stream without a lane that upstream has no room for; returns the
    /// window's sum.
    pub(super) fn count_crowded(&mut self, bytes: u64) -> u64 {
        self.crowded_bytes = self.crowded_bytes.saturating_add(bytes);
        self.crowded_bytes
    }
}
