//! Lists the data that a snapshot lacks.

use millpond_engine::text::{number_of, readable_bytes};

use super::device::Device;
use super::start::Start;
use super::state::State;
use crate::import::left_out::left_out;
use crate::recording::{Recording, Source};

/// The program that wrote a snapshot.
struct Writer {
    name: &'static str,
    /// The two code lines that make it record events.
    how_to_record: &'static str,
    /// The memory that its snapshots do not show.
    others: &'static str,
}

const PYTORCH: Writer = Writer {
    name: "PyTorch",
    how_to_record: concat!(
        "to record, run ",
        "torch.cuda.memory._record_memory_history(max_entries=1000000, stacks=\"python\") ",
        "before the model is made, and torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") at the end"
    ),
    others: "memory outside PyTorch's caching allocator is not in a snapshot: the CUDA context, NCCL, \
             libraries with their own allocator, cudaMallocAsync, other processes",
};

const MILLPOND: Writer = Writer {
    name: "millpond",
    how_to_record: "to record, run millpond.record_memory_history(max_entries=1000000) before the first \
                    allocation, and millpond.memory_snapshot(\"snapshot.pickle\") at the end",
    others: "memory outside millpond's stack is not in a snapshot: the CUDA context, NCCL, libraries with \
             their own allocator, other processes",
};

fn writer(recording: &Recording) -> &'static Writer {
    if recording.source().format == Source::MILLPOND { &MILLPOND } else { &PYTORCH }
}

/// Facts that the importer found, in addition to the trace and the state.
#[derive(Default, Debug)]
pub(super) struct Facts {
    pub(super) has_phases: bool,
    pub(super) has_host: bool,
    /// The blocks that were live when the trace began.
    pub(super) early_blocks: u64,
    pub(super) early_bytes: u64,
    /// How many of these blocks the trace freed.
    pub(super) freed_blocks: u64,
    pub(super) out_of_memory: u64,
    /// Whether the trace shows when blocks became free, in addition to when the program freed them.
    pub(super) knows_completions: bool,
}

/// Adds the details of the source, and the data that it lacks, to a recording.
pub(super) fn describe(
    recording: &mut Recording,
    start: &Start,
    state: &State,
    facts: &Facts,
    unknown: &[(String, u64)],
    devices: &[Device],
    chosen: u64,
) {
    recording.detail("trace entries", start.entries);
    recording.detail("segments in the state", state.segments.len());
    recording.detail("blocks in use in the state", state.blocks.len());
    trace(recording, start, facts);
    for (name, count) in unknown {
        let which = format!("with the unknown action `{name}`");
        recording.unknown("unknown_action", left_out(*count, "trace event", &which));
    }
    let malformed = start.malformed + state.malformed + state.unknown_states;
    if malformed > 0 {
        let which = format!("that {} never writes (event, segment or block)", writer(recording).name);
        recording.unknown("malformed_entries", left_out(malformed, "item", &which));
    }
    if start.odd_segments > 0 {
        let text = format!(
            "{} cannot be true together with the memory state in the file, so reserved memory is uncertain",
            number_of(start.odd_segments, "segment event")
        );
        recording.unknown("odd_segments", text);
    }
    let others = devices.iter().filter(|device| device.ordinal != chosen);
    for Device { ordinal, entries, segment_bytes, failures } in others {
        let bytes = readable_bytes(*segment_bytes);
        let failed = match failures {
            0 => String::new(),
            failures => format!(", {}", number_of(*failures, "failed request")),
        };
        let noun = if *entries == 1 { "entry" } else { "entries" };
        let text = format!(
            "device {ordinal} is also in the file ({entries} {noun}, {bytes} reserved{failed}), but was left \
             out; `explain --device {ordinal}` shows it"
        );
        recording.unknown("other_device", text);
    }
    if facts.has_host {
        recording.unknown("host_memory", "pinned host memory in the file is not imported");
    }
    recording.unknown("other_allocators", writer(recording).others);
    recording.unknown("threads", "a snapshot does not record which thread made a call");
    if recording.stream_count() > 1 {
        recording.unknown(
            "stream_order",
            "a snapshot does not record which other streams used a block, nor how the streams are ordered: \
             each free counts on the stream of its allocation",
        );
    }
}

/// Lists the data that the trace lacks.
fn trace(recording: &mut Recording, start: &Start, facts: &Facts) {
    let &Facts { early_blocks, early_bytes, .. } = facts;
    let early = format!("{} ({})", number_of(early_blocks, "block"), readable_bytes(early_bytes));
    let entries = start.entries;
    let &Writer { name, how_to_record, .. } = writer(recording);
    if entries == 0 {
        let text = format!(
            "the file has no trace, only the state of memory with {early} live: the order of allocations and \
             the freed blocks are not known; {how_to_record}"
        );
        recording.unknown("no_trace", text);
        return;
    }
    if entries == 1 && early_blocks > 1 {
        let text = format!(
            "the trace has only one entry, as with enabled=\"state\": {early} were live before this entry, \
             and their history is not known; {how_to_record}"
        );
        recording.unknown("no_trace", text);
    } else if has_wrapped(start, facts) {
        let text = format!(
            "the trace begins with {early} live, and has exactly {entries} entries, so {name} probably \
             overwrote earlier events; record with a larger max_entries"
        );
        recording.unknown("ring_wrapped", text);
    } else if early_blocks > 0 {
        let text = format!(
            "the trace begins with {early} live; their allocations and all earlier frees are not known, \
             because recording began late or {name} overwrote earlier events"
        );
        recording.unknown("began_late", text);
    }
    if !facts.knows_completions {
        recording.unknown(
            "no_completions",
            "the trace has no free_completed events: a block counts as free when the program frees it, even \
             if other streams still use it",
        );
    } else if start.requested == 0 && start.completed > 1 {
        recording.unknown(
            "no_requests",
            "the trace has no free_requested events, so it is not known how long record_stream held blocks",
        );
    }
    let known = entries - start.malformed;
    if start.with_time < known {
        let text = format!("{} of {entries} entries have no time", known - start.with_time);
        let more = if facts.has_phases { "; their phases follow from the other entries" } else { "" };
        recording.unknown("no_times", text + more);
    }
    if start.with_stack < known {
        let text = format!("{} of {entries} entries have no call stack", known - start.with_stack);
        recording.unknown("no_stacks", text);
    }
    if facts.out_of_memory > 0 {
        recording.detail("requests that failed", facts.out_of_memory);
    }
}

/// Returns whether the ring buffer of the trace was probably full, so that earlier events are lost.
pub(super) fn has_wrapped(start: &Start, facts: &Facts) -> bool {
    facts.freed_blocks > 0 && is_round(start.entries)
}

/// Returns whether a person would choose this number as a limit: two digits followed by zeros, or a power of
/// two.
fn is_round(number: u64) -> bool {
    let mut digits = number;
    while digits >= 100 && digits.is_multiple_of(10) {
        digits /= 10;
    }
    number >= 100 && (digits < 100 || number.is_power_of_two())
}
