//! A row of a log as data.

use std::fmt;

use millpond_core::{DeviceId, DevicePtr};

/// The call that a row records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
pub struct Event {
    /// The line in the log, counted from 1; the header is line 1.
    pub line: u64,
    /// The thread's number.
    pub thread: u64,
    /// The call.
    pub action: Action,
    /// The block's address; [`DevicePtr::NULL`] for `(nil)`.
    pub pointer: DevicePtr,
    /// The size in bytes, as requested.
    pub bytes: u64,
    /// The stream.
    pub stream: StreamKey,
    /// The requested alignment in bytes: a power of two, 256 if the log has none.
    pub alignment: u64,
    /// The device, if the log has it.
    pub device: Option<DeviceId>,
    /// The row's number, if the log has it.
    pub sequence: Option<u64>,
    /// The time in nanoseconds of a monotonic clock, if the log has it.
    pub monotonic_ns: Option<u64>,
    /// The duration of the call in nanoseconds, if the log has it.
    pub duration_ns: Option<u64>,
}

/// The stream in a row.
///
/// RMM prints a stream's handle in hexadecimal. `0` (or `0x0`, `(nil)`) and `0x1` are the legacy default
/// stream. `0x2` is the per-thread default stream, a different stream on each thread. A decimal number other
/// than 0 is not a handle: it comes from logs with numbered streams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamKey {
    /// The legacy default stream.
    Legacy,
    /// The per-thread default stream of the row's thread.
    PerThread,
    /// Any other stream, by its handle.
    Handle(u64),
    /// A numbered stream.
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
