//! The destination of a log, with its buffer.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::settings::Flush;
use super::status::Status;
use crate::panicked::text_of;

/// The bytes of rows that [`Flush::Buffered`] keeps before they are handed over.
const BUFFER_BYTES: usize = 64 * 1024;

/// The bytes of whole rows that are handed over in one call: small, so that the end of a log can distinguish
/// a slow destination from one that hangs.
const PIECE_BYTES: usize = 64 * 1024;

/// The destination of rows; hands over whole rows.
///
/// A failed write loses its rows and is counted, and the next row begins on a new line. So does a panic of a
/// caller's writer or of its error: freeing memory must not panic, and the other threads' rows go on.
pub(super) struct Sink {
    destination: Box<dyn Write + Send>,
    status: Arc<Status>,
    flush: Flush,
    /// The process that buffered the rows: a forked child has a copy of them, and its parent writes them.
    process: u32,
    /// Whole rows that were not handed over yet.
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

    /// Takes the text of `rows` rows, and hands it over unless it is to be buffered.
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

    /// Hands over buffered rows.
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

    /// Hands over buffered rows, and each later one at once.
    pub(super) fn keep_nothing(&mut self) {
        // The status counts errors.
        let _ = self.flush();
        self.flush = Flush::EveryRow;
    }

    /// The state of the destination, which is readable without the sink.
    pub(super) fn status(&self) -> &Arc<Status> {
        &self.status
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
                let why = format!("the writer of the log took {bytes} of {} bytes", piece.len());
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

/// The error without code of the program: others show and drop it under locks of the log.
fn without_code(error: io::Error) -> io::Error {
    if error.get_ref().is_none() { error } else { io::Error::new(error.kind(), error.to_string()) }
}

/// The first whole rows.
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
