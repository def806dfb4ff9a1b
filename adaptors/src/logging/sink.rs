use std::cell::RefCell;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::mem;

use super::Flush;

/// With [`Flush::Buffered`], how many bytes of rows are kept before they are handed over.
const BUFFER_BYTES: usize = 64 * 1024;

/// Where rows go: collects whole rows and hands them to the destination.
///
/// The crate csv writes into it and never sees an error of the destination: a failed write loses the rows
/// that it was about, is counted, and the next row begins on a line of its own.
#[derive(Debug)]
pub(super) struct Sink(RefCell<State>);

struct State {
    destination: Box<dyn Write + Send>,
    name: String,
    flush: Flush,
    /// Whole rows that were not handed over yet.
    pending: Vec<u8>,
    pending_rows: u64,
    /// A failed write ended inside a row.
    torn: bool,
    rows_written: u64,
    write_errors: u64,
}

impl Sink {
    /// `name` is what errors call the destination.
    pub(super) fn new(destination: Box<dyn Write + Send>, name: String, flush: Flush) -> Self {
        Self(RefCell::new(State {
            destination,
            name,
            flush,
            pending: Vec::new(),
            pending_rows: 0,
            torn: false,
            rows_written: 0,
            write_errors: 0,
        }))
    }

    /// Says that what was written since the last time is one row.
    pub(super) fn row_ended(&self) {
        let state = &mut *self.0.borrow_mut();
        state.pending_rows += 1;
        if state.flush == Flush::EveryRow || state.pending.len() >= BUFFER_BYTES {
            // Counted and reported in there; an allocation must not fail for it.
            let _ = state.hand_over();
        }
    }

    pub(super) fn flush_all(&self) -> io::Result<()> {
        self.0.borrow_mut().hand_over()
    }

    pub(super) fn rows_written(&self) -> u64 {
        self.0.borrow().rows_written
    }

    pub(super) fn write_errors(&self) -> u64 {
        self.0.borrow().write_errors
    }
}

impl State {
    fn hand_over(&mut self) -> io::Result<()> {
        if self.torn && !self.pending.is_empty() {
            self.pending.insert(0, b'\n');
        }
        let mut done = 0;
        let result = self.write_pending(&mut done).and_then(|()| self.destination.flush());
        let rows = mem::take(&mut self.pending_rows);
        let written = &self.pending[..done];
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
        self.pending.clear();
        result
    }

    fn write_pending(&mut self, done: &mut usize) -> io::Result<()> {
        while *done < self.pending.len() {
            match self.destination.write(&self.pending[*done..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => *done += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
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

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // Counted and reported in there.
        let _ = self.0.get_mut().hand_over();
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, flush, rows_written, write_errors, .. } = self;
        f.debug_struct("State")
            .field("name", name)
            .field("flush", flush)
            .field("rows_written", rows_written)
            .field("write_errors", write_errors)
            .finish_non_exhaustive()
    }
}
