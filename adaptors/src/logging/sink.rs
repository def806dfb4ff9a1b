//! The destination of a log, with its buffer.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::settings::Flush;
use super::status::Status;
use crate::panicked::text_of;

/// The bytes of rows that [`Flush::Buffered`] keeps before it writes them.
const BUFFER_BYTES: usize = 64 * 1024;

/// The most bytes of whole rows in one write. It is small, so that the end of a log can distinguish a slow
/// destination from one that hangs.
const PIECE_BYTES: usize = 64 * 1024;

/// Writes whole rows to their destination.
///
/// A failed write loses its rows and is counted, and the next row begins on a new line. The same holds if the
/// caller's writer or its error panics: freeing memory must not panic, and the other threads' rows must still
/// be written.
pub(super) struct Sink {
    destination: Box<dyn Write + Send>,
    status: Arc<Status>,
    flush: Flush,
    /// The process that buffered the rows. A forked child has a copy of them, but its parent writes them.
    process: u32,
    /// Whole rows that were not written yet.
    pending: Vec<u8>,
    pending_rows: u64,
    /// Whether a failed write ended inside a row.
    torn: bool,
}

impl Sink {
    pub(super) fn new(destination: Box<dyn Write + Send>, status: Status, flush: Flush) -> Self {
        Self {
            destination,
            status: Arc::new(status),
            flush,
            process: std::process::id(),
            pending: Vec::new(),
            pending_rows: 0,
            torn: false,
        }
    }

    /// Takes the text of `rows` rows, and writes or buffers it.
    ///
    /// # Errors
    /// The status counts errors.
    pub(super) fn write(&mut self, text: &[u8], rows: u64) -> io::Result<()> {
        if self.flush != Flush::Buffered {
            return self.hand_over(text, rows);
        }
        self.leave_to_parent();
        self.pending.extend_from_slice(text);
        self.pending_rows += rows;
        if self.pending.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes buffered rows.
    ///
    /// # Errors
    /// The status counts errors.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.leave_to_parent();
        let mut pending = mem::take(&mut self.pending);
        let rows = mem::take(&mut self.pending_rows);
        let result = self.hand_over(&pending, rows);
        pending.clear();
        self.pending = pending;
        result
    }

    /// Writes buffered rows, and from then on each row at once.
    pub(super) fn keep_nothing(&mut self) {
        // The status counts errors.
        let _ = self.flush();
        self.flush = Flush::EveryRow;
    }

    /// Returns the state of the destination, which can be read without the sink.
    pub(super) fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Returns whether this process must write buffered rows.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() && self.is_own_process()
    }

    /// In a forked process, drops the copies of its parent's rows. Rows that are buffered later belong to
    /// this process.
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

    fn hand_over(&mut self, text: &[u8], rows: u64) -> io::Result<()> {
        if self.torn && !text.is_empty() {
            let on_a_line_of_its_own = [b"\n", text].concat();
            return self.hand_over_line(&on_a_line_of_its_own, rows);
        }
        self.hand_over_line(text, rows)
    }

    fn hand_over_line(&mut self, text: &[u8], rows: u64) -> io::Result<()> {
        let mut done = 0;
        let (destination, status) = (&mut self.destination, &*self.status);
        let write = || {
            let _inside = status.enter();
            let written = write_all(destination, text, &mut done, status);
            written.and_then(|()| destination.flush()).map_err(without_code)
        };
        let result = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|payload| {
            Err(io::Error::other(format!("the writer of the log panicked: {}", text_of(payload))))
        });
        let written = &text[..done];
        match &result {
            Ok(()) => status.note_rows(rows),
            Err(error) => {
                let ends = written.iter().filter(|&&byte| byte == b'\n').count() as u64;
                status.note_rows(ends.saturating_sub(self.torn.into()).min(rows));
                status.note_error(error);
            }
        }
        self.torn = written.last().map_or(self.torn, |&byte| byte != b'\n');
        result
    }
}

fn write_all(destination: &mut dyn Write, text: &[u8], done: &mut usize, status: &Status) -> io::Result<()> {
    while *done < text.len() {
        let piece = piece(&text[*done..]);
        match destination.write(piece) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(bytes) if bytes > piece.len() => {
                let why = format!("the writer of the log accepted only {bytes} of {} bytes", piece.len());
                return Err(io::Error::other(why));
            }
            Ok(bytes) => {
                *done += bytes;
                status.note_taken(bytes);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the error without code of the program: it is shown and dropped under locks of the log.
fn without_code(error: io::Error) -> io::Error {
    if error.get_ref().is_none() { error } else { io::Error::new(error.kind(), error.to_string()) }
}

/// Returns the first whole rows, up to [`PIECE_BYTES`].
fn piece(text: &[u8]) -> &[u8] {
    let Some(first) = text.get(..PIECE_BYTES) else { return text };
    first.iter().rposition(|&byte| byte == b'\n').map_or(first, |end| &text[..=end])
}

impl Drop for Sink {
    fn drop(&mut self) {
        // The status counts errors.
        let _ = self.flush();
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, flush, .. } = self;
        f.debug_struct("Sink").field("status", status).field("flush", flush).finish_non_exhaustive()
    }
}
