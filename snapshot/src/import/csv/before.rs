//! Finds the blocks that were live before a log began, and the contradictions in the log.

use std::collections::BTreeMap;

use millpond_engine::log::{Flaws, Freed, LiveBlocks};
use millpond_engine::text::number_of;

use crate::budget::{Budget, Exceeded};
use crate::recording::{Event, EventKind, OVERLAPS, Recording};

/// The bytes of an entry in the maps. The number includes an entry's share of the free space in a map, also
/// while the map grows.
const PLACE_BYTES: usize = 112;

/// Blocks that overlapped a live block at another address when they were allocated.
#[derive(Default)]
struct Overlaps {
    count: u64,
    /// The line of the first one.
    line: u64,
}

impl Overlaps {
    /// Returns what they mean for the figures, if there are any.
    fn sentence(&self) -> Option<String> {
        let blocks = match self.count {
            0 => return None,
            1 => "1 block overlaps a live block".to_owned(),
            count => format!("{} overlap live blocks", number_of(count, "block")),
        };
        Some(format!(
            "{blocks}, the first at line {}: the file's pointers are not the starts of its blocks, or frees \
             were logged late; all figures come from the sizes, not from the addresses",
            self.line
        ))
    }
}

/// The live blocks at a row, and the blocks that only their frees show.
#[derive(Default)]
pub(super) struct Before {
    live: LiveBlocks<u64, ()>,
    /// The sizes of the live blocks by address.
    spans: BTreeMap<u64, u64>,
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
                self.add_span(address, bytes, line);
                false
            }
            EventKind::Free if address != 0 => {
                self.spans.remove(&address);
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

    /// Adds a live block, and counts it if it overlaps another one. A block at the same address is replaced.
    fn add_span(&mut self, address: u64, bytes: u64, line: u64) {
        let mut below = self.spans.range(..address.saturating_add(bytes)).rev();
        let last = below.find(|(start, _)| **start != address);
        if bytes > 0 && last.is_some_and(|(start, bytes)| start.saturating_add(*bytes) > address) {
            if self.overlaps.count == 0 {
                self.overlaps.line = line;
            }
            self.overlaps.count += 1;
        }
        self.spans.insert(address, bytes);
    }

    /// Removes the live blocks, because another log begins. The blocks that were live before that log are not
    /// part of the recording.
    pub(super) fn end_log(&mut self) {
        self.live.restart();
        self.spans.clear();
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
