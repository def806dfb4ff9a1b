//! Computes live and reserved bytes after each event.

use crate::recording::{Event, EventKind, Recording};

/// The live and reserved bytes after an event.
pub(super) struct Point<'a> {
    pub(super) event: &'a Event,
    pub(super) live: u64,
    /// The reserved bytes; `None` if the source does not record them.
    pub(super) reserved: Option<u64>,
}

/// Returns the points of a recording, in the order of its events.
pub(super) fn points(recording: &Recording) -> impl Iterator<Item = Point<'_>> {
    let has_segments = recording.sums().reserved_bytes.is_some();
    let mut reserved = 0_u64;
    recording.live_bytes().map(move |(event, live)| {
        match event.kind {
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
