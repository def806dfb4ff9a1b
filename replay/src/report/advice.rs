//! The advice after a replay: one sentence for a reader who sees the table for the first time.
//!
//! It rests on reserved bytes and driver calls, because a simulated device and a GPU agree on them. It
//! ignores times: a simulated device only models them, and small differences are noise on any device.

use millpond_core::{ByteSize, format_bytes};
use millpond_engine::text::{counted, thousands};
use millpond_snapshot::peers;

use super::ran::figures;
use crate::compare::{Comparison, StackFigures};

/// A stack saves driver calls if it makes fewer than one per this many operations of the log.
const OPERATIONS_A_CALL: u64 = 2;

/// Peaks closer than this ratio count as equal; then the simpler stack is better.
const SAME_PEAK: f64 = 1.02;

/// A log with fewer operations says little, because a pool has not found its size yet.
const SHORT_LOG: u64 = 1000;

/// The memory of the largest simulated device, in bytes.
const LARGEST_DEVICE: u64 = 16 << 40;

type Ran<'a> = (&'a str, &'a StackFigures);

/// Returns one thing to do, on one line; `None` if no stack ran that a program can use.
pub(super) fn of(comparison: &Comparison) -> Option<String> {
    let ran = comparison.stacks.iter().filter_map(figures).filter(|(_, figures)| figures.is_of_device());
    let ran = ran.map(|(stack, figures)| (stack.spec.as_str(), figures));
    let ran: Vec<Ran<'_>> = ran.filter(|(spec, _)| !has_model(spec)).collect();
    let served: Vec<Ran<'_>> = ran.iter().copied().filter(|(_, f)| f.failures_all_passes == 0).collect();
    let most_served_again = served.iter().map(|(_, figures)| served_again(figures)).max();
    let best: Vec<Ran<'_>> =
        served.into_iter().filter(|(_, figures)| Some(served_again(figures)) == most_served_again).collect();
    let sparing: Vec<Ran<'_>> = best.iter().copied().filter(|(_, figures)| spares(figures)).collect();
    let to_do = if ran.is_empty() {
        return None;
    } else if best.is_empty() {
        larger_device(comparison, &ran)
    } else if let Some((spec, figures)) = smallest(&sparing) {
        use_stack(comparison, spec, figures, plain(&ran))
    } else if comparison.log.operations < SHORT_LOG {
        let count = counted(comparison.log.operations, "operation");
        format!("record a longer log: this one has {count}, too few to tell stacks apart")
    } else {
        let (spec, figures) = smallest(&best)?;
        let (taken, total) = (peak(figures), comparison.device.total_bytes);
        match taken.checked_sub(total) {
            Some(beyond) if beyond > 0 => larger_for_managed(spec, taken, beyond),
            _ => format!(
                "stay with `{spec}`, which took {}: no stack here needed fewer than one driver call \
                 per two operations",
                format_bytes(taken)
            ),
        }
    };
    Some(format!("what to do: {to_do}."))
}

/// Returns whether a stack contains a model of another library's allocator, which no program can use.
fn has_model(spec: &str) -> bool {
    let layers = spec.split('+').map(|layer| layer.split(':').next().unwrap_or_default().trim());
    layers.into_iter().any(|layer| peers::LAYERS.iter().any(|model| model.name == layer))
}

/// Returns the advice if only managed memory served the log, because it overflows to host memory.
fn larger_for_managed(spec: &str, taken: u64, beyond: u64) -> String {
    format!(
        "look for a larger device, or keep less memory live: of the {} that `{spec}` took, {} did not fit \
         into device memory and stayed in host memory, which is much slower; no other stack served the log",
        format_bytes(taken),
        format_bytes(beyond)
    )
}

