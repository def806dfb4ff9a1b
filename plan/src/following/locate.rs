//! Finds the program's position in the plan.

use millpond_core::StreamId;

use crate::slots::{GRAM, Slots};

/// After the program skipped requests, a request is searched for at this many positions ahead.
const WINDOW: u32 = 8;

/// If this many requests in a row have no position, the program is no longer at the plan's position.
const LOST: u32 = GRAM as u32;

/// If this many requests in a row fit, a plan begins even if earlier requests did not fit. Fewer requests may
/// fit by chance, and a plan needs much memory.
const LATE_FITS: u32 = 64;

/// The position of the next expected request, and how well the last requests fitted the plan.
#[derive(Debug)]
pub(super) struct Position {
    next: u32,
    /// How many requests in a row must still fit before the plan serves slots; 0 after that.
    awaited_fits: u32,
    /// The last requests, up to the last one that did not fit.
    recent: [(u64, StreamId); GRAM],
    /// The number of requests since then. Each of them fitted.
    fits: u32,
    /// The number of requests since the last one that did not fit.
    slips: u32,
}

impl Position {
    /// Returns the position before the first request.
    pub(super) fn new(slots: &Slots) -> Self {
        // These are the requests before the first request that has a slot, and that request itself.
        let lead = (0..slots.length()).take_while(|at| !slots.is_placed(*at)).count() as u32;
        let awaited_fits = (lead + 1).min(GRAM as u32);
        Self { next: 0, awaited_fits, recent: [(0, StreamId::LEGACY); GRAM], fits: 0, slips: 0 }
    }

    /// Returns whether the plan serves slots now.
    pub(super) fn is_begun(&self) -> bool {
        self.awaited_fits == 0
    }

    /// Returns whether the program may have left the plan's position.
    pub(super) fn is_lost(&self) -> bool {
        self.slips >= LOST
    }

    /// Returns the position of a request, which the program may have reached in another order. Returns `None`
    /// if the plan does not know the request.
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
        // A smaller request may get the slot of the expected request, but only after a request that fitted.
        // Otherwise the first request of another program would keep the lane as long as its block lives.
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

    /// Adds a request that does not fit to the recent requests, after the fitting requests before it.
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

    /// Moves to a position further on. The skipped slots release their bytes to later slots, if they can.
    fn skip_to(&mut self, slots: &mut Slots, found: u32) -> u32 {
        self.slips = 0;
        let length = slots.length();
        let left_out = (found + length - self.next) % length;
        // If the position is more likely behind than ahead, no request was skipped.
        if self.is_begun() && left_out <= length / 2 {
            (0..left_out).for_each(|step| slots.pass_over((self.next + step) % length));
        }
        self.advance(slots, found)
    }
}
