//! Prints the result of `tune`.

use std::io::{self, Write};

use millpond_core::format_bytes;
use millpond_engine::text::{number_of, plain};

use super::attempt::PAGE;
use super::{Tried, Tuned};
use crate::fidelity::LACKS_LIMIT;
use crate::placement::Bounds;

/// Prints the result for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn print(tuned: &Tuned, out: &mut impl Write) -> io::Result<()> {
    let Tuned { file, format, allocations, streams, .. } = tuned;
    let (allocations, streams) =
        (number_of(*allocations, "allocation"), number_of(*streams as u64, "stream"));
    writeln!(out, "{}: {}, {allocations}, {streams}", plain(file), plain(format))?;
    let (host_order, stream_safe) = (tuned.bound_host_order, tuned.bound_stream_safe);
    writeln!(out, "any allocator needs at least {}", Bounds { host_order, stream_safe })?;
    if let Some(fidelity) = &tuned.fidelity {
        let (same, all) = (fidelity.same_address, fidelity.allocations);
        writeln!(out, "the model places {same} of {} at PyTorch's addresses", number_of(all, "block"))?;
        if fidelity.lacks_limit && same < all {
            writeln!(out, "  {LACKS_LIMIT}")?;
        }
    }
    writeln!(out)?;
    table(tuned, out)?;
    best(tuned, out)?;
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

/// Returns the cells of a candidate's row.
fn row(tried: &Tried, tuned: &Tuned) -> Vec<String> {
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
    cells.push(tried.smallest.as_ref().map_or_else(unknown, |smallest| format_bytes(smallest.bytes)));
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
    cells.push(tried.peak_without_limit.map_or_else(unknown, format_bytes));
    cells
}

/// Returns whether the time was over before the candidate's first replay.
fn is_untried(tried: &Tried) -> bool {
    tried.timed_out && tried.at_capacity.is_none() && tried.peak_without_limit.is_none()
}

fn table(tuned: &Tuned, out: &mut impl Write) -> io::Result<()> {
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
    let has_row = |tried: &&Tried| !is_untried(tried);
    rows.extend(tuned.tried.iter().filter(has_row).map(|tried| row(tried, tuned)));
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
    let of = |number: Option<usize>| number.map(|number| &tuned.tried[number]);
    if let Some(best) = of(tuned.best) {
        writeln!(out, "best:")?;
        one(best, tuned.bound_host_order, out)?;
        if best.candidate.is_recorded {
            writeln!(out, "  the file was recorded with these settings; no other settings save 1 % or more")?;
        } else if let Some(recorded) = tuned.tried.iter().find(|tried| tried.candidate.is_recorded)
            && let (Some(now), Some(then)) = (&recorded.smallest, &best.smallest)
        {
            let (now, then) = (format_bytes(now.bytes), format_bytes(then.bytes));
            writeln!(out, "  the file's settings need {now}, these need {then}")?;
        }
    } else {
        match tuned.capacity {
            Some(capacity) if capacity < tuned.bound_host_order => {
                writeln!(out, "no allocator can serve this file in {}", format_bytes(capacity))?;
            }
            _ if tuned.timed_out => writeln!(out, "the search found no settings in the given time")?,
            Some(capacity) => {
                let settings = "none of the framework's own settings that were tried serves every request in";
                writeln!(out, "{settings} {}", format_bytes(capacity))?;
            }
            None => {
                writeln!(out, "none of the framework's own settings that were tried serves every request")?
            }
        }
    }
    if let Some(best) = of(tuned.best_of_all).filter(|_| tuned.best_of_all != tuned.best) {
        writeln!(out, "better, with millpond as the framework's allocator:")?;
        one(best, tuned.bound_host_order, out)?;
    }
    Ok(())
}

fn one(best: &Tried, bound: u64, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "  {}", best.line)?;
    for constraint in &best.candidate.constraints {
        writeln!(out, "  ({constraint})")?;
    }
    let Some(smallest) = &best.smallest else { return Ok(()) };
    let also: Vec<String> = smallest.also_served.iter().map(|bytes| format_bytes(*bytes)).collect();
    let below = smallest.failed_below.map_or_else(
        || match bound == smallest.bytes {
            true => "no allocator can serve the file with less".to_owned(),
            false => {
                format!(
                    "any allocator needs at least {}, and memory comes in pages of {}",
                    format_bytes(bound),
                    format_bytes(PAGE)
                )
            }
        },
        |bytes| format!("with {}, a request fails", format_bytes(bytes)),
    );
    let bytes = format_bytes(smallest.bytes);
    writeln!(out, "  replayed: every request is served with {bytes}, and with {}; {below}", also.join(", "))
}
