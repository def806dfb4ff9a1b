//! A log that one or more adaptors write.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use std::{fmt, io};

use millpond_core::{DeviceId, Error, Result};
use parking_lot::Mutex;

use super::at_exit::{self, KeepsRows};
use super::devices::Devices;
use super::ending::{self, Ending};
use super::queue::Queue;
use super::record::{Entry, Record};
use super::settings::{Columns, Flush, Settings};
use super::sink::Sink;
use super::text::Text;
use super::writers::Writers;

/// The entry of a journal's file in the table of open files. Dropping it removes the entry.
pub(super) trait OpenFile: fmt::Debug + Send + Sync {}

/// One log, which adaptors share.
#[derive(Debug)]
pub(super) struct Journal {
    writing: Writing,
    columns: Columns,
    flush: Flush,
    devices: Arc<Devices>,
    /// Set if other adaptors may share the journal. Dropped last, after everything is written.
    file: OnceLock<Box<dyn OpenFile>>,
}

/// How rows are written.
#[derive(Debug)]
enum Writing {
    /// The logging thread writes each row, or keeps it.
    Direct(Arc<Lines>),
    /// Threads of the log write batches of rows.
    Queued(Writers),
}

/// The log that the logging threads write.
#[derive(Debug)]
pub(super) struct Lines {
    direct: Mutex<Direct>,
    name: String,
    process: u32,
    /// The number of bytes that the destination took.
    taken: Arc<AtomicU64>,
}

impl Lines {
    fn new(direct: Direct) -> Self {
        let (name, taken) = (direct.sink.name().to_owned(), direct.sink.taken());
        Self { direct: Mutex::new(direct), name, process: std::process::id(), taken }
    }
}

impl KeepsRows for Lines {
    fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn write_last(self: Arc<Self>) -> Ending {
        let taken = Arc::clone(&self.taken);
        // The sink counts and reports errors.
        Ending::begin(taken, move || self.direct.lock().sink.keep_nothing())
    }

    fn wait_for_last(&self, ending: Ending) {
        if !ending.wait() {
            ending::report(&self.name);
        }
    }
}

/// The state behind a lock, so that rows are whole, numbered, and in order of time.
#[derive(Debug)]
pub(super) struct Direct {
    text: Text,
    sink: Sink,
    sequence: u64,
    /// The moment at which the log was opened; set if the further columns are written.
    opened: Option<Instant>,
}

impl Journal {
    /// Opens a log: writes the header, and starts threads if the settings ask for them.
    pub(super) fn open(mut sink: Sink, settings: &Settings) -> io::Result<Arc<Self>> {
        let &Settings { columns, flush, .. } = settings;
        let devices = Arc::new(Devices::default());
        let mut text = Text::new(columns, Arc::clone(&devices), 512);
        text.header();
        text.take(|header, rows| sink.write(header, rows))?;
        sink.flush()?;
        let opened = (columns == Columns::Extended).then(Instant::now);
        let writing = if flush == Flush::Async {
            let queue = Queue::new(sink, opened, |bytes| Text::new(columns, Arc::clone(&devices), bytes));
            Writing::Queued(Writers::start(queue)?)
        } else {
            let lines = Arc::new(Lines::new(Direct { text, sink, sequence: 0, opened }));
            if flush == Flush::Buffered && !super::canary::without("kept") {
                at_exit::register(Arc::downgrade(&lines) as Weak<dyn KeepsRows>);
            }
            Writing::Direct(lines)
        };
        Ok(Arc::new(Self { writing, columns, flush, devices, file: OnceLock::new() }))
    }

    /// Sets the file of the journal, which other adaptors may truncate once it is dropped.
    pub(super) fn is_of(&self, file: Box<dyn OpenFile>) {
        let _ = self.file.set(file);
    }

    /// Checks that a further adaptor asks for the same columns and flush.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if not.
    pub(super) fn check_same(&self, settings: &Settings) -> Result<()> {
        let &Self { columns, flush, .. } = self;
        if (columns, flush) == (settings.columns, settings.flush) {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "another stack of this process writes the allocation log {} with columns={columns} and \
             flush={flush}; write the same, or choose another file",
            settings.name()
        )))
    }

    /// The number of a device in an [`Entry`].
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for too many devices.
    pub(super) fn device_number(&self, device: DeviceId) -> Result<u16> {
        let full = || Error::invalid_argument("the allocation log has 65536 devices; choose another file");
        self.devices.number(device).ok_or_else(full)
    }

    /// Logs a row. The sink counts and reports errors.
    #[inline]
    pub(super) fn write(&self, entry: Entry) {
        match &self.writing {
            Writing::Direct(lines) => lines.direct.lock().write(entry),
            Writing::Queued(writers) => writers.queue().push(entry),
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        match &self.writing {
            Writing::Direct(lines) => lines.direct.lock().sink.flush(),
            Writing::Queued(_) if super::canary::without("flush") => Ok(()),
            Writing::Queued(writers) => writers.queue().flush(),
        }
    }

    pub(super) fn ask<T>(&self, question: impl FnOnce(&Sink) -> T) -> T {
        match &self.writing {
            Writing::Direct(lines) => question(&lines.direct.lock().sink),
            Writing::Queued(writers) => writers.queue().ask(question),
        }
    }

    #[cfg(test)]
    pub(super) fn queue(&self) -> Option<&Queue> {
        match &self.writing {
            Writing::Direct(_) => None,
            Writing::Queued(writers) => Some(writers.queue()),
        }
    }
}

impl Drop for Direct {
    /// Writes the remaining rows, unless the destination hangs.
    fn drop(&mut self) {
        if !self.sink.has_pending() {
            return;
        }
        let nowhere = Sink::new(Box::new(io::sink()), self.sink.name().to_owned(), Flush::EveryRow);
        let taken = self.sink.taken();
        let sink = Mutex::new(std::mem::replace(&mut self.sink, nowhere));
        // The sink counts and reports errors.
        if !Ending::begin(taken, move || drop(sink.lock().flush())).wait() {
            ending::report(self.sink.name());
        }
    }
}

impl Direct {
    fn write(&mut self, entry: Entry) {
        self.text.row(&Record::now(entry, self.opened), self.sequence);
        self.sequence += 1;
        // The sink counts and reports errors; an allocation must not fail because of them.
        let _ = self.text.take(|row, rows| self.sink.write(row, rows));
    }
}
