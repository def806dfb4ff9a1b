//! The destination of a log, with its buffer and its counters.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::settings::Flush;

/// The bytes of rows that [`Flush::Buffered`] keeps before they are handed over.
const BUFFER_BYTES: usize = 64 * 1024;

/// The bytes of whole rows that are handed over in one call: small, so that the end of a log can distinguish
/// a slow destination from one that hangs.
const PIECE_BYTES: usize = 64 * 1024;

/// The destination of rows; hands over whole rows.
///
/// A failed write loses its rows and is counted, and the next row begins on a new line. So does a panic of a
/// caller's writer, because freeing memory must not panic.
pub(super) struct Sink {
    destination: Box<dyn Write + Send>,
    name: String,
    flush: Flush,
    /// The process that buffered the rows: a forked child has a copy of them, and its parent writes them.
    process: u32,
    /// Whole rows that were not handed over yet.
    pending: Vec<u8>,
    pending_rows: u64,
    /// The number of bytes that the destination took.
    taken: Arc<AtomicU64>,
    /// Whether a failed write ended inside a row.
    torn: bool,
    rows_written: u64,
    write_errors: u64,
}

impl Sink {
    /// `name` names the destination in errors.
    pub(super) fn new(destination: Box<dyn Write + Send>, name: String, flush: Flush) -> Self {
        Self {
            destination,
            name,
            flush,
            process: std::process::id(),
            pending: Vec::new(),
            pending_rows: 0,
            taken: Arc::default(),
            torn: false,
            rows_written: 0,
            write_errors: 0,
        }
    }

    /// Takes the text of `rows` rows, and hands it over unless it is to be buffered.
    ///
    /// # Errors
    /// The sink counts and reports errors.
    pub(super) fn write(&mut self, text: &[u8], rows: u64) -> io::Result<()> {
        if self.flush != Flush::Buffered {
            return self.hand_over(text, rows);
        }
        self.leave_to_parent();
        self.pending.extend_from_slice(text);
        self.pending_rows += rows;
        if self.pending.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Hands over buffered rows.
    ///
    /// # Errors
    /// The sink counts and reports errors.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.leave_to_parent();
        let mut pending = mem::take(&mut self.pending);
        let rows = mem::take(&mut self.pending_rows);
        let result = self.hand_over(&pending, rows);
        pending.clear();
        self.pending = pending;
        result
    }

    /// Hands over buffered rows, and each later one at once.
    pub(super) fn keep_nothing(&mut self) {
        // Errors are counted and reported.
        let _ = self.flush();
        self.flush = Flush::EveryRow;
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Counts the bytes that the destination takes.
    pub(super) fn taken(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken)
    }

    /// Whether rows are buffered that this process has to write.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() && self.is_own_process()
    }

    /// In a forked process, drops the copies of its parent's rows. Rows that are buffered later are its own.
    fn leave_to_parent(&mut self) {
        if !self.is_own_process() {
            self.pending.clear();
            self.pending_rows = 0;
            self.process = std::process::id();
        }
    }

    fn is_own_process(&self) -> bool {
        self.process == std::process::id() || super::canary::without("process")
    }

    pub(super) fn rows_written(&self) -> u64 {
        self.rows_written
    }

    pub(super) fn write_errors(&self) -> u64 {
        self.write_errors
    }

    fn hand_over(&mut self, text: &[u8], rows: u64) -> io::Result<()> {
        if self.torn && !text.is_empty() {
            let on_a_line_of_its_own = [b"\n", text].concat();
            return self.hand_over_line(&on_a_line_of_its_own, rows);
        }
        self.hand_over_line(text, rows)
    }

    fn hand_over_line(&mut self, text: &[u8], rows: u64) -> io::Result<()> {
        let mut done = 0;
        let (destination, taken) = (&mut self.destination, &self.taken);
        let write = || write_all(destination, text, &mut done, taken).and_then(|()| destination.flush());
        let result = catch_unwind(AssertUnwindSafe(write))
            .unwrap_or_else(|_| Err(io::Error::other("the writer of the log panicked")));
        let written = &text[..done];
        match &result {
            Ok(()) => self.rows_written += rows,
            Err(error) => {
                let ends = written.iter().filter(|&&byte| byte == b'\n').count() as u64;
                self.rows_written += ends.saturating_sub(self.torn.into()).min(rows);
                self.write_errors += 1;
                self.report(error);
            }
        }
        self.torn = written.last().map_or(self.torn, |&byte| byte != b'\n');
        result
    }

    fn report(&self, error: &io::Error) {
        if self.write_errors == 1 {
            tracing::error!(
                target: "millpond::logging",
                log = self.name,
                %error,
                "writing the allocation log failed; rows are lost, and further failures are only counted"
            );
        }
    }
}

fn write_all(
    destination: &mut dyn Write,
    text: &[u8],
    done: &mut usize,
    taken: &AtomicU64,
) -> io::Result<()> {
    while *done < text.len() {
        match destination.write(piece(&text[*done..])) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                *done += bytes;
                taken.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The first whole rows.
fn piece(text: &[u8]) -> &[u8] {
    let Some(first) = text.get(..PIECE_BYTES) else { return text };
    first.iter().rposition(|&byte| byte == b'\n').map_or(first, |end| &text[..=end])
}

impl Drop for Sink {
    fn drop(&mut self) {
        // The sink counts and reports errors.
        let _ = self.flush();
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, flush, rows_written, write_errors, .. } = self;
        f.debug_struct("Sink")
            .field("name", name)
            .field("flush", flush)
            .field("rows_written", rows_written)
            .field("write_errors", write_errors)
            .finish_non_exhaustive()
    }
}
