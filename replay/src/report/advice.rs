//! The advice of a replay: one sentence that tells a reader of the table which stack to use.
//!
//! The advice depends on reserved bytes and driver calls, because these are equal on a simulated device and
//! on a GPU. Times only break ties: on a simulated device they come from a model, and on any device small
//! differences are noise.

use millpond_core::{ByteSize, format_bytes};
use millpond_engine::text::{counted, thousands};
use millpond_snapshot::peers;

use super::ran::figures;
use crate::compare::{Comparison, StackFigures};

/// A stack saves driver calls if it makes fewer than one call per this many operations of the log.
const OPERATIONS_A_CALL: u64 = 2;

/// Peaks closer than this ratio count as equal.
pub(super) const SAME_PEAK: f64 = 1.02;

/// Calls and times closer than this ratio count as equal.
pub(super) const SAME_COST: f64 = 1.1;

/// A log with fewer operations supports no advice, because a pool has not yet reached its size.
const SHORT_LOG: u64 = 1000;

/// The memory of the largest simulated device, in bytes.
const LARGEST_DEVICE: u64 = 16 << 40;

type Ran<'a> = (&'a str, &'a StackFigures);

/// The advice.
pub(super) struct Advice<'a> {
    /// The sentence, on one line.
    pub(super) text: String,
    /// The stack that the program should use, if the advice names one.
    pub(super) stack: Option<&'a str>,
}

/// Returns one recommendation. Returns `None` if no stack ran, or only stacks that programs cannot use.
pub(super) fn of(comparison: &Comparison) -> Option<Advice<'_>> {
    let ran = comparison.stacks.iter().filter_map(figures).filter(|(_, figures)| figures.is_of_device());
    let ran = ran.map(|(stack, figures)| (stack.spec.as_str(), figures));
    let ran: Vec<Ran<'_>> = ran.filter(|(spec, _)| !has_model(spec)).collect();
    if ran.is_empty() {
        return None;
    }
    let served = ran.iter().copied().filter(|(_, figures)| !figures.failed_a_row());
    // Managed memory can serve more bytes than the device has, but it uses host memory for them, which is
    // much slower.
    let (managed, served): (Vec<Ran<'_>>, Vec<Ran<'_>>) = served.partition(|(spec, _)| is_managed(spec));
    let sparing: Vec<Ran<'_>> = served.iter().copied().filter(|(_, figures)| spares(figures)).collect();
    let log = &comparison.log;
    let (to_do, stack) = if let Some(best) = smallest(&sparing) {
        (use_stack(comparison, best, plain(&ran)), Some(best.0))
    } else if let Some(best) = smallest(&served) {
        let (spec, figures) = best;
        if log.failed_requests > 0 {
            (use_stack(comparison, best, plain(&ran)), Some(spec))
        } else if log.operations < SHORT_LOG {
            let count = counted(log.operations, "operation");
            (format!("record a longer log: this one has {count}, too few to tell stacks apart"), None)
        } else {
            let stay = format!(
                "stay with `{spec}`, which took {}: no stack here needed fewer than one driver call per two \
                 operations",
                format_bytes(figures.peak())
            );
            (stay, Some(spec))
        }
    } else if let Some((spec, figures)) = managed.first() {
        (larger_for_managed(comparison, spec, figures), None)
    } else {
        (larger_device(comparison, &ran), None)
    };
    Some(Advice { text: format!("what to do: {to_do}."), stack })
}

/// Returns whether a stack contains a model of another library's allocator, which no program can use.
pub(super) fn has_model(spec: &str) -> bool {
    let layers = spec.split('+').map(|layer| layer.split(':').next().unwrap_or_default().trim());
    layers.into_iter().any(|layer| peers::LAYERS.iter().any(|model| model.name == layer))
}

/// Returns whether the base of a stack is managed memory.
pub(super) fn is_managed(spec: &str) -> bool {
    spec.split(['+', ':']).next().is_some_and(|base| base.trim() == "managed")
}

/// Returns the advice if only managed memory served the log, because managed memory overflows to host memory.
fn larger_for_managed(comparison: &Comparison, spec: &str, figures: &StackFigures) -> String {
    let (taken, total) =
        (figures.peak().max(comparison.log.peak_needed_bytes), comparison.device.total_bytes);
    let why = match taken.saturating_sub(total) {
        0 => format!("`{spec}` served it, but moves its pages on demand, which is much slower"),
        beyond => format!(
            "of the {} that `{spec}` took, {} did not fit into device memory and stayed in host memory, \
             which is much slower",
            format_bytes(taken),
            format_bytes(beyond)
        ),
    };
    format!("look for a larger device, or keep less memory live: {why}; no other stack served the log")
}

