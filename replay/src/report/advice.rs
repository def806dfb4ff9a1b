//! The advice of a replay: one sentence that tells a reader of the table which stack to use.
//!
//! The advice depends on reserved bytes and driver calls, because these are equal on a simulated device and
//! on a GPU. Times only break ties: on a simulated device they come from a model, and on any device small
//! differences are noise.

use millpond_core::format_bytes;
use millpond_engine::text::{bytes_among, counted, file_word, option_bytes, thousands};
use millpond_snapshot::tune;

use super::ran::figures;
use crate::compare::{Comparison, StackFigures, has_model};

/// A stack saves driver calls if it makes fewer than one call per this many operations of the log.
const OPERATIONS_A_CALL: u64 = 2;

/// Peaks closer than this ratio count as equal.
pub(super) const SAME_PEAK: f64 = 1.02;

/// A stack that takes less memory than the advised one by more than this ratio is named, too.
const MUCH_LESS: f64 = 1.25;

/// Calls and times closer than this ratio count as equal.
pub(super) const SAME_COST: f64 = 1.1;

/// A log with fewer operations supports no advice, because a pool has not yet reached its size.
const SHORT_LOG: u64 = 1000;

/// The stack that calls the driver for each request.
pub(super) const PLAIN: &str = "cuda";

/// The bases whose memory on a simulated device is a rough model: CUDA's pools.
const DRIVER_POOL: &str = "cuda_async";

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
    if comparison.log.private_pools > 0 {
        let text =
            format!("note: {}.", tune::not_advised(&comparison.log.file, comparison.log.private_pools));
        return Some(Advice { text, stack: None });
    }
    let served = ran.iter().copied().filter(|(_, figures)| !figures.failed_a_row());
    // Managed memory can serve more bytes than the device has, but it uses host memory for them, which is
    // much slower.
    let (managed, served): (Vec<Ran<'_>>, Vec<Ran<'_>>) = served.partition(|(spec, _)| is_managed(spec));
    let log = &comparison.log;
    // If the program's device had less memory for its allocator than a stack takes, the stack would fail.
    let (fitting, too_large): (Vec<Ran<'_>>, Vec<Ran<'_>>) = served
        .into_iter()
        .partition(|(_, figures)| log.available_bytes.is_none_or(|most| figures.peak() <= most));
    let is_too_large = fitting.is_empty() && !too_large.is_empty();
    let served = if is_too_large { too_large } else { fitting };
    // If a request failed, memory counts, and calls do not. `tune` has the same rule.
    let is_better = |(spec, figures): &Ran<'_>| match log.failed_requests {
        0 => spares(figures),
        _ => *spec != PLAIN && !spec.starts_with(DRIVER_POOL),
    };
    let better: Vec<Ran<'_>> = served.iter().copied().filter(is_better).collect();
    let (to_do, stack) = if let Some(best) = smallest(&served).filter(|_| is_too_large) {
        (larger_than_the_programs(comparison, best), None)
    } else if let Some((spec, peak)) = present_is_best(comparison, smallest(&served)) {
        (keep(comparison, spec, peak), None)
    } else if let Some(best) = smallest(&better) {
        let advice = use_stack(comparison, best, plain(&ran)) + &if_memory_is_short(&served, best);
        (advice, Some(best.0))
    } else if let Some(best) = smallest(&served) {
        let (spec, figures) = best;
        if log.failed_requests > 0 {
            (use_stack(comparison, best, plain(&ran)), Some(spec))
        } else if let Some(rest) = &log.flaws.rest_missing {
            (format!("record the whole log: {rest}"), None)
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
    let growth = match log.fails_by_growth() {
        true => format!("note: {}.\n", tune::only_delays(&log.file)),
        false => String::new(),
    };
    Some(Advice { text: format!("{growth}what to do: {to_do}."), stack })
}

/// If a request had failed, returns the model of the program's present allocator with its peak, if it served
/// every request and `best` does not need less memory.
fn present_is_best<'a>(comparison: &'a Comparison, best: Option<Ran<'a>>) -> Option<(&'a str, u64)> {
    let (present, (_, best)) = comparison.log.recorded_with.as_deref().zip(best)?;
    let stacks = comparison.stacks.iter().filter_map(figures);
    let (_, model) = stacks.into_iter().find(|(stack, _)| stack.spec == present)?;
    let is_as_small = model.peak() as f64 <= best.peak() as f64 * SAME_PEAK;
    let served = model.asked_again.is_some() && !model.failed_a_row();
    (served && is_as_small).then(|| (present, model.peak()))
}

/// Returns the advice if the program's present allocator needs no more memory than any stack.
fn keep(comparison: &Comparison, model: &str, peak: u64) -> String {
    // The device had enough memory, so something else made the request fail.
    let why = match comparison.log.available_bytes.filter(|available| *available >= peak) {
        Some(available) => format!(
            "; its device had {} for it, so probably a limit forbade more: see `millpond-replay explain {}`",
            format_bytes(available),
            file_word(&comparison.log.file)
        ),
        None => String::new(),
    };
    format!(
        "run the program where its allocator can reserve {}, or keep less memory live: on {} the model \
         `{model}` of its own allocator served every request, also the failed ones, and no stack here needs \
         less{why}",
        format_bytes(peak),
        comparison.device.spec,
    )
}

