//! Whether a plan is worth keeping.

use crate::plan::history::MOST_EVENTS;
use crate::plan::running::{Beside, Running, Stage};
use crate::plan::sharing::Sharing;

/// A plan ends when it keeps more than this part of its bytes from other streams.
const CROWDED_SHARE: u64 = 16;

/// The fewest requests over which a plan is judged.
const LEAST_WINDOW: u32 = 64;

/// The most requests over which a plan from a file is judged before it begins: its body may be a whole log.
const AWAITED_WINDOW: u32 = 1024;

/// What became of a plan at the end of a window of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    /// The plan serves, so that upstream needs no more than in this window. Said after 1, 2, 4 and so on good
    /// windows, since the device may have work yet.
    Steady,
    /// The last [`PROVEN`] windows were good: the plan has saved more than planning cost.
    Proven,
    /// The program does not follow the plan.
    Left,
    /// The streams do not keep up with the host any more, and share memory.
    Behind,
}

/// The good windows in a row after which a plan has saved more than planning cost: that takes 2 to 8 µs an
/// allocation, and a served allocation and its free mostly take 62 to 204 ns less than the pool's
/// (docs/plan.md).
const PROVEN: u32 = 128;

impl Running {
    /// Counts a request on a stream without a lane for which upstream has no room. Returns whether the plan
    /// keeps so much memory from other streams in one window that it should end.
    pub(crate) fn is_crowding(&mut self, bytes: u64) -> bool {
        self.crowded_bytes = self.crowded_bytes.saturating_add(bytes);
        self.crowded_bytes > self.body.bytes() / CROWDED_SHARE
    }

    /// Counts a request, and says at the end of a window whether the plan is worth keeping: it is dropped
    /// after two windows in a row in which more than a quarter of the requests, or of their bytes, found no
    /// slot, or in which no body began.
    #[inline]
    pub(crate) fn judge(&mut self, is_miss: bool, bytes: u64) -> Verdict {
        self.stretch += 1;
        self.window.0 += 1;
        self.window_bytes.0 = self.window_bytes.0.saturating_add(bytes);
        if is_miss {
            self.window.1 += 1;
            self.window_bytes.1 = self.window_bytes.1.saturating_add(bytes);
        }
        self.since_catching_up = self.since_catching_up.saturating_add(1);
        let most = if self.awaited_fits > 0 { AWAITED_WINDOW } else { u32::MAX };
        if self.window.0 < self.body.length().clamp(LEAST_WINDOW, most) {
            return Verdict::Good;
        }
        self.end_window()
    }

    /// Keeps the plan for the case that the program comes back, without its memory. Returns whether it has
    /// served a window well since it was made or last set aside.
    pub(crate) fn set_aside(&mut self) -> bool {
        (self.stage, self.is_aside, self.bad, self.fits) = (Stage::Elsewhere, true, 0, 0);
        std::mem::take(&mut self.has_served)
    }

    /// Notes that the program is elsewhere. What it does is watched from then on, with what the plan serves:
    /// that may be a loop inside a larger body.
    pub(super) fn end_stretch(&mut self) {
        self.longest_stretch = self.longest_stretch.max(std::mem::take(&mut self.stretch));
        self.is_settled &= self.is_proven;
    }

    /// Whether requests are watched: the program is elsewhere, or what the plan serves may be a loop inside a
    /// larger body.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        (!self.is_settled || self.is_lost() || self.stage == Stage::Found) && self.may_grow()
    }

    /// Settles the plan once the program has followed it for half as long as it was `watched`, and for twice
    /// as long as ever before: it is no loop inside a larger body. Returns whether it settled now.
    pub(crate) fn settle(&mut self, watched: usize) -> bool {
        let half = watched.min(MOST_EVENTS) as u64 / 2;
        let is_long = self.stretch >= half.max(2 * self.longest_stretch);
        let settles = !self.is_settled && self.stage != Stage::Elsewhere && is_long;
        self.is_settled |= settles;
        self.body.is_trusted |= settles;
        settles
    }

    /// Settles the plan, as nothing larger repeats.
    pub(crate) fn settle_now(&mut self) {
        (self.is_settled, self.body.is_trusted) = (true, true);
    }

    /// Whether the plan was set aside, and no body has begun since.
    pub(crate) fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// Whether a lane should go back once it has no blocks: the program is elsewhere, or the lane has more
    /// than this body needs, and upstream has no room for the others.
    pub(crate) fn is_unneeded(&self, lane: usize) -> bool {
        let has_more = || self.lanes[lane].bytes > self.body.lanes[lane].bytes;
        self.is_aside || self.stage == Stage::Postponed && has_more()
    }

    /// Whether some lane should go back.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        (self.is_aside || self.stage == Stage::Postponed)
            && (0..self.lanes.len()).any(|lane| self.lanes[lane].bytes > 0 && self.is_unneeded(lane))
    }

    /// Counts bytes that upstream serves, or gets back.
    #[inline]
    pub(crate) fn count_beside(&mut self, bytes: i64) {
        self.beside.now += bytes;
        self.beside.most = self.beside.most.max(self.beside.now);
    }

    /// How much more upstream served at most in this window and the one before than now, in bytes.
    pub(crate) fn most_beside(&self) -> u64 {
        let Beside { now, most, most_before } = self.beside;
        (most.max(most_before) - now).max(0) as u64
    }

    fn end_window(&mut self) -> Verdict {
        let (requests, misses) = std::mem::take(&mut self.window);
        let (bytes, missed_bytes) = std::mem::take(&mut self.window_bytes);
        let are_many = |misses: u64, all: u64| misses > all / 4;
        let is_bad = are_many(u64::from(misses), u64::from(requests))
            || are_many(missed_bytes, bytes)
            || self.body.is_trusted && !self.is_due() && !self.is_on_trial();
        if self.is_on_trial() {
            self.sharing().into_iter().for_each(Sharing::end_tried_body);
        }
        (self.beside.most_before, self.beside.most) = (self.beside.most, self.beside.now);
        self.good_windows += u32::from(!is_bad && self.is_begun());
        self.crowded_bytes = 0;
        self.has_served |= !is_bad && self.is_begun();
        (self.bad, self.good) = if is_bad { (self.bad + 1, 0) } else { (0, self.good + 1) };
        match (self.bad, self.good) {
            _ if self.is_behind => Verdict::Behind,
            (2.., _) => Verdict::Left,
            (_, PROVEN) if self.body.is_trusted => {
                (self.is_proven, self.is_settled) = (true, true);
                Verdict::Proven
            }
            (_, PROVEN) => {
                // It has saved nothing yet.
                self.good = 0;
                Verdict::Good
            }
            (0, _) if self.is_begun() && self.good_windows.is_power_of_two() => Verdict::Steady,
            _ => Verdict::Good,
        }
    }
}
