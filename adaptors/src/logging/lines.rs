//! The log that the logging threads write themselves. Its destination may be code of the program that uses
//! the stack.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem};

use parking_lot::{Mutex, MutexGuard};

use super::at_exit::KeepsRows;
use super::ending::Ending;
use super::record::{Entry, Record};
use super::settings::Flush;
use super::sink::Sink;
use super::status::{self, Status, WRITER_PATIENCE};
use super::text::Text;

/// How long a row waits for the program's own writer before it is left to the thread inside the writer.
const TURN_PATIENCE: Duration = Duration::from_secs(1);

/// Lets one thread at a time write rows, so that rows are whole, numbered, and ordered by time.
///
/// A row from inside the program's own writer is left to the thread inside it, or to the next call. The same
/// holds for a row of another thread that waited for the writer in vain: the writer may be waiting for that
/// thread. After that, rows of other threads no longer wait for this writer.
pub(super) struct Lines {
    direct: Mutex<Direct>,
    /// Rows that were left, in order of time.
    left: Mutex<Vec<Record>>,
    status: Arc<Status>,
    process: u32,
    /// The moment at which the log was opened; set if the extended columns are written.
    opened: Option<Instant>,
}

/// The state of the thread whose turn it is.
struct Direct {
    text: Text,
    sink: Sink,
    sequence: u64,
}

impl Lines {
    pub(super) fn new(text: Text, sink: Sink, opened: Option<Instant>) -> Self {
        let status = Arc::clone(sink.status());
        let direct = Mutex::new(Direct { text, sink, sequence: 0 });
        Self { direct, left: Mutex::default(), status, process: std::process::id(), opened }
    }

    /// Writes a row, or leaves it.
    #[inline]
    pub(super) fn write(&self, entry: Entry) {
        match self.turn() {
            Some(mut direct) => {
                self.write_left(&mut direct);
                direct.write(&[Record::now(entry, self.opened)]);
                // Writes the rows that were left meanwhile. Rows that the writer logs during this write wait
                // for the next call: otherwise a writer that logs rows for each write would keep this thread
                // for ever.
                self.write_left(&mut direct);
            }
            None => self.leave(Record::now(entry, self.opened)),
        }
        self.status.report();
    }

    /// # Errors
    /// The destination's errors; [`WouldBlock`](io::ErrorKind::WouldBlock) from inside the program's own
    /// writer, and [`TimedOut`](io::ErrorKind::TimedOut) if that writer does not return.
    pub(super) fn flush(&self) -> io::Result<()> {
        if self.status.is_inside() {
            return Err(status::from_inside());
        }
        let direct = match self.status.is_programs() {
            true => self.direct.try_lock_for(WRITER_PATIENCE),
            false => Some(self.direct.lock()),
        };
        let flushed = direct.map(|mut direct| {
            self.write_left(&mut direct);
            direct.sink.flush()
        });
        self.status.report();
        flushed.unwrap_or_else(|| Err(status::in_vain()))
    }

    /// Locks the destination. Returns `None` if the program's own writer may be waiting for this thread.
    fn turn(&self) -> Option<MutexGuard<'_, Direct>> {
        if !self.status.is_programs() {
            return Some(self.direct.lock());
        }
        if self.status.is_inside() {
            return None;
        }
        if self.status.waits_for_others() {
            return self.direct.try_lock();
        }
        let turn = self.direct.try_lock_for(TURN_PATIENCE);
        if turn.is_none() {
            self.status.note_wait_in_vain();
        }
        turn
    }

    #[cold]
    fn leave(&self, record: Record) {
        self.left.lock().push(record);
        // The writer may have returned meanwhile, and may have looked before this row was there.
        if let Some(mut direct) = self.direct.try_lock() {
            self.write_left(&mut direct);
        }
    }

    #[inline]
    fn write_left(&self, direct: &mut Direct) {
        if self.status.is_programs() {
            let left = mem::take(&mut *self.left.lock());
            direct.write(&left);
        }
    }
}

impl KeepsRows for Lines {
    fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn write_last(self: Arc<Self>) -> Ending {
        let status = Arc::clone(&self.status);
        Ending::begin(status, move || {
            let mut direct = self.direct.lock();
            self.write_left(&mut direct);
            direct.sink.keep_nothing();
            // Writes the rows that the program's writer logged during the call above, but none that it logs
            // now.
            self.write_left(&mut direct);
        })
    }

    fn wait_for_last(&self, ending: Ending) {
        if self.status.is_inside() {
            return; // The writer itself ends the process: the rows wait for it.
        }
        ending.wait();
        self.status.report();
    }
}

impl Drop for Lines {
    /// Writes the remaining rows, unless the destination hangs. The journal makes the reports.
    fn drop(&mut self) {
        let left = mem::take(self.left.get_mut());
        let is_own = self.is_own_process();
        let direct = self.direct.get_mut();
        if is_own {
            direct.write(&left);
        }
        if !direct.sink.has_pending() {
            return;
        }
        let nowhere = Sink::new(Box::new(io::sink()), Status::new("", false), Flush::EveryRow);
        let sink = Mutex::new(mem::replace(&mut direct.sink, nowhere));
        // The status counts errors.
        Ending::begin(Arc::clone(&self.status), move || drop(sink.lock().flush())).wait();
    }
}

impl Direct {
    /// Writes rows at once.
    fn write(&mut self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        for record in records {
            self.text.row(record, self.sequence);
            self.sequence += 1;
        }
        // The status counts errors; they must not make an allocation fail.
        let _ = self.text.take(|rows, count| self.sink.write(rows, count));
    }
}
