//! Prints the result of `tune`.

use std::io::{self, Write};

use millpond_core::format_bytes;
use millpond_engine::text::{bytes_among, file_word, number_of, plain};

use super::attempt::{Cost, PAGE};
use super::{Family, Tried, Tuned, near_least};
use crate::fidelity::LACKS_LIMIT;
use crate::placement::Bounds;

/// A file with fewer allocations is too short to tell settings apart: an allocator has not yet reached its
/// size.
const SHORT: u64 = 100;

/// The most candidates that a line names.
const NAMES: usize = 4;

/// Prints the result for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn print(tuned: &Tuned, out: &mut impl Write) -> io::Result<()> {
    let Tuned { file, format, allocations, streams, .. } = tuned;
    let (allocations, streams) =
        (number_of(*allocations, "allocation"), number_of(*streams as u64, "stream"));
    writeln!(out, "{}: {}, {allocations}, {streams}", plain(file), plain(format))?;
    let sizes = sizes(tuned);
    writeln!(out, "any allocator needs at least {}", least(tuned, &sizes))?;
    if let Some(fidelity) = &tuned.fidelity {
        let (same, all) = (fidelity.same_address, fidelity.allocations);
        let placed = format!("the model places {same} of {} at PyTorch's addresses", number_of(all, "block"));
        match tuned.private_pools {
            0 => writeln!(out, "{placed}")?,
            _ => {
                let reserved = bytes_among(fidelity.peak_reserved, &sizes);
                writeln!(
                    out,
                    "with private pools, {placed} ({reserved} reserved); the replays below merge the pools"
                )?;
            }
        }
        if fidelity.lacks_limit && same < all {
            writeln!(out, "  {LACKS_LIMIT}")?;
        }
    }
    if tuned.private_pools > 0 {
        writeln!(out, "{}", not_advised(&tuned.file, tuned.private_pools))?;
    }
    writeln!(out)?;
    table(tuned, &sizes, out)?;
    if tuned.fails_by_growth {
        writeln!(out, "{}", only_delays(&tuned.file))?;
    }
    if tuned.private_pools == 0 {
        best(tuned, out)?;
    }
    if tuned.pruned > 0 {
        let pruned = number_of(tuned.pruned as u64, "pair");
        writeln!(
            out,
            "not tried: {pruned} of settings, because one setting alone needs more than PyTorch's defaults"
        )?;
    }
    if tuned.timed_out {
        let untried = tuned.tried.iter().filter(|tried| is_untried(tried));
        let untried: Vec<&str> = untried.map(|tried| tried.candidate.stack.as_str()).collect();
        let untried =
            if untried.is_empty() { String::new() } else { format!("; not tried: {}", untried.join(" ")) };
        writeln!(out, "the time ran out before all candidates were tried; --time gives more{untried}")?;
    }
    writeln!(out, "not modelled:")?;
    tuned.not_modelled.iter().try_for_each(|text| writeln!(out, "  {text}"))
}

/// Returns the reason why no settings can be recommended for a file with private pools.
pub fn not_advised(file: &str, private_pools: usize) -> String {
    let pools = number_of(private_pools as u64, "private pool");
    let share = if private_pools == 1 { "See" } else { "Share one graph pool: see" };
    format!(
        "the file has {pools} (CUDA graphs), which a replay merges: no setting can be recommended. {share} \
         `millpond-replay explain {}`",
        file_word(file)
    )
}

/// Returns the caution about a program that fails because its live memory grows.
pub fn only_delays(file: &str) -> String {
    format!(
        "live memory grows until the end of the file: another allocator only delays the failure; see \
         `millpond-replay explain {}`",
        file_word(file)
    )
}

/// Returns all sizes that the text compares. Sizes that differ have different texts.
fn sizes(tuned: &Tuned) -> Vec<u64> {
    let smallest = |tried: &Tried| tried.smallest.as_ref().map(|smallest| smallest.bytes);
    let of_rows = tuned.tried.iter().filter(|tried| !is_untried(tried));
    let of_rows = of_rows.flat_map(|tried| smallest(tried).into_iter().chain(tried.peak_without_limit));
    let bounds = [tuned.bound_host_order, tuned.bound_stream_safe];
    of_rows.chain(bounds).chain(tuned.available_bytes).collect()
}

/// Returns the least memory that any allocator needs. Private pools never share memory in the order of the
/// host's calls, because graphs replay later.
fn least(tuned: &Tuned, sizes: &[u64]) -> String {
    let (host_order, apart) = (tuned.bound_host_order, tuned.bound_stream_safe);
    let size = |bytes| bytes_among(bytes, sizes);
    if host_order == apart || tuned.private_pools > 0 {
        return size(apart);
    }
    Bounds { host_order, stream_safe: apart }.text(size)
}

