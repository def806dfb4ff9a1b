use std::io;
use std::time::Instant;

use jiff::tz::TimeZone;
use millpond_core::{DeviceId, DevicePtr, Layout, Result, StreamRef};

use super::clock::Clock;
use super::row::{Action, EXTENDED_HEADER, HEADER, Row};
use super::sink::Sink;
use super::{Columns, thread};

/// What a row says, apart from what the log itself knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) action: Action,
    pub(super) ptr: DevicePtr,
    pub(super) layout: Layout,
    pub(super) stream: StreamRef,
    pub(super) duration_ns: Option<u64>,
}

/// A log that is being written. Behind the adaptor's lock, so rows are whole, numbered, and in order of time.
#[derive(Debug)]
pub(super) struct Log {
    writer: csv::Writer<Sink>,
    clock: Clock,
    opened: Instant,
    sequence: u64,
    /// There if the further columns are written.
    device: Option<DeviceId>,
}

impl Log {
    /// Writes the header.
    pub(super) fn open(sink: Sink, columns: Columns, device: DeviceId) -> io::Result<Self> {
        let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(sink);
        match columns {
            Columns::Rmm => writer.write_record(HEADER)?,
            Columns::Extended => writer.write_record(EXTENDED_HEADER)?,
        }
        writer.flush()?;
        writer.get_ref().flush_all()?;
        Ok(Self {
            writer,
            clock: Clock::new(TimeZone::system()),
            opened: Instant::now(),
            sequence: 0,
            device: (columns == Columns::Extended).then_some(device),
        })
    }

    /// Writes a row. What goes wrong is counted and reported by the sink.
    pub(super) fn write(&mut self, entry: Entry) {
        let extended = self.device.is_some();
        let row = Row {
            thread: thread::id(),
            time: self.clock.now(),
            action: entry.action,
            pointer: entry.ptr,
            size: entry.layout.bytes(),
            stream: entry.stream.handle(),
            device: self.device,
            alignment: extended.then_some(entry.layout.alignment()),
            sequence: extended.then_some(self.sequence),
            monotonic_ns: extended.then(|| nanoseconds_since(self.opened)),
            duration_ns: entry.duration_ns,
        };
        self.sequence += 1;
        let written = self.writer.serialize(row).and_then(|()| Ok(self.writer.flush()?));
        debug_assert!(written.is_ok(), "every row fits and the sink takes everything: {written:?}");
        self.writer.get_ref().row_ended();
    }

    pub(super) fn flush(&mut self) -> Result<(), io::Error> {
        self.writer.get_ref().flush_all()
    }

    pub(super) fn rows_written(&self) -> u64 {
        self.writer.get_ref().rows_written()
    }

    pub(super) fn write_errors(&self) -> u64 {
        self.writer.get_ref().write_errors()
    }
}

pub(super) fn nanoseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