fn use_stack(comparison: &Comparison, spec: &str, figures: &StackFigures, plain: Option<Ran<'_>>) -> String {
    let calls = counted(figures.driver.calls_first_pass, "driver call");
    let calls = match plain {
        Some((plain, other)) if plain != spec => {
            format!("{calls} instead of {} with `{plain}`", thousands(other.driver.calls_first_pass))
        }
        _ => format!("{calls} for {}", counted(figures.operations, "operation")),
    };
    let again = figures.asked_again.as_ref().map_or(String::new(), |asked| {
        let (served, requests) = (thousands(asked.served), counted(asked.requests, "request"));
        format!(", and served {served} of {requests} that failed when the log was written")
    });
    let (table, whose) = if comparison.has_own_layers {
        ("&table", ", with this program's layers in `table`")
    } else {
        ("&millpond::layers()", "")
    };
    format!(
        "build the program's resource from the text `{spec}` (in Rust: \
         `{spec:?}.parse::<millpond::stack::StackSpec>()?.build({table}, &device)?`{whose}): on {} it \
         served this log; it took {} for {} live, and made {calls}{again}",
        comparison.device.spec,
        format_bytes(peak(figures)),
        format_bytes(figures.peak_live_bytes),
    )
}

/// Returns the advice if no stack served the log: the closest stack, and a device that would serve it.
fn larger_device(comparison: &Comparison, ran: &[Ran<'_>]) -> String {
    let log = &comparison.log;
    if log.peak_live_bytes > LARGEST_DEVICE {
        let largest = format_bytes(log.largest_request_bytes);
        return format!("look at the log: it asks for {largest} at once, more than any device has");
    }
    let needed = log.peak_live_bytes.saturating_mul(2).max(comparison.device.total_bytes);
    if log.peak_live_bytes.saturating_mul(2) <= comparison.device.total_bytes {
        return format!(
            "raise the maximum of the stack, or omit it: {} has room for the log, which has {} live at once, \
             but no stack here was allowed to use it",
            comparison.device.spec,
            format_bytes(log.peak_live_bytes),
        );
    }
    let size = needed.checked_next_power_of_two().unwrap_or(LARGEST_DEVICE).min(LARGEST_DEVICE);
    let closest = ran.iter().min_by_key(|(_, figures)| figures.failures);
    let closest = closest.map_or(String::new(), |(spec, figures)| {
        let short = figures.first_failure.as_ref().and_then(|failure| {
            let short = failure.report.as_ref()?.short_bytes?;
            Some(format!(", first at line {}, {} short", failure.line, format_bytes(short)))
        });
        let failures = counted(figures.failures, "failed allocation");
        format!("; `{spec}` came closest, with {failures}{}", short.unwrap_or_default())
    });
    format!(
        "replay the log with `--device sim:{}` to see how much it needs: no stack served it on {}{closest}",
        ByteSize::Bytes(size),
        comparison.device.spec,
    )
}

/// Returns the larger peak of the first and the last pass.
fn peak(figures: &StackFigures) -> u64 {
    figures.peak_reserved_bytes_first.max(figures.peak_reserved_bytes_last)
}

fn spares(figures: &StackFigures) -> bool {
    figures.driver.calls_first_pass.saturating_mul(OPERATIONS_A_CALL) < figures.operations
}

fn served_again(figures: &StackFigures) -> u64 {
    figures.asked_again.as_ref().map_or(0, |asked| asked.served)
}

/// Returns the stack with the least memory; of several with nearly as little, the one with the fewest layers.
fn smallest<'a>(stacks: &[Ran<'a>]) -> Option<Ran<'a>> {
    let least = stacks.iter().map(|(_, figures)| peak(figures)).min()?;
    let near = stacks.iter().filter(|(_, figures)| peak(figures) as f64 <= least as f64 * SAME_PEAK);
    near.min_by_key(|(spec, figures)| (spec.matches('+').count(), peak(figures))).copied()
}

/// Returns the stack that calls the driver for each request.
fn plain<'a>(ran: &[Ran<'a>]) -> Option<Ran<'a>> {
    ran.iter().find(|(spec, _)| *spec == "cuda").copied()
}
