//! Prints an explanation for people.

use std::io::{self, Write};

use millpond_core::format_bytes;
use millpond_engine::text::{number_of, plain, readable_among, readable_bytes};

use super::explanation::{Diagnosis, Explained, Explanation, Occasion, Verdict};
use super::holders::{Holder, HolderFrame};
use crate::placement::Bounds;
use crate::recording::Source;

/// The most code lines of the user that are printed for a call stack, unless all frames are printed.
const LINES: usize = 3;

/// How an explanation is printed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Style {
    /// Whether the text has colours for a terminal.
    pub is_coloured: bool,
    /// Whether call stacks are printed with all frames and the kind of each frame.
    pub has_all_frames: bool,
}

impl Style {
    /// Returns a style that shows only the user's lines, with colours if `is_coloured`.
    pub fn new(is_coloured: bool) -> Self {
        Self { is_coloured, ..Self::default() }
    }

    /// Sets whether all frames of call stacks are shown, or only the user's frames.
    #[must_use]
    pub fn with_all_frames(self, has_all_frames: bool) -> Self {
        Self { has_all_frames, ..self }
    }
}

/// The escape sequences for the parts of the text.
#[derive(Clone, Copy)]
struct Looks {
    /// The escape sequence for a problem.
    problem: &'static str,
    /// The escape sequence for a line to paste.
    fix: &'static str,
    /// The escape sequence for a heading, and for the verdict that there is no problem.
    head: &'static str,
    /// The escape sequence that ends each of these.
    end: &'static str,
    /// Whether call stacks are printed with all frames.
    has_all_frames: bool,
}

/// Escape sequences for a terminal: bold red, green, bold, and reset.
const COLOURED: Looks = Looks {
    problem: "\u{1b}[1;31m",
    fix: "\u{1b}[32m",
    head: "\u{1b}[1m",
    end: "\u{1b}[0m",
    has_all_frames: false,
};

const PLAIN: Looks = Looks { problem: "", fix: "", head: "", end: "", has_all_frames: false };

/// Prints an explanation for people. First comes the verdict, then the problems, then the moments. The text
/// has no control characters, except for colours.
///
/// # Errors
/// Writing to `out` fails.
pub fn print(explanation: &Explanation, style: Style, out: &mut impl Write) -> io::Result<()> {
    let looks = if style.is_coloured { COLOURED } else { PLAIN };
    let looks = Looks { has_all_frames: style.has_all_frames, ..looks };
    let Looks { problem, head, end, .. } = looks;
    let Verdict { code, sentence } = &explanation.verdict;
    let mark = if *code == "no_problem" { head } else { problem };
    writeln!(out, "{mark}verdict{end}: {}", plain(sentence))?;
    let Explanation { file, source, device, sums, .. } = explanation;
    let kind = if explanation.is_simulated { "simulated device" } else { "device" };
    let device = device.map_or(String::new(), |device| format!(", {kind} {device}"));
    let sums_only = explanation.not_known.iter().any(|unknown| unknown.code == "sums_only");
    let failures_only = explanation.not_known.iter().any(|unknown| unknown.code == "no_blocks");
    let events = match sums_only {
        true => number_of(sums.failures, "failed request"),
        false => number_of(sums.events, "event"),
    };
    writeln!(out, "{}: {}{device}, {events}", plain(file), plain(&source.format))?;
    if let Some(check) = explanation.state_check.as_ref().filter(|check| !check.is_equal()) {
        let first = check.first.as_deref().unwrap_or("counts differ");
        let first = plain(first);
        writeln!(out, "{problem}THE EVENTS CONTRADICT THE FILE'S STATE{end}; first difference: {first}")?;
    }
    let bounds = explanation.bound_host_order.zip(explanation.bound_stream_safe);
    if let Some((host_order, stream_safe)) = bounds.filter(|_| !failures_only) {
        let reserved = sums.peak_reserved_bytes;
        let reserved = reserved
            .map(|reserved| format!("; the recorded one reserved at most {}", readable_bytes(reserved)))
            .unwrap_or_default();
        let device = explanation.recorded_device_bytes.unwrap_or(host_order);
        let sizes = [host_order, stream_safe, device];
        let least = Bounds { host_order, stream_safe }.text(|bytes| readable_among(bytes, &sizes));
        writeln!(out, "any allocator needs at least {least}{reserved}")?;
    }
    writeln!(out)?;
    // A program that repeats a failed request has the same problem several times.
    let is_same = |one: &Diagnosis, next: &Diagnosis| {
        (one.code, &one.what, &one.holders, &one.fixes) == (next.code, &next.what, &next.holders, &next.fixes)
    };
    for same in explanation.diagnoses.chunk_by(is_same) {
        print_diagnoses(same, looks, out)?;
    }
    for moment in explanation.moments.iter().filter(|_| !failures_only) {
        let free = if source.format == Source::BFC { "until the allocator's limit" } else { "on the device" };
        ledger(moment, sums_only, free, looks, out)?;
    }
    if !explanation.not_known.is_empty() {
        writeln!(out, "{head}not known:{end}")?;
    }
    for unknown in &explanation.not_known {
        writeln!(out, "  {}", plain(&unknown.text))?;
    }
    if let Some(lines) = explanation.lines_to_record {
        writeln!(out, "{head}to record the missing data:{end}")?;
        lines.lines().try_for_each(|line| writeln!(out, "  {}{line}{end}", looks.fix))?;
    }
    Ok(())
}

