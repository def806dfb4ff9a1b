//! Chrome's trace events, which Perfetto reads: counters, failed requests as instants, and phases as slices.

use std::io::{self, Write};

use millpond_engine::text::write_json;
use serde_json::{Value, json};

use super::curve::points;
use crate::recording::{Clock, EventKind, Recording};

/// Writes the JSON of a trace. Times are microseconds since the first event. If the recording has no clock,
/// each event counts as one microsecond.
pub(super) fn write(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    let first = recording.events().find_map(|event| event.time());
    let per_microsecond = if recording.clock() == Clock::Steps { 1.0 } else { 1000.0 };
    let mut now = 0.0;
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let name = json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": recording.file()}});
    write_json(&mut *out, &name)?;
    let mut open: Vec<&str> = Vec::new();
    for (number, point) in points(recording).enumerate() {
        now = match (first, point.event.time()) {
            (None, _) => number as f64,
            (Some(first), Some(time)) => (time.saturating_sub(first) as f64 / per_microsecond).max(now),
            (Some(_), None) => now,
        };
        let tag = point.event.tag.map_or("", |tag| recording.tag(tag));
        let event: Value = match point.event.kind {
            EventKind::Allocate | EventKind::Free => counter("live", point.live, now),
            EventKind::SegmentAllocate
            | EventKind::SegmentFree
            | EventKind::SegmentMap
            | EventKind::SegmentUnmap => counter("reserved", point.reserved.unwrap_or(0), now),
            EventKind::AllocateFailure => json!({
                "name": "out of memory", "ph": "i", "s": "g", "ts": now, "pid": 1, "tid": 1,
                "args": {"wanted_bytes": point.event.bytes},
            }),
            EventKind::PhaseStart => {
                open.push(tag);
                slice("B", tag, now)
            }
            // Slices of one track must end in the opposite order of their starts.
            EventKind::PhaseEnd if open.last() == Some(&tag) => {
                open.pop();
                slice("E", tag, now)
            }
            _ => continue,
        };
        writeln!(out, ",")?;
        write_json(&mut *out, &event)?;
    }
    for tag in open.into_iter().rev() {
        writeln!(out, ",")?;
        write_json(&mut *out, &slice("E", tag, now))?;
    }
    writeln!(out, "]}}")
}

fn counter(name: &str, bytes: u64, now: f64) -> Value {
    json!({"name": name, "ph": "C", "ts": now, "pid": 1, "args": {"bytes": bytes}})
}

fn slice(phase: &str, name: &str, now: f64) -> Value {
    json!({"name": name, "ph": phase, "ts": now, "pid": 1, "tid": 1})
}
