//! The entries of a snapshot's trace.

use super::row::Row;
use super::state::pair;
use crate::import::pickle::{Kind, Value, Values};

/// The action of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Snapshot,
    Oom,
    Annotate,
    /// A phase, in the form that PyTorch wrote for some weeks in 2024.
    UserDefined,
    /// An unknown action.
    Unknown(Value),
}

/// An entry of the trace. Call stacks and texts are values of the pickle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) action: Action,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    /// Nanoseconds since 1970.
    pub(super) time: Option<u64>,
    pub(super) device_free: Option<u64>,
    pub(super) pool: Option<(u64, u64)>,
    pub(super) frames: Option<Value>,
    /// The forward pass that belongs to a block of the backward pass, as lines of a traceback.
    pub(super) forward: Option<Value>,
    /// Texts that the program attached to the entry.
    pub(super) texts: [Option<Value>; 3],
}

const KEYS: [&str; 12] = [
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "device_free",
    "pool_id",
    "frames",
    "forward_frames",
    "user_metadata",
    "category",
    "compile_context",
];

/// Returns the entries of a trace in order. `None` stands for an entry that PyTorch never writes.
pub(super) fn entries(values: &Values, trace: Value) -> impl Iterator<Item = Option<Entry>> + '_ {
    let mut row = Row::new(KEYS);
    values.items(trace).map(move |entry| read(values, row.of(values, entry)?))
}

fn read(values: &Values, fields: [Option<Value>; KEYS.len()]) -> Option<Entry> {
    let [
        action,
        address,
        size,
        stream,
        time,
        device_free,
        pool,
        frames,
        forward,
        metadata,
        category,
        context,
    ] = fields;
    let name = action?;
    let number = |value: Option<Value>| value.and_then(|value| values.as_u64(value));
    let action = match values.as_text(name)? {
        "alloc" => Action::Alloc,
        "free_requested" => Action::FreeRequested,
        "free_completed" => Action::FreeCompleted,
        "segment_alloc" => Action::SegmentAlloc,
        "segment_free" => Action::SegmentFree,
        "segment_map" => Action::SegmentMap,
        "segment_unmap" => Action::SegmentUnmap,
        "snapshot" => Action::Snapshot,
        "oom" => Action::Oom,
        "annotate" => Action::Annotate,
        "user_defined" => Action::UserDefined,
        _ => Action::Unknown(name),
    };
    let places = !matches!(
        action,
        Action::Snapshot | Action::Oom | Action::Annotate | Action::UserDefined | Action::Unknown(_)
    );
    let (address, bytes) = (address.and_then(|address| bits(values, address)), number(size));
    // No block is at address 0.
    if places && (address.unwrap_or(0) == 0 || bytes.is_none()) {
        return None;
    }
    Some(Entry {
        action,
        address: address.unwrap_or(0),
        bytes: bytes.unwrap_or(0),
        stream: stream.and_then(|stream| bits(values, stream)).unwrap_or(0),
        time: number(time).and_then(|micros| micros.checked_mul(1000)),
        device_free: number(device_free),
        pool: pool.and_then(|pool| pair(values, pool)),
        frames,
        forward,
        texts: [metadata, category, context],
    })
}

/// Returns the bits of an address or a handle. Some writers print it as a signed number.
fn bits(values: &Values, value: Value) -> Option<u64> {
    match values.kind(value) {
        Kind::Int(number) => {
            u64::try_from(number).ok().or_else(|| i64::try_from(number).ok().map(|n| n as u64))
        }
        _ => None,
    }
}