/// Returns whether the base of a stack is managed memory.
pub(super) fn is_managed(spec: &str) -> bool {
    spec.split(['+', ':']).next().is_some_and(|base| base.trim() == "managed")
}

/// Returns the advice if only managed memory served the log, because managed memory overflows to host memory.
fn larger_for_managed(comparison: &Comparison, spec: &str, figures: &StackFigures) -> String {
    let (taken, total) = (figures.peak(), comparison.device.total_bytes);
    let sizes = [taken, taken.saturating_sub(total)];
    let [taken, beyond] = sizes.map(|bytes| bytes_among(bytes, &sizes));
    let why = match sizes[1] {
        0 => format!("`{spec}` served it, but moves its pages on demand, which is much slower"),
        _ => format!(
            "of the {taken} that `{spec}` took, {beyond} did not fit into device memory and stayed in host \
             memory, which is much slower"
        ),
    };
    format!("look for a larger device, or keep less memory live: {why}; no other stack served the log")
}

/// Returns the advice if each stack that served the log takes more memory than the program's device had for
/// the allocator.
fn larger_than_the_programs(comparison: &Comparison, (spec, figures): Ran<'_>) -> String {
    let sizes = [figures.peak(), comparison.log.available_bytes.unwrap_or(0)];
    let [taken, available] = sizes.map(|bytes| bytes_among(bytes, &sizes));
    format!(
        "look for a larger device, or keep less memory live: the program's own device had only {available} \
         for its allocator when a request failed, and the stack that needs the least, `{spec}`, took {taken} \
         on {}",
        comparison.device.spec
    )
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
        format!(
            ", and served {served} of {requests} that failed when the log was written; `millpond-replay tune \
             {}` finds the smallest device for this stack, and for the settings of the program's own \
             allocator",
            file_word(&comparison.log.file)
        )
    });
    let sizes = [figures.peak(), figures.peak_needed_bytes];
    let [taken, live] = sizes.map(|bytes| bytes_among(bytes, &sizes));
    format!(
        "build the program's resource from the text `{spec}`{}: on {} this stack served the log, took \
         {taken} for {live} of live memory, and made {calls}{again}",
        form(comparison, spec),
        comparison.device.spec,
    )
}

/// Returns a clause about a stack that takes much less memory than the advised one, and makes more calls.
fn if_memory_is_short(served: &[Ran<'_>], (_, advised): Ran<'_>) -> String {
    let pools = served.iter().copied().filter(|(spec, _)| *spec != PLAIN && !spec.starts_with(DRIVER_POOL));
    let much_less = |figures: &StackFigures| advised.peak() as f64 > figures.peak() as f64 * MUCH_LESS;
    match smallest(&pools.collect::<Vec<_>>()).filter(|(_, figures)| much_less(figures)) {
        Some((spec, figures)) => format!(
            "; if memory is short, use `{spec}`, which took {} and made {}",
            format_bytes(figures.peak()),
            counted(figures.driver.calls_first_pass, "driver call")
        ),
        None => String::new(),
    }
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
        None if log.is_of_millpond => format!(" (in Rust: {build})"),
        // The logs of RMM are read without an import, unless other lines are between the rows.
        None | Some("RMM log" | "RMM debug log") => format!(
            " (in Python, for RMM: `import millpond.rmm; millpond.rmm.use({spec:?})`; in Rust: {build})"
        ),
        Some(format) if format.starts_with("millpond") => format!(" (in Rust: {build})"),
        Some(_) => String::new(),
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
        option_bytes(size.min(LARGEST_DEVICE)),
        device.spec,
    )
}

/// Returns whether a stack makes few driver calls.
pub(super) fn spares(figures: &StackFigures) -> bool {
    figures.driver.calls_first_pass.saturating_mul(OPERATIONS_A_CALL) < figures.operations
}

/// Returns the calls of the first pass that wait for the device.
pub(super) fn stalls(figures: &StackFigures) -> u64 {
    tune::stalls(&figures.driver.by_kind)
}

/// Returns the stack with the least memory. If several stacks need nearly as little, returns the one with the
/// fewest driver calls. If a request had failed, the fewest stalls come first, as in `tune`. Further ties go
/// to the fastest stack, and then to the stack with the fewest layers.
fn smallest<'a>(stacks: &[Ran<'a>]) -> Option<Ran<'a>> {
    let mut near = nearly_least(stacks.to_vec(), SAME_PEAK, |figures| figures.peak() as f64);
    if near.iter().any(|(_, figures)| figures.asked_again.is_some()) {
        near = nearly_least(near, SAME_COST, |figures| stalls(figures) as f64);
    }
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
    ran.iter().find(|(spec, _)| *spec == PLAIN).copied()
}
