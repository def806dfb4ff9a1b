//! Where in the body the program is.

use millpond_core::StreamId;

use crate::plan::history::key;
use crate::plan::repetition::GRAM;
use crate::plan::running::{Running, Stage};

/// How far ahead of its place a request is looked for after the program left something out.
const WINDOW: u32 = 8;

/// The requests in a row without a place in the plan after which the program is elsewhere.
const LOST: u32 = GRAM as u32;

/// The requests in a row after which a plan from a file begins although those before did not fit. Fewer may
/// fit by chance, and its memory is much.
const LATE_FITS: u32 = 64;

impl Running {
    /// Moves to the position after `at`.
    pub(super) fn advance(&mut self, at: u32) -> u32 {
        if at == 0 || self.stage != Stage::Begun {
            self.enter(at);
        }
        let length = self.body.length();
        self.cursor = Some((at + 1) % length);
        at
    }

    /// Begins with the body if it is time.
    fn enter(&mut self, at: u32) {
        if self.stage == Stage::Elsewhere {
            // Memory would be taken for requests that fit by chance, and bodies have parts in common.
            let needed = if self.is_aside { self.body.length() / 2 } else { 0 };
            if self.fits < needed.max(LOST) {
                return;
            }
            self.stage = Stage::Found;
        }
        let is_time = match self.awaited_fits {
            // In the middle of a body, the blocks before are upstream's, and memory would be taken twice.
            0 => at == 0 || self.stage == Stage::Found && self.bytes().0 > 0,
            awaited => self.fits >= awaited,
        };
        if is_time && self.body.is_trusted {
            self.awaited_fits = 0;
            self.times_found += u64::from(self.stage == Stage::Found);
            if std::mem::take(&mut self.is_aside) {
                self.bad = 0;
            }
            self.stage = Stage::Begun;
            self.forget_gaps();
        }
    }

    /// Returns the slot for a request, which the program may have reached in another order; `None` for a
    /// request that the plan does not know.
    pub(crate) fn locate(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        if let Some(at) = self.cursor
            && self.body.has(at, bytes, stream)
        {
            self.slips = 0;
            self.fits = self.fits.saturating_add(1);
            return Some(self.advance(at));
        }
        self.locate_anew(bytes, stream)
    }

    /// Adds a request that does not fit to the recent ones, after those before it that did.
    fn note_misfit(&mut self, misfit: u64) {
        if self.awaited_fits > 0 {
            self.awaited_fits = LATE_FITS;
        }
        let (cursor, length) = (self.cursor.unwrap_or(0) as usize, self.body.slots.len());
        let fitted = (self.fits as usize).min(GRAM);
        for back in (1..=fitted).rev() {
            let slot = &self.body.slots[(cursor + GRAM * length - back) % length];
            self.recent.rotate_left(1);
            self.recent[GRAM - 1] = key(slot.bytes, slot.stream);
        }
        self.fits = 0;
        self.recent.rotate_left(1);
        self.recent[GRAM - 1] = misfit;
    }

    /// Moves to a position further on. The slots in between pass their bytes on where they can.
    fn skip_to(&mut self, found: u32) -> u32 {
        self.slips = 0;
        let length = self.body.length();
        if let Some(cursor) = self.cursor {
            let left_out = (found + length - cursor) % length;
            // A position that is rather behind than ahead leaves nothing out.
            if self.is_begun() && left_out <= length / 2 {
                (0..left_out).for_each(|step| self.body.pass_over((cursor + step) % length));
            }
        }
        self.advance(found)
    }

    /// Whether the program may be in another part than the plan.
    pub(crate) fn is_lost(&self) -> bool {
        self.stage == Stage::Elsewhere || self.slips >= LOST
    }

    #[cold]
    fn locate_anew(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        if let Some(at) = self.cursor
            && self.body.name_stream(at, bytes, stream)
        {
            return self.locate(bytes, stream);
        }
        self.slips = self.slips.saturating_add(1);
        match self.slips {
            1 => self.left_at = self.cursor,
            LOST if self.may_grow() => {
                self.stage = Stage::Elsewhere;
                self.end_stretch();
            }
            _ => {}
        }
        self.note_misfit(key(bytes, stream));
        // Other requests may have the same hash.
        let found = self.body.find(self.recent, self.cursor.unwrap_or(0));
        if let Some(found) = found.filter(|found| self.body.has(*found, bytes, stream)) {
            self.fits = LOST;
            return Some(self.skip_to(found));
        }
        if let Some(found) = self.find_elsewhere(bytes, stream) {
            return Some(found);
        }
        if let Some(at) = self.cursor {
            let slot = &self.body.slots[at as usize];
            // A smaller request in the place of the expected one, after one that fitted. The first one of
            // another program would keep the lane for as long as its block lives.
            let may_differ = self.slips == 1 && at != 0;
            if may_differ && slot.stream == stream && bytes < slot.bytes && bytes >= slot.bytes / 2 {
                return Some(self.advance(at));
            }
            // After some that were left out.
            if self.slips < 2 {
                return None;
            }
            let length = u64::from(self.body.length());
            let mut ahead = (1..=WINDOW).map(|step| ((u64::from(at) + u64::from(step)) % length) as u32);
            let is_it =
                |at: &u32| self.body.has(*at, bytes, stream) || self.body.name_stream(*at, bytes, stream);
            return ahead.find(is_it).map(|found| self.skip_to(found));
        }
        None
    }
}