fn use_stack(comparison: &Comparison, (spec, figures): Ran<'_>, plain: Option<Ran<'_>>) -> String {
    let calls = counted(figures.driver.calls_first_pass, "driver call");
    let calls = match plain {
        Some((plain, other)) if plain != spec && !other.failed_a_row() => {
            format!("{calls} instead of {} with `{plain}`", thousands(other.driver.calls_first_pass))
        }
        _ => format!("{calls} for {}", counted(figures.operations, "operation")),
    };
    let again = figures.asked_again.as_ref().map_or(String::new(), |asked| {
        let (served, requests) = (thousands(asked.served), counted(asked.requests, "request"));
        format!(", and served {served} of {requests} that failed when the log was written")
    });
    format!(
        "build the program's resource from the text `{spec}`{}: on {} this stack served the log, took {} for \
         {} of live memory, and made {calls}{again}",
        form(comparison, spec),
        comparison.device.spec,
        format_bytes(figures.peak()),
        format_bytes(figures.peak_live_bytes),
    )
}

/// Returns the code line that selects a stack, for the framework that wrote the log.
fn form(comparison: &Comparison, spec: &str) -> String {
    if comparison.has_own_layers {
        let build = rust(spec, "table");
        return format!(" (in Rust: {build}, with this program's layers in `table`)");
    }
    let build = rust(spec, "millpond::layers()");
    let log = &comparison.log;
    match log.imported_from.as_deref() {
        Some(format) if format.starts_with("PyTorch") => format!(
            " (in Python, before any torch.cuda call: `import millpond.torch; millpond.torch.use({spec:?})`)"
        ),
        Some(_) => String::new(),
        None if log.is_of_millpond => format!(" (in Rust: {build})"),
        None => format!(
            " (in Python, for RMM: `import millpond.rmm; millpond.rmm.use({spec:?})`; in Rust: {build})"
        ),
    }
}

fn rust(spec: &str, table: &str) -> String {
    format!("`{spec:?}.parse::<millpond::stack::StackSpec>()?.build(&{table}, &device)?`")
}

/// Returns the advice if no stack served the log. It names the stack that came closest, and a device that
/// would suffice.
fn larger_device(comparison: &Comparison, ran: &[Ran<'_>]) -> String {
    let (log, device) = (&comparison.log, &comparison.device);
    for (bytes, what) in [(log.largest_wanted_bytes, "asks for"), (log.peak_needed_bytes, "needs at least")] {
        if bytes > LARGEST_DEVICE {
            let bytes = format_bytes(bytes);
            return format!("look at the log: it {what} {bytes} at once, more than any device has");
        }
    }
    let needed = log.peak_needed_bytes.saturating_mul(2);
    if needed <= device.total_bytes {
        return format!(
            "raise the maximum of the stack, or omit it: {} has room for the log, which needs {} at once, \
             but no stack here was allowed to use that much",
            device.spec,
            format_bytes(log.peak_needed_bytes),
        );
    }
    let size = needed.max(device.total_bytes).checked_next_power_of_two().unwrap_or(LARGEST_DEVICE);
    let unserved = |figures: &StackFigures| {
        figures.asked_again.as_ref().map_or(0, |asked| asked.requests.saturating_sub(asked.served))
    };
    let closest = ran.iter().min_by_key(|(_, figures)| (figures.failures, unserved(figures)));
    let closest = closest.map_or(String::new(), |(spec, figures)| {
        let short = figures.first_failure.as_ref().and_then(|failure| {
            let short = failure.report.as_ref()?.short_bytes?;
            let short = format_bytes(short);
            Some(format!(", the first at line {}, where {short} more was needed", failure.line))
        });
        let failures = counted(figures.failures + unserved(figures), "failed allocation");
        format!("; `{spec}` came closest, with {failures}{}", short.unwrap_or_default())
    });
    format!(
        "replay the log with `--device sim:{}` to see how much memory it needs: no stack served it on \
         {}{closest}",
        ByteSize::Bytes(size.min(LARGEST_DEVICE)),
        device.spec,
    )
}

/// Returns whether a stack makes few driver calls.
pub(super) fn spares(figures: &StackFigures) -> bool {
    figures.driver.calls_first_pass.saturating_mul(OPERATIONS_A_CALL) < figures.operations
}

/// Returns the stack with the least memory. If several stacks need nearly as little, returns the one with the
/// fewest driver calls. Further ties go to the fastest stack, and then to the stack with the fewest layers.
fn smallest<'a>(stacks: &[Ran<'a>]) -> Option<Ran<'a>> {
    let near = nearly_least(stacks.to_vec(), SAME_PEAK, |figures| figures.peak() as f64);
    let near = nearly_least(near, SAME_COST, |figures| figures.driver.calls_first_pass as f64);
    let near = nearly_least(near, SAME_COST, |figures| figures.ns_per_op_first.unwrap_or(f64::INFINITY));
    near.into_iter().min_by_key(|(spec, figures)| (spec.matches('+').count(), figures.peak()))
}

/// Keeps the stacks whose cost is at most `ratio` times the least cost.
fn nearly_least<'a>(stacks: Vec<Ran<'a>>, ratio: f64, cost: fn(&StackFigures) -> f64) -> Vec<Ran<'a>> {
    let least = stacks.iter().map(|(_, figures)| cost(figures)).fold(f64::INFINITY, f64::min);
    stacks.into_iter().filter(|(_, figures)| cost(figures) <= least * ratio).collect()
}

/// Returns the stack that calls the driver for each request.
fn plain<'a>(ran: &[Ran<'a>]) -> Option<Ran<'a>> {
    ran.iter().find(|(spec, _)| *spec == "cuda").copied()
}