/// Returns the cells of a candidate's row.
fn row(tried: &Tried, tuned: &Tuned, sizes: &[u64]) -> Vec<String> {
    let size = |bytes| bytes_among(bytes, sizes);
    let recorded = if tried.candidate.is_recorded { " (the file's)" } else { "" };
    let mut cells = vec![format!("{}{recorded}", tried.candidate.stack)];
    let unknown = || "-".to_owned();
    let cost = match tuned.capacity {
        Some(_) => {
            let fits = match tried.at_capacity {
                Some(_) => "yes",
                None if tried.timed_out => "-",
                None => "no",
            };
            cells.push(fits.to_owned());
            tried.at_capacity
        }
        None => tried.smallest.as_ref().map(|smallest| smallest.cost),
    };
    cells.push(tried.smallest.as_ref().map_or_else(unknown, |smallest| size(smallest.bytes)));
    let ratio = |ratio: Option<f64>| ratio.map_or_else(unknown, |ratio| format!("{ratio:.3}"));
    cells.push(ratio(tried.over_host_order));
    if tuned.streams > 1 {
        cells.push(ratio(tried.over_stream_safe));
    }
    match cost {
        Some(cost) => cells.extend([
            cost.stalls.to_string(),
            cost.driver_calls.to_string(),
            format!("{:.1}", cost.driver_ns as f64 / 1e6),
        ]),
        None => cells.extend([(); 3].map(|()| unknown())),
    }
    cells.push(tried.peak_without_limit.map_or_else(unknown, size));
    cells
}

/// Returns whether the time was over before the candidate's first replay.
fn is_untried(tried: &Tried) -> bool {
    tried.timed_out && tried.at_capacity.is_none() && tried.peak_without_limit.is_none()
}

fn table(tuned: &Tuned, sizes: &[u64], out: &mut impl Write) -> io::Result<()> {
    let mut head = vec!["settings"];
    if tuned.capacity.is_some() {
        head.push("fits");
    }
    head.extend(["smallest", "/ least"]);
    if tuned.streams > 1 {
        head.push("/ apart");
    }
    head.extend(["stalls", "calls", "driver ms", "without limit"]);
    let mut rows: Vec<Vec<String>> = vec![head.into_iter().map(str::to_owned).collect()];
    let with_row = tuned.tried.iter().filter(|tried| !is_untried(tried));
    rows.extend(with_row.map(|tried| row(tried, tuned, sizes)));
    let columns = rows[0].len();
    let widths: Vec<usize> =
        (0..columns).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect();
    for row in &rows {
        write!(out, "{:<width$}", row[0], width = widths[0])?;
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            write!(out, "  {cell:>width$}")?;
        }
        writeln!(out)?;
    }
    for tried in &tuned.tried {
        if let Some(failure) = &tried.failure {
            writeln!(out, "{}: {}", tried.candidate.stack, plain(failure))?;
        }
    }
    writeln!(out)
}

fn best(tuned: &Tuned, out: &mut impl Write) -> io::Result<()> {
    let is_own = |tried: &Tried| tried.candidate.family != Family::Millpond;
    if let Some(number) = tuned.best {
        let best = &tuned.tried[number];
        let allocations = number_of(tuned.allocations, "allocation");
        match tuned.allocations < SHORT {
            true => writeln!(out, "best, but the file has only {allocations}, too few to be sure:")?,
            false => writeln!(out, "best:")?,
        }
        one(best, tuned, out)?;
        if best.candidate.is_recorded {
            writeln!(
                out,
                "  the file was recorded with these settings; no others of this allocator save 1 % or more"
            )?;
        } else {
            ties(tuned, number, is_own, out)?;
            against_recorded(tuned, best, out)?;
        }
    } else {
        none(tuned, out)?;
    }
    if let Some(number) = tuned.best_of_all.filter(|_| tuned.best_of_all != tuned.best) {
        writeln!(out, "better, with millpond as the framework's allocator:")?;
        one(&tuned.tried[number], tuned, out)?;
        ties(tuned, number, |_| true, out)?;
    }
    Ok(())
}

