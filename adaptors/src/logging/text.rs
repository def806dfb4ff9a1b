//! Formats rows as CSV.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use jiff::tz::TimeZone;
use millpond_core::DeviceId;

use super::clock::Clock;
use super::devices::Devices;
use super::record::Record;
use super::row::{Action, EXTENDED_HEADER, HEADER, Row};
use super::settings::Columns;
use super::time_of_day::TimeOfDay;

/// Formats rows with the crate csv, in every mode of the log.
pub(super) struct Text {
    csv: csv::Writer<Tray>,
    cells: csv::ByteRecord,
    /// The thread and the time of the row in `cells`.
    last: Option<(u64, TimeOfDay)>,
    clock: Clock,
    /// Whether the extended columns are written.
    further: bool,
    devices: Arc<Devices>,
    /// The devices seen so far.
    known: Vec<DeviceId>,
    rows: u64,
}

/// The output of the crate csv.
struct Tray(RefCell<Vec<u8>>);

impl Text {
    /// `bytes` is the expected length of the text at a time.
    pub(super) fn new(columns: Columns, devices: Arc<Devices>, bytes: usize) -> Self {
        // No cell needs quotes: all are numbers and fixed words.
        let never = csv::QuoteStyle::Never;
        let mut csv = csv::WriterBuilder::new();
        csv.has_headers(false).quote_style(never).buffer_capacity(bytes);
        Self {
            csv: csv.from_writer(Tray(RefCell::default())),
            cells: csv::ByteRecord::new(),
            last: None,
            clock: Clock::new(TimeZone::system()),
            further: columns == Columns::Extended,
            devices,
            known: Vec::new(),
            rows: 0,
        }
    }

    /// Formats the header, which does not count as a row.
    pub(super) fn header(&mut self) {
        let header: &[&str] = if self.further { &EXTENDED_HEADER } else { &HEADER };
        let written = self.csv.write_record(header);
        debug_assert!(written.is_ok(), "a tray takes everything: {written:?}");
    }

    /// Formats a row; `sequence` is its number.
    #[inline]
    pub(super) fn row(&mut self, record: &Record, sequence: u64) {
        let further = self.further;
        let device = if further { self.device(record.device) } else { None };
        let row = Row {
            thread: record.thread.into(),
            time: self.clock.time_of_day(record.nanoseconds_since_1970),
            action: record.action,
            pointer: record.ptr,
            size: record.bytes,
            stream: record.stream,
            device,
            alignment: further.then(|| record.alignment()),
            sequence: further.then_some(sequence),
            monotonic_ns: further.then_some(record.monotonic_ns),
            duration_ns: (further && record.action != Action::Free).then_some(record.duration_ns),
        };
        row.fill(&mut self.cells, self.last);
        self.last = Some((row.thread, row.time));
        let written = self.csv.write_byte_record(&self.cells);
        debug_assert!(written.is_ok(), "a tray takes everything, and rows are of one length: {written:?}");
        self.rows += 1;
    }

    fn device(&mut self, number: u16) -> Option<DeviceId> {
        if usize::from(number) >= self.known.len() {
            self.known = self.devices.all();
        }
        self.known.get(usize::from(number)).copied()
    }

    /// Passes on the text since the last call, and its number of rows.
    pub(super) fn take<T>(&mut self, take: impl FnOnce(&mut Vec<u8>, u64) -> T) -> T {
        let flushed = self.csv.flush();
        debug_assert!(flushed.is_ok(), "a tray takes everything: {flushed:?}");
        let mut tray = self.csv.get_ref().0.borrow_mut();
        let taken = take(&mut tray, self.rows);
        tray.clear();
        self.rows = 0;
        taken
    }
}

impl Write for Tray {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("rows", &self.rows).finish_non_exhaustive()
    }
}
