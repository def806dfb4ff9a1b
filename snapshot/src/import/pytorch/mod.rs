//! PyTorch's memory snapshots, which `torch.cuda.memory._dump_snapshot` writes, from every version since 2.0.
//! millpond writes snapshots in the same form.
//!
//! A snapshot has a state: the segments and blocks at one moment. Most snapshots also have a trace: the
//! events before that moment. A block that was live before the trace shows in one of two ways: its first
//! event is a free, or it is in the state and has no event. The blocks that are live after the last event
//! must equal the blocks in the state.

mod device;
mod entry;
mod gaps;
mod phases;
mod row;
mod stacks;
mod start;
mod state;
mod traceback;
mod walk;

use super::options::Options;
use super::pickle::{Kind, Value, Values};
use super::refusal::Refusal;
use crate::budget::Budget;
use crate::recording::{Event, EventKind, Recording, Source};

use device::Device;
use gaps::Facts;
use phases::Phases;
use stacks::Stacks;
use start::Start;
use state::{Segment, State};
use walk::Walk;

/// The most devices in a snapshot that are examined.
const MAX_DEVICES: usize = 128;

/// The parts of a snapshot, as values of the pickle.
struct Parts {
    segments: Value,
    traces: Option<Value>,
    annotations: Option<Value>,
    settings: Option<Value>,
    has_host: bool,
}

/// Reads a snapshot from the values of a pickle.
///
/// # Errors
/// The pickle is not a snapshot, has no memory of the requested device, or needs too much memory.
pub(super) fn import(
    name: &str,
    values: &Values,
    root: Value,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let parts = parts(values, root)?;
    let devices = devices(values, &parts);
    let device = choose(&devices, options.device)?;
    let mut recording = Recording::new(name, Source::PYTORCH);
    recording.device = u32::try_from(device.ordinal).ok();
    settings(values, parts.settings, &mut recording);

    let mut stacks = Stacks::new();
    let state = state::read(values, parts.segments, device.ordinal, &mut stacks, &mut recording, budget)?;
    let trace = parts.traces.and_then(|traces| values.items(traces).nth(device.ordinal as usize));
    let mut start = Start::default();
    for entry in trace.into_iter().flat_map(|trace| entry::entries(values, trace)) {
        start.note(entry, budget)?;
    }
    let phases = Phases::read(values, parts.annotations, device.ordinal, &mut recording, budget)?;
    let segments = start.segments(&state, budget)?;
    let blocks = blocks_before(&start, &state, budget)?;

    let pending = state.blocks.iter().filter(|block| block.is_pending).count() as u64;
    // If no block became free in the trace, all blocks that the program freed must still be waiting at its
    // end.
    let knows_completions = start.completed > 0 || start.requested <= pending;
    let facts = Facts {
        has_phases: !phases.is_empty(),
        has_host: parts.has_host,
        early_blocks: blocks.len() as u64,
        early_bytes: blocks.iter().fold(0, |sum, block| sum.saturating_add(block.event.bytes)),
        freed_blocks: start.freed_blocks().count() as u64,
        knows_completions,
        ..Facts::default()
    };
    let mut walk = Walk::new(values, &state, recording, stacks, phases, knows_completions, budget);
    for segment in segments {
        let Segment { address, bytes, stack, is_expandable, .. } = segment;
        let kind = if is_expandable { EventKind::SegmentMap } else { EventKind::SegmentAllocate };
        walk.before(Event { address, bytes, stack, ..Event::new(kind) }, segment.stream)?;
    }
    for block in &blocks {
        walk.before(block.event, block.stream)?;
    }
    for block in blocks.iter().filter(|block| block.is_pending) {
        walk.before(Event { kind: EventKind::FreeRequested, ..block.event }, block.stream)?;
    }
    if gaps::has_wrapped(&start, &facts) {
        walk.before(Event::new(EventKind::Lost), 0)?;
    }
    for entry in trace.into_iter().flat_map(|trace| entry::entries(values, trace)).flatten() {
        walk.entry(entry)?;
    }
    let Walk { mut recording, unknown, out_of_memory, .. } = walk.finish()?;
    let facts = Facts { out_of_memory, ..facts };
    gaps::describe(&mut recording, &start, &state, &facts, &unknown, &devices, device.ordinal);
    Ok(recording)
}

/// Finds the parts of a snapshot in a pickle.
fn parts(values: &Values, root: Value) -> Result<Parts, Refusal> {
    // PyTorch 1.x wrote only the list of segments.
    if root.is_list() && state::devices(values, root).next().is_some() {
        return Ok(Parts {
            segments: root,
            traces: None,
            annotations: None,
            settings: None,
            has_host: false,
        });
    }
    let Some(segments) = values.get(root, "segments").filter(|list| list.is_list()) else {
        return Err(Refusal::new(format!(
            "is a pickle, but not a PyTorch memory snapshot: {}; write one with \
             torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")",
            described(values, root)
        )));
    };
    let list = |key| values.get(root, key).filter(|list| list.is_list());
    Ok(Parts {
        segments,
        traces: list("device_traces"),
        annotations: list("external_annotations"),
        settings: values.get(root, "allocator_settings"),
        has_host: list("host_segments").is_some_and(|list| values.items(list).next().is_some()),
    })
}

