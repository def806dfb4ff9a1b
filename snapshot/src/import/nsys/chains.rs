//! The call chains of an export. They show which code called the driver for memory (`nsys profile
//! --cudabacktrace`).
//!
//! A memory event names a call of the CUDA API by the call's correlation number. The call names a chain. The
//! chain has a symbol and a module for each depth. Both are numbers of strings.

use std::collections::{HashMap, HashSet};

use super::table::{Database, Row};
use crate::budget::Budget;
use crate::import::refusal::Refusal;
use crate::recording::{Frame, Id, Recording};

const CALLS: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
const CHAINS: &str = "CUDA_CALLCHAINS";
const STRINGS: &str = "StringIds";

/// The bytes of a map entry, including the entry's share of the map's free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// The most characters of a name that are kept.
const MOST_CHARS: usize = 500;

/// A frame of a chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Link {
    chain: i64,
    depth: i64,
    symbol: i64,
    module: i64,
}

/// Returns the call stacks of the calls that the rows name, by the call's correlation number. The result is
/// empty if the export has no chains.
///
/// # Errors
/// A table cannot be read, or the budget is used up.
pub(super) fn stacks(
    database: &Database,
    rows: &[Row],
    recording: &mut Recording,
    budget: &mut Budget,
) -> Result<HashMap<i64, Id>, Refusal> {
    let mut wanted: HashSet<i64> = HashSet::default();
    for row in rows.iter().filter(|row| row.is_allocation && row.correlation != 0) {
        if wanted.insert(row.correlation) {
            budget.take(MAP_ENTRY_BYTES)?;
        }
    }
    let process = rows.first().map_or(0, |row| row.process >> 24);
    let mut calls: Vec<(i64, i64)> = Vec::new();
    database.each(
        CALLS,
        ["correlationId", "callchainId", "globalTid"],
        |[correlation, chain, thread], _| {
            let is_ours = thread == 0 || thread.cast_unsigned() >> 24 == process;
            if chain != 0 && is_ours && wanted.contains(&correlation) {
                budget.take(3 * size_of::<(i64, i64)>())?;
                calls.push((chain, correlation));
            }
            Ok(())
        },
    )?;
    calls.sort_unstable();
    let is_called = |chain: i64| {
        let at = calls.partition_point(|&(known, _)| known < chain);
        calls.get(at).is_some_and(|&(known, _)| known == chain)
    };
    let mut links: Vec<Link> = Vec::new();
    database.each(
        CHAINS,
        ["id", "stackDepth", "symbol", "module"],
        |[chain, depth, symbol, module], _| {
            if is_called(chain) {
                budget.take(3 * size_of::<Link>())?;
                links.push(Link { chain, depth, symbol, module });
            }
            Ok(())
        },
    )?;
    links.sort_unstable();
    let names = names(database, &links, budget)?;
    let mut stacks = HashMap::default();
    for chain in links.chunk_by(|a, b| a.chain == b.chain) {
        let mut frames = Vec::new();
        for link in chain {
            let name = |number| names.get(&number).map_or("", String::as_str);
            let function = Some(name(link.symbol)).filter(|name| !name.is_empty()).unwrap_or("(unnamed)");
            frames.push(recording.add_frame(Frame { function, file: name(link.module), line: 0 }, budget)?);
        }
        let stack = recording.add_stack(&frames, budget)?;
        let at = calls.partition_point(|&(known, _)| known < chain[0].chain);
        for &(_, correlation) in calls[at..].iter().take_while(|(known, _)| *known == chain[0].chain) {
            budget.take(MAP_ENTRY_BYTES)?;
            stacks.insert(correlation, stack);
        }
    }
    Ok(stacks)
}

/// Returns the strings to which the frames refer.
fn names(database: &Database, links: &[Link], budget: &mut Budget) -> Result<HashMap<i64, String>, Refusal> {
    let mut wanted: HashSet<i64> = HashSet::default();
    for number in links.iter().flat_map(|link| [link.symbol, link.module]) {
        if wanted.insert(number) {
            budget.take(MAP_ENTRY_BYTES)?;
        }
    }
    let mut names: HashMap<i64, String> = HashMap::default();
    if wanted.is_empty() {
        return Ok(names);
    }
    database.each(STRINGS, ["id", "value"], |[number, _], text| {
        if wanted.contains(&number) {
            let name: String = text.chars().take(MOST_CHARS).collect();
            budget.take(MAP_ENTRY_BYTES + name.len())?;
            names.insert(number, name);
        }
        Ok(())
    })?;
    Ok(names)
}
