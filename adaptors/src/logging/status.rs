//! The state of a log's destination: bytes taken, errors, and the thread inside it. It can be read without
//! the log's locks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{io, mem};

use parking_lot::Mutex;

use super::thread;
use crate::panicked::caught;

/// How long a call waits for the program's own writer while the writer takes nothing: the writer may be
/// waiting for the call.
pub(super) const WRITER_PATIENCE: Duration = Duration::from_secs(30);

/// The state of a log's destination.
///
/// The destination may be the program's own code. It may use the stack that it logs, or wait for another
/// thread that does. Calls from inside it must not wait for it.
#[derive(Debug)]
pub(super) struct Status {
    /// The name of the destination in reports.
    name: String,
    /// Whether the destination is the program's own writer.
    is_programs: bool,
    /// The thread inside the program's own writer; 0 if there is none.
    inside: AtomicU32,
    /// Whether a call of another thread waited for the writer in vain. Later calls no longer wait.
    waits_for_others: AtomicBool,
    taken_bytes: AtomicU64,
    rows_written: AtomicU64,
    write_errors: AtomicU64,
    /// Whether there is something to report.
    has_reports: AtomicBool,
    reports: Mutex<Vec<Report>>,
}

/// An event that the log must still report to the program.
#[derive(Debug)]
enum Report {
    /// The first write that failed.
    Failed(String),
    /// The destination took nothing for this many seconds while the log ended.
    Hung(u64),
}

/// Marks that the calling thread is inside the program's own writer, until it is dropped.
pub(super) struct Inside<'a>(Option<&'a Status>);

impl Status {
    /// `name` names the destination in reports.
    pub(super) fn new(name: impl Into<String>, is_programs: bool) -> Self {
        Self {
            name: name.into(),
            is_programs,
            inside: AtomicU32::new(0),
            waits_for_others: AtomicBool::new(false),
            taken_bytes: AtomicU64::new(0),
            rows_written: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            has_reports: AtomicBool::new(false),
            reports: Mutex::default(),
        }
    }

    /// Returns whether the destination is the program's own writer.
    pub(super) fn is_programs(&self) -> bool {
        self.is_programs
    }

    /// Returns whether the calling thread is inside the program's own writer.
    #[inline]
    pub(super) fn is_inside(&self) -> bool {
        self.is_programs && self.inside.load(Ordering::Relaxed) == thread::id()
    }

    /// Records that the calling thread is inside the program's own writer, until the result is dropped.
    pub(super) fn enter(&self) -> Inside<'_> {
        if !self.is_programs {
            return Inside(None);
        }
        self.inside.store(thread::id(), Ordering::Relaxed);
        Inside(Some(self))
    }

    /// Returns whether the writer may be waiting for threads that use the stack.
    pub(super) fn waits_for_others(&self) -> bool {
        self.waits_for_others.load(Ordering::Relaxed)
    }

    pub(super) fn note_wait_in_vain(&self) {
        self.waits_for_others.store(true, Ordering::Relaxed);
    }

    /// Returns the number of bytes that the destination took.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn note_taken(&self, bytes: usize) {
        self.taken_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn rows_written(&self) -> u64 {
        self.rows_written.load(Ordering::Relaxed)
    }

    pub(super) fn note_rows(&self, rows: u64) {
        self.rows_written.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn write_errors(&self) -> u64 {
        self.write_errors.load(Ordering::Relaxed)
    }

    /// Counts a failed write, and reports the first one.
    pub(super) fn note_error(&self, error: &io::Error) {
        if self.write_errors.fetch_add(1, Ordering::Relaxed) == 0 {
            self.note(Report::Failed(error.to_string()));
        }
    }

    /// Records that the log ends without its last rows.
    pub(super) fn note_hung(&self, seconds: u64) {
        self.note(Report::Hung(seconds));
    }

    fn note(&self, report: Report) {
        self.reports.lock().push(report);
        self.has_reports.store(true, Ordering::Release);
    }

    /// Makes the outstanding reports, unless the thread is inside the program's own writer.
    ///
    /// The caller holds no lock and writes nothing, because a subscriber is code of the program. It may flush
    /// the log, open its file again, or panic; the panic ends here.
    #[inline]
    pub(super) fn report(&self) {
        if self.has_reports.load(Ordering::Acquire) && !self.is_inside() {
            self.report_noted();
        }
    }

    #[cold]
    fn report_noted(&self) {
        self.has_reports.store(false, Ordering::Relaxed);
        let reports = mem::take(&mut *self.reports.lock());
        let log = &*self.name;
        for report in reports {
            let tell = || match report {
                Report::Failed(error) => tracing::error!(
                    target: "millpond::logging",
                    log,
                    %error,
                    "writing the allocation log failed; rows are lost, and further failures are only counted"
                ),
                Report::Hung(seconds) => tracing::error!(
                    target: "millpond::logging",
                    log,
                    "the allocation log's destination accepted no data for {seconds} s; the rows that were \
                     not yet written are lost"
                ),
            };
            // The reporting call is about memory: a subscriber's panic must not cost it its block.
            caught(tell);
        }
    }
}

/// Returns the error of a flush from inside the program's own writer.
pub(super) fn from_inside() -> io::Error {
    let why = "the log was flushed from inside its own writer; flush it after the writer has returned";
    io::Error::new(io::ErrorKind::WouldBlock, why)
}

/// Returns the error of a flush that waited in vain for the program's own writer.
pub(super) fn in_vain() -> io::Error {
    let why = "the log's writer does not return; it must not wait for the thread that flushes the log";
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(status) = self.0 {
            status.inside.store(0, Ordering::Relaxed);
        }
    }
}
