//! A row of a log, as data.

use std::fmt;

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId, DevicePtr};

/// The call that a row records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a reader must know each kind of row")]
pub enum Action {
    /// A block was handed out.
    Allocate,
    /// A request failed.
    AllocateFailure,
    /// A block was freed.
    Free,
}

/// One row of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The number of the line in the log, counted from 1. The header is line 1.
    pub line: u64,
    /// The number of the thread.
    pub thread: u64,
    /// The recorded call.
    pub action: Action,
    /// The address of the block; [`DevicePtr::NULL`] for `(nil)`.
    pub pointer: DevicePtr,
    /// The size in bytes, as requested.
    pub bytes: u64,
    /// The stream of the call.
    pub stream: StreamKey,
    /// The requested alignment in bytes, a power of two; 256 if the log has no alignments.
    pub alignment: u64,
    /// The device, if the log records it.
    pub device: Option<DeviceId>,
    /// The number of the row, if the log records it.
    pub sequence: Option<u64>,
    /// The time in nanoseconds of a monotonic clock, if the log records it.
    pub monotonic_ns: Option<u64>,
    /// The duration of the call in nanoseconds, if the log records it.
    pub duration_ns: Option<u64>,
}

impl Event {
    /// Returns a row that has only the columns that every log has. The alignment is 256, and the other values
    /// are absent.
    pub const fn new(
        line: u64,
        thread: u64,
        action: Action,
        pointer: DevicePtr,
        bytes: u64,
        stream: StreamKey,
    ) -> Self {
        Self {
            line,
            thread,
            action,
            pointer,
            bytes,
            stream,
            alignment: ALLOCATION_ALIGNMENT,
            device: None,
            sequence: None,
            monotonic_ns: None,
            duration_ns: None,
        }
    }
}

/// The stream in a row of a log.
///
/// RMM prints the handle of a stream in hexadecimal. `0` (or `0x0`, `(nil)`) and `0x1` are the legacy default
/// stream. `0x2` is the per-thread default stream, which is a different stream on each thread. A decimal
/// number other than 0 is not a handle. It comes from a log in which streams are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a reader must know each kind of stream")]
pub enum StreamKey {
    /// The legacy default stream.
    Legacy,
    /// The per-thread default stream of the row's thread.
    PerThread,
    /// Any other stream, given by its handle.
    Handle(u64),
    /// A stream, given by its number in the log.
    Number(u64),
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Legacy => f.write_str("0"),
            Self::PerThread => f.write_str("0x2"),
            Self::Handle(handle) => write!(f, "{handle:#x}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}
