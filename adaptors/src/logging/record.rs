use std::time::Instant;

use millpond_core::{DevicePtr, Layout, StreamRef};

use super::row::Action;
use super::{clock, thread};

/// What a row says that the adaptor knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) action: Action,
    pub(super) ptr: DevicePtr,
    pub(super) layout: Layout,
    pub(super) stream: StreamRef,
    pub(super) duration_ns: Option<u64>,
}

/// An entry with its thread and its time, small: what is left to do is text, which any thread can make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) nanoseconds_since_1970: u64,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    /// Zero without the further columns.
    pub(super) monotonic_ns: u64,
    /// Zero without the further columns, and of a free, which has none.
    pub(super) duration_ns: u64,
    pub(super) thread: u32,
    pub(super) action: Action,
    alignment_log2: u8,
}

impl Record {
    /// To be called under the lock that orders the rows, so that they are in order of time. `opened` is there
    /// if the further columns are written.
    #[inline]
    pub(super) fn now(entry: Entry, opened: Option<Instant>) -> Self {
        let Entry { action, ptr, layout, stream, duration_ns } = entry;
        Self {
            nanoseconds_since_1970: clock::now(),
            ptr,
            bytes: layout.bytes(),
            stream: stream.handle(),
            monotonic_ns: opened.map_or(0, nanoseconds_since),
            duration_ns: duration_ns.unwrap_or(0),
            thread: thread::id(),
            action,
            alignment_log2: layout.alignment().trailing_zeros() as u8,
        }
    }

    pub(super) fn alignment(&self) -> u64 {
        1 << self.alignment_log2
    }
}

pub(super) fn nanoseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