/// Prints why no settings of the framework's own allocator are the best.
fn none(tuned: &Tuned, out: &mut impl Write) -> io::Result<()> {
    let settings = "none of the framework's own settings that were tried serves every request";
    match tuned.capacity {
        Some(capacity) if capacity < tuned.bound_host_order => {
            let sizes = [capacity, tuned.bound_host_order];
            let [capacity, needs] = sizes.map(|bytes| bytes_among(bytes, &sizes));
            writeln!(out, "no allocator can serve this file in {capacity}, because it needs {needs}")
        }
        _ if tuned.timed_out => writeln!(out, "the search found no settings in the given time"),
        Some(capacity) => writeln!(out, "{settings} in {}", format_bytes(capacity)),
        None => match tuned.available_bytes {
            Some(available) if available < tuned.bound_host_order => {
                let sizes = sizes(tuned);
                let [available, needs] =
                    [available, tuned.bound_host_order].map(|bytes| bytes_among(bytes, &sizes));
                writeln!(
                    out,
                    "no allocator makes this program fit on its device, where {available} were available \
                     when a request failed: it needs {needs}; see `millpond-replay explain {}`",
                    file_word(&tuned.file)
                )
            }
            Some(available) => {
                let available = bytes_among(available, &sizes(tuned));
                writeln!(
                    out,
                    "{settings} on the program's device, where {available} were available when a request \
                     failed"
                )
            }
            None => writeln!(out, "{settings}"),
        },
    }
}

/// Prints the needs of the file's settings, if the best settings need less.
fn against_recorded(tuned: &Tuned, best: &Tried, out: &mut impl Write) -> io::Result<()> {
    let recorded = tuned.tried.iter().find(|tried| tried.candidate.is_recorded);
    let smallest = |tried: &Tried| tried.smallest.as_ref().map(|smallest| smallest.bytes);
    let Some(sizes) = recorded.and_then(smallest).zip(smallest(best)) else { return Ok(()) };
    let sizes = [sizes.0, sizes.1];
    let [now, then] = sizes.map(|bytes| bytes_among(bytes, &sizes));
    let cost = if sizes[1] > sizes[0] { " and fewer stalls or calls" } else { "" };
    writeln!(out, "  the file's settings need {now}, these need {then}{cost}")
}

/// Names the other candidates that need as little memory as the best one, and the figures that decided.
fn ties(tuned: &Tuned, best: usize, counts: impl Fn(&Tried) -> bool, out: &mut impl Write) -> io::Result<()> {
    let near = near_least(&tuned.tried, tuned.capacity, |tried| counts(tried) && !tried.candidate.is_plain);
    let (near, best): (Vec<_>, Vec<_>) = near.into_iter().partition(|(number, _)| *number != best);
    let Some((_, least)) = best.first() else { return Ok(()) };
    let has_same = |cost: &Cost| (cost.stalls, cost.driver_calls) == (least.stalls, least.driver_calls);
    let (same, dearer): (Vec<_>, Vec<_>) = near.into_iter().partition(|(_, cost)| has_same(cost));
    let named = |candidates: &[(usize, Cost)]| {
        let names =
            candidates.iter().take(NAMES).map(|(number, _)| tuned.tried[*number].candidate.stack.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        match candidates.len().saturating_sub(NAMES) {
            0 => names,
            more => format!("{names}, and {more} more"),
        }
    };
    if !same.is_empty() {
        writeln!(out, "  as good, with as many stalls and calls: {}", named(&same))?;
    }
    // With a capacity, the table shows which candidates fit.
    if !dearer.is_empty() && tuned.capacity.is_none() {
        let dearer = named(&dearer);
        writeln!(out, "  the same memory within 1 %, but more stalls or calls: {dearer}")?;
    }
    Ok(())
}

fn one(best: &Tried, tuned: &Tuned, out: &mut impl Write) -> io::Result<()> {
    let bound = tuned.bound_host_order;
    writeln!(out, "  {}", best.line)?;
    for constraint in &best.candidate.constraints {
        writeln!(out, "  ({constraint})")?;
    }
    let Some(smallest) = &best.smallest else { return Ok(()) };
    let also = smallest.also_served.iter().copied();
    let all: Vec<u64> = also.clone().chain([smallest.bytes, bound]).chain(smallest.failed_below).collect();
    let size = |bytes| bytes_among(bytes, &all);
    let below = match smallest.failed_below {
        Some(bytes) => format!("with {}, a request fails", size(bytes)),
        None if bound == smallest.bytes => "no allocator can serve the file with less".to_owned(),
        None => {
            let (bound, page) = (size(bound), format_bytes(PAGE));
            format!("any allocator needs at least {bound}, and memory comes in pages of {page}")
        }
    };
    let also = also.map(size).collect::<Vec<_>>().join(", ");
    writeln!(
        out,
        "  replayed: every request is served with {}, and with {also}; {below}",
        size(smallest.bytes)
    )?;
    match tuned.capacity.and_then(|capacity| capacity.checked_sub(smallest.bytes)) {
        Some(rest) => {
            let rest = format_bytes(rest);
            writeln!(out, "  fits only if everything else on the device needs at most {rest}")
        }
        None => Ok(()),
    }
}
