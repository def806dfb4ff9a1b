//! SQLite exports from Nsight Systems: the memory that a process allocated from the CUDA driver.
//!
//! The export has the table `CUDA_GPU_MEMORY_USAGE_EVENTS` if the program ran under `nsys profile
//! --cuda-memory-usage=true`. Its columns, and the numbers of the kinds of events, vary between versions. So
//! the reader looks up kinds by their labels.

mod chains;
mod table;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use millpond_engine::log::StreamKey;
use millpond_engine::text::number_of;

use super::left_out::left_out;
use super::options::Options;
use super::refusal::Refusal;
use crate::budget::Budget;
use crate::recording::{Clock, Event, EventKind, Id, Lane, Recording};

use table::{Database, PROFILE_AGAIN, Row};

/// The bytes of a map entry, including the entry's share of the map's free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// Reads the export at `path`.
///
/// # Errors
/// The database cannot be read, is not such an export, or has no memory events whose order is known.
pub(super) fn import(
    path: &Path,
    name: &str,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let database = Database::open(path)?;
    let table::Table { mut rows, kinds, has_streams } = database.rows(budget)?;
    if rows.is_empty() {
        return Err(Refusal::new(format!(
            "is an Nsight Systems export without GPU memory events; {PROFILE_AGAIN}"
        )));
    }
    let frees = rows.iter().filter(|row| !row.is_allocation).count();
    if rows.len() > 1 && rows.iter().all(|row| row.start == 0) {
        return Err(Refusal::new(
            "is an Nsight Systems export in which all memory events have the time 0, as under WSL, so the \
             order of the events is unknown; profile on Linux",
        ));
    }
    let mut recording = Recording::new(name, "Nsight Systems export");
    recording.clock = Clock::Monotonic;
    let device = choose(&mut recording, &mut rows, options.device)?;
    let host = rows.len();
    rows.retain(|row| !kinds.get(&row.kind).is_some_and(|kind| table::is_of_host(kind)));
    let host = host - rows.len();
    // Rows with the same time keep the order of the table.
    rows.sort_by_key(|row| row.start);
    recording.device = u32::try_from(device).ok();
    recording.detail("memory events", rows.len());
    if rows.is_empty() {
        return Err(Refusal::new(
            "is an Nsight Systems export with memory events of the host only, so there is no GPU memory to \
             import",
        ));
    }
    let stacks = chains::stacks(&database, &rows, &mut recording, budget)?;
    events(&mut recording, &rows, &kinds, &stacks, budget)?;
    if host > 0 {
        recording.unknown("host_memory", left_out(host as u64, "event", "of host memory"));
    }
    if frees == 0 {
        recording.unknown("no_frees", "the export shows no deallocations, so blocks seem live until the end");
    }
    if !has_streams {
        recording.unknown(
            "streams",
            "the export does not name the streams, so all events count as events of one stream",
        );
    }
    recording.unknown(
        "pools",
        "the export shows only memory that the process allocated from the driver: blocks inside the pools of \
         PyTorch, RMM or CuPy are missing",
    );
    if stacks.is_empty() {
        let text = "the export shows no call stacks for memory events: profile with `--cudabacktrace=memory`";
        recording.unknown("stacks", text);
    }
    Ok(recording)
}

/// Keeps the rows of one device and one process. The device is the requested one, or else the busiest one.
fn choose(recording: &mut Recording, rows: &mut Vec<Row>, wanted: Option<u32>) -> Result<u64, Refusal> {
    let mut devices: HashMap<u64, u64> = HashMap::default();
    rows.iter().for_each(|row| *devices.entry(row.device).or_default() += 1);
    let busiest = |counts: &HashMap<u64, u64>| {
        counts.iter().max_by_key(|&(id, count)| (*count, std::cmp::Reverse(*id))).map_or(0, |(id, _)| *id)
    };
    let device = wanted.map_or_else(|| busiest(&devices), u64::from);
    let all = rows.len();
    rows.retain(|row| row.device == device);
    if rows.is_empty() {
        let mut others: Vec<u64> = devices.into_keys().take(16).collect();
        others.sort_unstable();
        let others: Vec<String> = others.iter().map(u64::to_string).collect();
        let others = others.join(", ");
        return Err(Refusal::new(format!(
            "has no events of device {device}, only of device {others}; choose another device with --device"
        )));
    }
    if rows.len() < all {
        let text = format!(
            "{}; `explain --device N` shows a device other than {device}",
            left_out((all - rows.len()) as u64, "event", "of other devices")
        );
        recording.unknown("other_device", text);
    }
    let mut processes: HashMap<u64, u64> = HashMap::default();
    rows.iter().for_each(|row| *processes.entry(row.process).or_default() += 1);
    let process = busiest(&processes);
    let of_device = rows.len();
    rows.retain(|row| row.process == process);
    if rows.len() < of_device {
        let others = (of_device - rows.len()) as u64;
        recording.unknown("other_process", left_out(others, "event", "of other processes"));
    }
    // Nsight Systems stores the process number in these bits.
    recording.detail("process", process / 0x100_0000 % 0x100_0000);
    Ok(device)
}

/// Adds the events. If a deallocation has no size, it gets the size of the allocation.
fn events(
    recording: &mut Recording,
    rows: &[Row],
    kinds: &HashMap<i64, String>,
    stacks: &HashMap<i64, Id>,
    budget: &mut Budget,
) -> Result<(), Refusal> {
    let mut live: HashMap<(u64, u64), u64> = HashMap::default();
    let mut before: HashSet<(u64, u64)> = HashSet::default();
    let mut early = Vec::new();
    for row in rows {
        let key = (row.context, row.address);
        budget.take(MAP_ENTRY_BYTES)?;
        if before.insert(key) && !row.is_allocation {
            early.push(row);
        }
    }
    let add = |row: &Row, event: Event, recording: &mut Recording, budget: &mut Budget| {
        let stream = match row.stream {
            0 | 1 => StreamKey::Legacy,
            number => StreamKey::Number(number),
        };
        let kind = kinds.get(&row.kind);
        let event = Event {
            address: row.address,
            lane: recording.add_lane(Lane { thread: row.context, stream, pool: None }, budget)?,
            tag: kind.map(|kind| recording.add_tag(kind, budget)).transpose()?,
            ..event
        };
        recording.push(event, budget).map_err(Refusal::from)
    };
    let unsized_early = early.iter().filter(|row| row.bytes.unwrap_or(0) == 0).count();
    for row in early {
        let bytes = row.bytes.unwrap_or(0);
        live.insert((row.context, row.address), bytes);
        add(row, Event { bytes, is_before: true, ..Event::new(EventKind::Allocate) }, recording, budget)?;
    }
    for row in rows {
        let key = (row.context, row.address);
        let bytes = row.bytes.filter(|&bytes| bytes > 0);
        let event = if row.is_allocation {
            let bytes = bytes.unwrap_or(0);
            live.insert(key, bytes);
            let stack = stacks.get(&row.correlation).copied();
            Event { bytes, stack, ..Event::new(EventKind::Allocate) }
        } else {
            let known = live.remove(&key).or(bytes).unwrap_or(0);
            Event { bytes: known, ..Event::new(EventKind::Free) }
        };
        add(row, Event { raw_time: row.start, ..event }, recording, budget)?;
    }
    if unsized_early > 0 {
        let blocks = number_of(unsized_early as u64, "block");
        recording.unknown("no_sizes", format!("the size of {blocks} from before the profile is not known"));
    }
    Ok(())
}