/// Prints diagnoses that differ in their evidence only.
fn print_diagnoses(same: &[Diagnosis], looks: Looks, out: &mut impl Write) -> io::Result<()> {
    let Looks { problem, fix, end, .. } = looks;
    let Some(diagnosis) = same.first() else { return Ok(()) };
    writeln!(out, "{problem}{}{end}: {}", diagnosis.code, plain(&diagnosis.what))?;
    let mut told: Vec<&String> = Vec::new();
    for line in same.iter().flat_map(|diagnosis| &diagnosis.evidence) {
        if !told.contains(&line) {
            writeln!(out, "  {}", plain(line))?;
            told.push(line);
        }
    }
    holders(&diagnosis.holders, looks, out)?;
    for line in &diagnosis.fixes {
        writeln!(out, "  try: {fix}{line}{end}")?;
    }
    writeln!(out)
}

fn ledger(
    moment: &Explained,
    sums_only: bool,
    about_free: &str,
    looks: Looks,
    out: &mut impl Write,
) -> io::Result<()> {
    let ledger = &moment.ledger;
    let occasion = match moment.occasion {
        Occasion::Peak => "at the peak",
        Occasion::Failure => "at the failed request",
        Occasion::End => "at the end",
    };
    let at = if sums_only { String::new() } else { format!(", event {}", ledger.event + 1) };
    writeln!(out, "{}{occasion}{at}:{}", looks.head, looks.end)?;
    let mut line = |name: &str, bytes: u64, about: &str| {
        writeln!(out, "  {name:<14}{:>12}  {about}", format_bytes(bytes))
    };
    if let Some(wanted) = moment.wanted_bytes {
        let asker = moment.wanted_by.as_ref().map_or(String::new(), |line| format!(" by {}", plain(line)));
        line("wanted", wanted, &format!("the failed request{asker}"))?;
    }
    if let Some(reserved) = ledger.reserved_bytes {
        let next = if sums_only { "two" } else { "three" };
        line("reserved", reserved, &format!("from the driver; the sum of the next {next} rows"))?;
    }
    let blocks = number_of(ledger.live_blocks, "block");
    line("active", ledger.active_bytes, if sums_only { "in live blocks" } else { &blocks })?;
    if ledger.reserved_bytes.is_some() && sums_only {
        line("free", ledger.unused_bytes(), "in segments of the allocator")?;
    } else if ledger.reserved_bytes.is_some() {
        line("wholly free", ledger.wholly_free_bytes, "in segments without blocks")?;
        line("pinned", ledger.pinned_bytes, "free next to live blocks: fragmentation")?;
        if ledger.has_rounding() {
            line("rounding", ledger.rounding_bytes, "part of active")?;
        }
        line("held", ledger.held_bytes, "part of active: freed, but waiting for streams")?;
        line("largest free", ledger.largest_free_bytes, "in one piece")?;
    }
    if let Some(free) = moment.device_free_bytes {
        line("device free", free, about_free)?;
    }
    if let Some(outside) = moment.outside_bytes {
        line("outside", outside, "used outside of the allocator")?;
    }
    holders(&moment.holders, looks, out)?;
    writeln!(out)
}

fn holders(holders: &[Holder], looks: Looks, out: &mut impl Write) -> io::Result<()> {
    for holder in holders {
        let (bytes, blocks) = (format_bytes(holder.bytes), number_of(holder.blocks, "block"));
        let backward = if holder.in_backward { ", in backward" } else { "" };
        let lead = plain(&holder.lead);
        let called = holder.called.as_ref().map_or(String::new(), |name| format!(" ({})", plain(name)));
        let modules =
            holder.module_path.as_ref().map_or(String::new(), |path| format!("  ({})", plain(path)));
        let requested = match format_bytes(holder.requested_bytes) {
            requested if requested == bytes => String::new(),
            requested => format!(" ({requested} requested)"),
        };
        writeln!(out, "  {bytes:>10} in {blocks}{requested}: {lead}{called}{backward}{modules}")?;
        if looks.has_all_frames {
            for HolderFrame { function, file, line, kind } in &holder.frames {
                writeln!(out, "      {:<12}{} ({}:{line})", kind.name(), plain(function), plain(file))?;
            }
            continue;
        }
        for line in holder.shown.iter().skip(1).take(LINES - 1) {
            writeln!(out, "      from {}", plain(line))?;
        }
        let more = holder.shown.len().saturating_sub(LINES);
        let more = (more > 0).then(|| format!("{} of the program", number_of(more as u64, "more frame")));
        let rest: Vec<String> = more.into_iter().chain(holder.folded.text()).collect();
        if !rest.is_empty() {
            writeln!(out, "      + {}", rest.join(", "))?;
        }
    }
    Ok(())
}