/// Describes the content of a pickle that is not a snapshot, for the error.
fn described(values: &Values, root: Value) -> String {
    match values.kind(root) {
        Kind::Dict(_) => {
            let keys = values.pairs(root).filter_map(|(key, _)| values.as_text(key));
            let keys: Vec<String> =
                keys.take(5).map(|key| key.chars().take(30).flat_map(char::escape_debug).collect()).collect();
            match keys.as_slice() {
                [] => "it holds a dictionary without the key `segments`".to_owned(),
                keys => format!("it holds a dictionary with the keys {}", keys.join(", ")),
            }
        }
        Kind::List(_) => "it holds a list".to_owned(),
        Kind::Text(_) => "it holds a string".to_owned(),
        Kind::None => "it holds only None".to_owned(),
        Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) => "it holds a number".to_owned(),
    }
}

/// Returns the devices that occur in a snapshot, in the order of their ordinals.
fn devices(values: &Values, parts: &Parts) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    let mut add = |ordinal: u64, entries: u64, segment_bytes: u64| {
        let at = match devices.binary_search_by_key(&ordinal, |device| device.ordinal) {
            Ok(at) => at,
            Err(_) if devices.len() >= MAX_DEVICES => return,
            Err(at) => {
                devices.insert(at, Device { ordinal, ..Device::default() });
                at
            }
        };
        devices[at].entries += entries;
        devices[at].segment_bytes = devices[at].segment_bytes.saturating_add(segment_bytes);
    };
    state::devices(values, parts.segments).for_each(|(ordinal, bytes)| add(ordinal, 0, bytes));
    let traces = parts.traces.into_iter().flat_map(|traces| values.items(traces)).take(MAX_DEVICES);
    for (ordinal, trace) in traces.enumerate() {
        match values.len(trace) {
            0 => {}
            entries => add(ordinal as u64, entries, 0),
        }
    }
    if devices.len() > 1 {
        for device in &mut devices {
            let trace = parts.traces.and_then(|traces| values.items(traces).nth(device.ordinal as usize));
            let entries = trace.into_iter().flat_map(|trace| entry::entries(values, trace)).flatten();
            device.failures = entries.filter(|entry| entry.action == entry::Action::Oom).count() as u64;
        }
    }
    devices
}

/// Returns the device to import: the requested device, or else the busiest device. Devices on which a request
/// failed come first.
fn choose(devices: &[Device], wanted: Option<u32>) -> Result<Device, Refusal> {
    let busiest = devices.iter().copied().max_by_key(|device| {
        let has_failed = device.failures > 0;
        (has_failed, device.entries, device.segment_bytes, std::cmp::Reverse(device.ordinal))
    });
    let Some(wanted) = wanted else {
        return busiest.ok_or_else(|| {
            Refusal::new(
                "is a snapshot without memory: it has no segment and no event of any device; take the \
                 snapshot while the program holds memory, after torch.cuda.memory._record_memory_history()",
            )
        });
    };
    devices.iter().copied().find(|device| device.ordinal == u64::from(wanted)).ok_or_else(|| {
        let ordinals: Vec<String> = devices.iter().map(|device| device.ordinal.to_string()).collect();
        Refusal::new(format!(
            "has no memory of device {wanted}, only of device {}; choose another device with --device",
            ordinals.join(", ")
        ))
    })
}

/// A block that is older than the trace.
struct EarlyBlock {
    event: Event,
    stream: u64,
    /// Whether the program freed the block before the trace, so that it only waits for other streams.
    is_pending: bool,
}

/// Returns the blocks that were live when the trace began, in the order of addresses.
fn blocks_before(start: &Start, state: &State, budget: &mut Budget) -> Result<Vec<EarlyBlock>, Refusal> {
    let mut blocks = Vec::new();
    for block in start.freed_blocks() {
        budget.take(2 * size_of::<EarlyBlock>())?;
        let event = Event { address: block.address, bytes: block.bytes, ..Event::new(EventKind::Allocate) };
        blocks.push(EarlyBlock { event, stream: block.stream, is_pending: false });
    }
    for block in state.blocks.iter().filter(|block| !start.mentions(block.address)) {
        budget.take(2 * size_of::<EarlyBlock>())?;
        let event = Event {
            address: block.address,
            bytes: block.bytes,
            stack: block.stack,
            ..Event::new(EventKind::Allocate)
        };
        blocks.push(EarlyBlock { event, stream: block.stream, is_pending: block.is_pending });
    }
    blocks.sort_unstable_by_key(|block| block.event.address);
    Ok(blocks)
}

/// Reads `allocator_settings`.
fn settings(values: &Values, settings: Option<Value>, recording: &mut Recording) {
    /// The most settings that are kept; PyTorch 2.11 has nine.
    const MOST: usize = 64;
    for (key, value) in settings.into_iter().flat_map(|settings| values.pairs(settings)).take(MOST) {
        let Some(key) = values.as_text(key) else { continue };
        let text = |value| match values.kind(value) {
            Kind::None => "None".to_owned(),
            Kind::Bool(value) => (if value { "True" } else { "False" }).to_owned(),
            Kind::Int(number) => number.to_string(),
            Kind::Float(number) => number.to_string(),
            _ => values.as_text(value).unwrap_or("").chars().take(1000).collect(),
        };
        let value = if value.is_dict() {
            let pairs = values.pairs(value).take(MOST);
            pairs.map(|(key, value)| format!("{}:{}", text(key), text(value))).collect::<Vec<_>>().join(",")
        } else {
            text(value)
        };
        recording.setting(&key.chars().take(100).collect::<String>(), &value);
        if key == "millpond" {
            // millpond writes the stacks of its resources under this key.
            Source::MILLPOND.clone_into(&mut recording.source.format);
        }
    }
}
