//! Prints a placement as text.

use std::io::{self, Write};

use millpond_core::format_bytes;
use millpond_engine::text::counted;
use millpond_engine::text::plain;

use super::{Answer, Placement, Sharing};

/// Prints a placement for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn print(placement: &Placement, out: &mut impl Write) -> io::Result<()> {
    let Placement { blocks, streams, failed_requests, .. } = *placement;
    let (blocks, stream_count) = (counted(blocks as u64, "block"), counted(streams as u64, "stream"));
    writeln!(out, "{}: {blocks}, {stream_count}", plain(&placement.file))?;
    let mut line = |name: &str, text: String| writeln!(out, "  {name:<12}{text}");
    if failed_requests > 0 {
        let requests = counted(failed_requests as u64, "request");
        line("failed", format!("{requests}, each counted as a block that lives for an instant"))?;
    }
    let host_order = format_bytes(placement.bound_host_order);
    line("least", format!("{host_order}: the peak of live memory, in host order"))?;
    if streams > 1 {
        let safe = format_bytes(placement.bound_stream_safe);
        line(
            "",
            format!(
                "{safe}: if streams share no memory, because the file does not show how they are ordered"
            ),
        )?;
    }
    if let Some(height) = placement.height {
        let ratio = if placement.bound == 0 { 1.0 } else { height as f64 / placement.bound as f64 };
        let proof = match (placement.is_optimal, placement.timed_out) {
            (true, _) => "no placement needs less",
            (false, false) => "a smaller placement may exist",
            (false, true) => "a smaller placement may exist, and more `--time` may find it",
        };
        let kind = match placement.sharing {
            Sharing::HostOrder if streams > 1 => " in host order",
            _ => "",
        };
        line("plan", format!("{}{kind}, {ratio:.5} of the least: {proof}", format_bytes(height)))?;
    }
    for doubt in &placement.doubts {
        line("note", plain(&doubt.text))?;
    }
    line("hardness", format!("{:.3}: the largest block / the least", placement.hardness()))?;
    let (Some(capacity), Some(answer)) = (placement.capacity, placement.answer) else { return Ok(()) };
    // Another rule for streams may let the streams share the memory.
    let is_by_rule =
        streams > 1 && placement.sharing == Sharing::StreamSafe && capacity >= placement.bound_host_order;
    let capacity = format_bytes(capacity);
    let least = format_bytes(placement.bound);
    line(
        "capacity",
        match answer {
            Answer::Fits => format!("{capacity} suffices: the plan proves it"),
            Answer::Impossible if is_by_rule => format!(
                "{capacity} is too little if streams share no memory, which needs {least}; with `--streams \
                 host-order`, streams share memory"
            ),
            Answer::Impossible => format!("{capacity} is too little for any allocator: {least} are needed"),
            Answer::Unknown => format!("{capacity} may suffice: no fitting plan found, but one may exist"),
        },
    )
}
