//! Writes live and reserved bytes over time, as CSV.

use std::io::{self, Write};

use millpond_engine::csv_to_io;

use super::curve::points;
use crate::recording::{Clock, Recording};

/// Writes a row for each event. If a time or a sum is not known, its cell is empty.
pub(super) fn write(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    let time = match recording.clock() {
        Clock::Unix => "unix_ns",
        Clock::Monotonic => "monotonic_ns",
        Clock::Steps => "step",
    };
    let mut rows = csv::Writer::from_writer(out);
    let head = ["event", time, "action", "bytes", "live_bytes", "reserved_bytes"];
    rows.write_record(head).map_err(csv_to_io)?;
    for (number, point) in points(recording).enumerate() {
        let known = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
        let row = [
            (number + 1).to_string(),
            known(point.event.time()),
            point.event.kind.name().to_owned(),
            point.event.bytes.to_string(),
            point.live.to_string(),
            known(point.reserved),
        ];
        rows.write_record(row).map_err(csv_to_io)?;
    }
    rows.flush()
}
