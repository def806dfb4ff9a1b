//! Finds the blocks that were live before a log began, and the log's contradictions.

use millpond_engine::log::{Flaws, Freed, LiveBlocks};

use crate::budget::{Budget, Exceeded};
use crate::recording::{Event, EventKind, Recording};

/// The bytes of a place in the maps, including its share of free space, also while the maps grow.
const PLACE_BYTES: usize = 64;

/// The live blocks at a row, and the blocks that only their frees reveal.
#[derive(Default)]
pub(super) struct Before {
    live: LiveBlocks<u64, ()>,
    early: Vec<Event>,
    /// The places whose memory was taken from the budget.
    places: usize,
    /// Whether the blocks are of a later log in the same file.
    is_later: bool,
}

impl Before {
    /// Takes note of an event.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn note(&mut self, event: &Event, line: u64, budget: &mut Budget) -> Result<(), Exceeded> {
        let Event { address, bytes, .. } = *event;
        let is_early = match event.kind {
            EventKind::Allocate if address != 0 => {
                self.live.allocate(address, bytes, line, ());
                false
            }
            EventKind::Free if address != 0 => self.live.free(address, bytes, line) == Freed::Before,
            _ => false,
        };
        if is_early && !self.is_later {
            budget.take(2 * size_of::<Event>())?;
            // The row tells only of the free.
            let plain = Event { is_before: true, address, bytes, ..Event::new(EventKind::Allocate) };
            self.early.push(Event { lane: event.lane, alignment_log2: event.alignment_log2, ..plain });
        }
        if self.live.places() > self.places {
            self.places = self.live.places();
            budget.take(PLACE_BYTES)?;
        }
        Ok(())
    }

    /// Forgets the live blocks, because another log begins. Its early blocks have no place in the recording.
    pub(super) fn end_log(&mut self) {
        self.live.restart();
        self.is_later = true;
    }

    /// Puts the early blocks in front of a recording, and returns its flaws.
    pub(super) fn finish(
        mut self,
        recording: &mut Recording,
        rest_missing: Option<String>,
    ) -> Vec<(&'static str, String)> {
        self.early.sort_by_key(|event| event.address);
        recording.set_before(self.early);
        let mut flaws: Flaws = self.live.flaws().clone();
        flaws.rest_missing = rest_missing;
        flaws.sentences()
    }
}
