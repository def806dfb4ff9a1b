//! A row in binary form, before it is formatted.

use std::time::Instant;

use millpond_core::{DevicePtr, Layout, StreamRef};

use super::row::Action;
use super::{clock, thread};

/// The part of a row that the adaptor knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) action: Action,
    pub(super) ptr: DevicePtr,
    pub(super) layout: Layout,
    pub(super) stream: StreamRef,
    pub(super) duration_ns: Option<u64>,
    /// The number from [`Journal::device_number`](super::journal::Journal::device_number).
    pub(super) device: u16,
}

/// An entry with its thread and its time, in a small form that any thread can format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) nanoseconds_since_1970: u64,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    /// Zero without the extended columns.
    pub(super) monotonic_ns: u64,
    /// The duration of the call in nanoseconds; zero without the extended columns, and for a free.
    pub(super) duration_ns: u64,
    /// The number of the row; zero until it has one.
    pub(super) number: u64,
    pub(super) thread: u32,
    pub(super) device: u16,
    pub(super) action: Action,
    alignment_log2: u8,
}

/// The wall time and the monotonic time of a row.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Times {
    nanoseconds_since_1970: u64,
    monotonic_ns: u64,
}

/// If a row's time lies this many nanoseconds or more before the last row's time, the system's clock counts
/// as set back.
const SET_BACK: u64 = 1_000_000_000;

impl Record {
    /// `opened` is set if the extended columns are written.
    #[inline]
    pub(super) fn now(entry: Entry, opened: Option<Instant>) -> Self {
        let Entry { action, ptr, layout, stream, duration_ns, device } = entry;
        Self {
            nanoseconds_since_1970: clock::now(),
            ptr,
            bytes: layout.bytes(),
            stream: stream.handle(),
            monotonic_ns: opened.map_or(0, nanoseconds_since),
            duration_ns: duration_ns.unwrap_or(0),
            number: 0,
            thread: thread::id(),
            device,
            action,
            alignment_log2: layout.alignment().trailing_zeros() as u8,
        }
    }

    /// Orders consecutive rows by time, too: a thread may be stopped between reading the clock and getting
    /// its row's number.
    #[inline]
    pub(super) fn follow(&mut self, last: &mut Times) {
        let behind = last.nanoseconds_since_1970.saturating_sub(self.nanoseconds_since_1970);
        if behind < SET_BACK {
            self.nanoseconds_since_1970 += behind;
        }
        self.monotonic_ns = self.monotonic_ns.max(last.monotonic_ns);
        let &mut Self { nanoseconds_since_1970, monotonic_ns, .. } = self;
        *last = Times { nanoseconds_since_1970, monotonic_ns };
    }

    pub(super) fn alignment(&self) -> u64 {
        1 << self.alignment_log2
    }
}

pub(super) fn nanoseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with these clock readings.
    fn record(nanoseconds_since_1970: u64, monotonic_ns: u64) -> Record {
        let (ptr, layout) = (DevicePtr::NULL, Layout::new(1));
        let (action, stream) = (Action::Free, StreamRef::LEGACY);
        let entry = Entry { action, ptr, layout, stream, duration_ns: None, device: 0 };
        Record { nanoseconds_since_1970, monotonic_ns, ..Record::now(entry, None) }
    }

    /// The size of a cache line in bytes.
    #[test]
    fn a_record_has_64_bytes() {
        assert_eq!(size_of::<Record>(), 64);
    }

    #[test]
    fn rows_that_overtake_each_other_are_in_order_of_time() {
        let mut last = Times::default();
        let mut follow = |nanoseconds, monotonic| {
            let mut record = record(nanoseconds, monotonic);
            record.follow(&mut last);
            (record.nanoseconds_since_1970, record.monotonic_ns)
        };
        assert_eq!(follow(5000, 5), (5000, 5));
        assert_eq!(follow(4000, 3), (5000, 5));
        assert_eq!(follow(6000, 6), (6000, 6));
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let mut last = Times { nanoseconds_since_1970: 7 * SET_BACK, monotonic_ns: 1 };
        let mut record = record(5 * SET_BACK, 2);
        record.follow(&mut last);
        assert_eq!(record.nanoseconds_since_1970, 5 * SET_BACK);
        assert_eq!(last.nanoseconds_since_1970, 5 * SET_BACK);
    }
}
