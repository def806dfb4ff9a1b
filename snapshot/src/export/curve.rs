//! Computes live and reserved bytes after each event.

use std::collections::HashMap;

use crate::recording::{Event, EventKind, Recording};

/// The live and reserved bytes after an event.
pub(super) struct Point<'a> {
    pub(super) event: &'a Event,
    pub(super) live: u64,
    /// `None` if the source does not have them.
    pub(super) reserved: Option<u64>,
}

/// Returns the points of a recording, in its order.
pub(super) fn points(recording: &Recording) -> impl Iterator<Item = Point<'_>> {
    let mut blocks: HashMap<u64, u64> = HashMap::new();
    let has_segments = recording.sums().reserved_bytes.is_some();
    let (mut live, mut reserved) = (0_u64, 0_u64);
    recording.events().map(move |event| {
        match event.kind {
            EventKind::Allocate => {
                let older = blocks.insert(event.address, event.bytes).unwrap_or(0);
                live = live.saturating_sub(older).saturating_add(event.bytes);
            }
            EventKind::Free => live = live.saturating_sub(blocks.remove(&event.address).unwrap_or(0)),
            EventKind::SegmentAllocate | EventKind::SegmentMap => {
                reserved = reserved.saturating_add(event.bytes);
            }
            EventKind::SegmentFree | EventKind::SegmentUnmap => {
                reserved = reserved.saturating_sub(event.bytes);
            }
            _ => {}
        }
        Point { event, live, reserved: has_segments.then_some(reserved) }
    })
}
