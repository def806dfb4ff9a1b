//! Prints an explanation for people.

use std::io::{self, Write};

use millpond_core::format_bytes;

use super::explanation::{Explained, Explanation, Occasion};
use super::holders::Holder;

/// The frames of a stack that are printed; JSON has more.
const FRAMES: usize = 3;

/// Prints an explanation for people: what is wrong first.
///
/// # Errors
/// Those of `out`.
pub fn print(explanation: &Explanation, out: &mut impl Write) -> io::Result<()> {
    let Explanation { file, source, device, sums, .. } = explanation;
    let kind = if explanation.is_simulated { "simulated device" } else { "device" };
    let device = device.map_or(String::new(), |device| format!(", {kind} {device}"));
    writeln!(out, "{}: {}{device}, {} events", plain(file), plain(&source.format), sums.events)?;
    if let Some(check) = explanation.state_check.as_ref().filter(|check| !check.is_equal()) {
        let first = check.first.as_deref().unwrap_or("counts differ");
        writeln!(out, "THE EVENTS DO NOT LEAD TO THE STATE IN THE FILE; first: {}", plain(first))?;
    }
    writeln!(out)?;
    if explanation.diagnoses.is_empty() {
        writeln!(out, "Nothing is wrong that the recording shows.")?;
    }
    for diagnosis in &explanation.diagnoses {
        writeln!(out, "{}: {}", diagnosis.code, plain(&diagnosis.what))?;
        for line in &diagnosis.evidence {
            writeln!(out, "  {}", plain(line))?;
        }
        holders(&diagnosis.holders, out)?;
        for line in &diagnosis.fixes {
            writeln!(out, "  try: {line}")?;
        }
        writeln!(out)?;
    }
    for moment in &explanation.moments {
        ledger(moment, out)?;
    }
    if !explanation.not_known.is_empty() {
        writeln!(out, "not known:")?;
    }
    for unknown in &explanation.not_known {
        writeln!(out, "  {}", plain(&unknown.text))?;
    }
    if let Some(lines) = explanation.lines_to_record {
        writeln!(out, "to record what is missing:")?;
        lines.lines().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    Ok(())
}

fn ledger(moment: &Explained, out: &mut impl Write) -> io::Result<()> {
    let ledger = &moment.ledger;
    let occasion = match moment.occasion {
        Occasion::Peak => "at the peak",
        Occasion::Failure => "at the failed request",
        Occasion::End => "at the end",
    };
    writeln!(out, "{occasion}, event {}:", ledger.event + 1)?;
    let mut line = |name: &str, bytes: u64, about: &str| {
        writeln!(out, "  {name:<14}{:>12}  {about}", format_bytes(bytes))
    };
    if let Some(wanted) = moment.wanted_bytes {
        line("wanted", wanted, "the request")?;
    }
    if let Some(reserved) = ledger.reserved_bytes {
        line("reserved", reserved, "from the driver; the sum of the next three")?;
    }
    line("active", ledger.active_bytes, &format!("{} blocks", ledger.live_blocks))?;
    if ledger.reserved_bytes.is_some() {
        line("wholly free", ledger.wholly_free_bytes, "in segments without a block")?;
        line("pinned", ledger.pinned_bytes, "free beside live blocks: fragmentation")?;
        line("rounding", ledger.rounding_bytes, "of what is active")?;
        line("held", ledger.held_bytes, "of what is active: freed, waits for streams")?;
        line("largest free", ledger.largest_free_bytes, "in one piece")?;
    }
    if let Some(free) = moment.device_free_bytes {
        line("device free", free, "on the device")?;
    }
    if let Some(outside) = moment.outside_bytes {
        line("outside", outside, "neither the allocator's nor free")?;
    }
    holders(&moment.holders, out)?;
    writeln!(out)
}

fn holders(holders: &[Holder], out: &mut impl Write) -> io::Result<()> {
    for holder in holders {
        let mut frames = holder.stack.iter().map(String::as_str);
        let first = frames.next().unwrap_or("(no stack)");
        writeln!(out, "  {:>10} in {} blocks: {}", format_bytes(holder.bytes), holder.blocks, plain(first))?;
        for frame in frames.take(FRAMES - 1) {
            writeln!(out, "      from {}", plain(frame))?;
        }
    }
    Ok(())
}

/// A text from a file without characters that a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}
