//! Finds the blocks that were live before a log began, and the contradictions in the log.

use millpond_engine::log::{Flaws, Freed, LiveBlocks};

use super::overlaps::Overlaps;
use crate::budget::{Budget, Exceeded};
use crate::recording::{Event, EventKind, OVERLAPS, Recording};

/// The bytes of an entry in the maps. The number includes an entry's share of the free space in a map, also
/// while the map grows.
const PLACE_BYTES: usize = 64;

/// The live blocks at a row, and the blocks that only their frees show.
#[derive(Default)]
pub(super) struct Before {
    live: LiveBlocks<u64, ()>,
    overlaps: Overlaps,
    early: Vec<Event>,
    /// The number of entries whose memory was taken from the budget.
    places: usize,
    /// Whether the blocks belong to a later log in the same file.
    is_later: bool,
}

impl Before {
    /// Adds an event to the maps.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn note(&mut self, event: &Event, line: u64, budget: &mut Budget) -> Result<(), Exceeded> {
        let Event { address, bytes, .. } = *event;
        let is_early = match event.kind {
            EventKind::Allocate if address != 0 => {
                self.live.allocate(address, bytes, line, ());
                self.overlaps.allocate(address, bytes, line, budget)?;
                false
            }
            EventKind::Free if address != 0 => {
                self.overlaps.free(address, line, budget)?;
                self.live.free(address, bytes, line) == Freed::Before
            }
            _ => false,
        };
        if is_early && !self.is_later {
            budget.take(2 * size_of::<Event>())?;
            // The row only shows the free of the block.
            let plain = Event { is_before: true, address, bytes, ..Event::new(EventKind::Allocate) };
            self.early.push(Event { lane: event.lane, alignment_log2: event.alignment_log2, ..plain });
        }
        if self.live.places() > self.places {
            self.places = self.live.places();
            budget.take(PLACE_BYTES)?;
        }
        Ok(())
    }

    /// Removes the live blocks, because another log begins. The blocks that were live before that log are not
    /// part of the recording.
    pub(super) fn end_log(&mut self) {
        self.live.restart();
        self.overlaps.end_log();
        self.is_later = true;
    }

    /// Adds the blocks that were live before the log to the start of a recording. Returns the flaws of the
    /// recording.
    pub(super) fn finish(
        mut self,
        recording: &mut Recording,
        rest_missing: Option<String>,
    ) -> Vec<(&'static str, String)> {
        self.early.sort_by_key(|event| event.address);
        recording.set_before(self.early);
        let mut flaws: Flaws = self.live.flaws().clone();
        flaws.rest_missing = rest_missing;
        let overlaps = self.overlaps.sentence().map(|sentence| (OVERLAPS, sentence));
        flaws.sentences().into_iter().chain(overlaps).collect()
    }
}
