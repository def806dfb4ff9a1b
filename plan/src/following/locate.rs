//! The program's position in the plan.

use millpond_core::StreamId;

use crate::slots::{GRAM, Slots};

/// How many positions ahead a request is searched for after the program skipped some.
const WINDOW: u32 = 8;

/// After this many requests in a row without a position, the program is elsewhere.
const LOST: u32 = GRAM as u32;

/// After this many fitting requests in a row, a plan begins even if earlier requests did not fit. Fewer may
/// fit by chance, and a plan takes much memory.
const LATE_FITS: u32 = 64;

/// The position of the next expected request, and how well the last requests fitted.
#[derive(Debug)]
pub(super) struct Position {
    next: u32,
    /// The number of requests in a row that must fit before the plan serves slots; 0 after they did.
    awaited_fits: u32,
    /// The last requests, up to the last one that did not fit.
    recent: [(u64, StreamId); GRAM],
    /// The number of requests since then. Each of them fitted.
    fits: u32,
    /// The number of requests in a row that did not fit.
    slips: u32,
}

impl Position {
    /// Returns the position before the first request.
    pub(super) fn new(slots: &Slots) -> Self {
        // The requests before the first one that has a slot, and that one.
        let lead = (0..slots.length()).take_while(|at| !slots.is_placed(*at)).count() as u32;
        let awaited_fits = (lead + 1).min(GRAM as u32);
        Self { next: 0, awaited_fits, recent: [(0, StreamId::LEGACY); GRAM], fits: 0, slips: 0 }
    }

    /// Returns whether the plan serves slots.
    pub(super) fn is_begun(&self) -> bool {
        self.awaited_fits == 0
    }

    /// Returns whether the program may have left the plan's position.
    pub(super) fn is_lost(&self) -> bool {
        self.slips >= LOST
    }

    /// Returns the position of a request, which the program may have reached in another order; `None` if the
    /// plan does not know the request.
    pub(super) fn locate(&mut self, slots: &mut Slots, bytes: u64, stream: StreamId) -> Option<u32> {
        let is_expected = slots.has(self.next, bytes, stream) || slots.name_stream(self.next, bytes, stream);
        if !is_expected {
            return self.locate_anew(slots, bytes, stream);
        }
        self.slips = 0;
        self.fits = self.fits.saturating_add(1);
        Some(self.advance(slots, self.next))
    }

    /// Moves to the position after `at`.
    fn advance(&mut self, slots: &Slots, at: u32) -> u32 {
        if self.fits >= self.awaited_fits {
            self.awaited_fits = 0;
        }
        self.next = (at + 1) % slots.length();
        at
    }

    #[cold]
    fn locate_anew(&mut self, slots: &mut Slots, bytes: u64, stream: StreamId) -> Option<u32> {
        self.slips = self.slips.saturating_add(1);
        self.note_misfit(slots, bytes, stream);
        if let Some(found) = slots.find(&self.recent, self.next) {
            self.fits = LOST;
            return Some(self.skip_to(slots, found));
        }
        let slot = slots.at(self.next);
        // A smaller request may take the place of the expected one, but only after a request that fitted. The
        // first request of another program would keep the lane as long as its block lives.
        let may_differ = self.slips == 1 && self.next != 0 && slots.stream_at(self.next) == Some(stream);
        if may_differ && bytes < slot.bytes && bytes >= slot.bytes / 2 {
            return Some(self.advance(slots, self.next));
        }
        // The program may have skipped some requests.
        if self.slips < 2 {
            return None;
        }
        let (next, length) = (u64::from(self.next), u64::from(slots.length()));
        let mut ahead = (1..=WINDOW).map(|step| ((next + u64::from(step)) % length) as u32);
        let found = ahead.find(|at| slots.has(*at, bytes, stream) || slots.name_stream(*at, bytes, stream));
        found.map(|found| self.skip_to(slots, found))
    }

    /// Adds a request that does not fit to the recent ones, after the fitting requests before it.
    fn note_misfit(&mut self, slots: &Slots, bytes: u64, stream: StreamId) {
        if self.awaited_fits > 0 {
            self.awaited_fits = LATE_FITS;
        }
        let (next, length) = (self.next as usize, slots.length() as usize);
        let fitted = (self.fits as usize).min(GRAM);
        let before = (1..=fitted).rev().filter_map(|back| {
            let at = ((next + GRAM * length - back) % length) as u32;
            Some((slots.at(at).bytes, slots.stream_at(at)?))
        });
        for request in before.chain([(bytes, stream)]) {
            self.recent.rotate_left(1);
            self.recent[GRAM - 1] = request;
        }
        self.fits = 0;
    }

    /// Moves to a position further on. The skipped slots pass their bytes on if they can.
    fn skip_to(&mut self, slots: &mut Slots, found: u32) -> u32 {
        self.slips = 0;
        let length = slots.length();
        let left_out = (found + length - self.next) % length;
        // If the position is more likely behind than ahead, nothing was skipped.
        if self.is_begun() && left_out <= length / 2 {
            (0..left_out).for_each(|step| slots.pass_over((self.next + step) % length));
        }
        self.advance(slots, found)
    }
}
