//! A log that one or more adaptors write.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use std::{fmt, io};

use millpond_core::{DeviceId, Error, Result};

use super::at_exit::{self, KeepsRows};
use super::devices::Devices;
use super::lines::Lines;
use super::queue::Queue;
use super::record::Entry;
use super::settings::{Columns, Flush, Settings};
use super::sink::Sink;
use super::status::Status;
use super::text::Text;
use super::writers::Writers;

/// The entry of a journal's file in the table of open files. Dropping it removes the entry.
pub(super) trait OpenFile: fmt::Debug + Send + Sync {}

/// One log, which several adaptors may share.
pub(super) struct Journal {
    writing: Writing,
    columns: Columns,
    flush: Flush,
    devices: Arc<Devices>,
    /// Set if other adaptors may share the journal. Dropped after everything is written.
    file: OnceLock<Box<dyn OpenFile>>,
    /// Dropped last: a subscriber may open the file again.
    status: Reports,
}

/// Makes the outstanding reports when it is dropped.
#[derive(Debug)]
struct Reports(Arc<Status>);

impl Drop for Reports {
    fn drop(&mut self) {
        self.0.report();
    }
}

/// The way in which rows are written.
enum Writing {
    /// The logging thread writes each row, or buffers it.
    Direct(Arc<Lines>),
    /// Threads of the log write batches of rows.
    Queued(Writers),
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
        let status = Reports(Arc::clone(sink.status()));
        let opened = (columns == Columns::Extended).then(Instant::now);
        let writing = if flush == Flush::Async {
            let queue = Queue::new(sink, opened, |bytes| Text::new(columns, Arc::clone(&devices), bytes));
            Writing::Queued(Writers::start(queue)?)
        } else {
            let keeps_rows = flush == Flush::Buffered || status.0.is_programs();
            let lines = Arc::new(Lines::new(text, sink, opened));
            if keeps_rows && !super::canary::without("kept") {
                at_exit::register(Arc::downgrade(&lines) as Weak<dyn KeepsRows>);
            }
            Writing::Direct(lines)
        };
        Ok(Arc::new(Self { writing, columns, flush, devices, file: OnceLock::new(), status }))
    }

    /// Sets the file of the journal. Other adaptors may truncate it once the journal is dropped.
    pub(super) fn is_of(&self, file: Box<dyn OpenFile>) {
        let _ = self.file.set(file);
    }

    /// Checks that another adaptor asks for the same columns and flush.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if it asks for others.
    pub(super) fn check_same(&self, settings: &Settings) -> Result<()> {
        let &Self { columns, flush, .. } = self;
        if (columns, flush) == (settings.columns, settings.flush) {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "another stack of this process writes the allocation log {} with columns={columns} and \
             flush={flush}; use the same options, or choose another file",
            settings.name()
        )))
    }

    /// Returns the number of a device in an [`Entry`].
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for too many devices.
    pub(super) fn device_number(&self, device: DeviceId) -> Result<u16> {
        let full = || Error::invalid_argument("the allocation log has 65536 devices; choose another file");
        self.devices.number(device).ok_or_else(full)
    }

    /// Logs a row. Errors are counted and reported.
    #[inline]
    pub(super) fn write(&self, entry: Entry) {
        match &self.writing {
            Writing::Direct(lines) => lines.write(entry),
            Writing::Queued(writers) => writers.queue().push(entry),
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        match &self.writing {
            Writing::Direct(lines) => lines.flush(),
            Writing::Queued(_) if super::canary::without("flush") => Ok(()),
            Writing::Queued(writers) => writers.queue().flush(),
        }
    }

    /// Returns the state of the destination.
    pub(super) fn status(&self) -> &Status {
        &self.status.0
    }

    #[cfg(test)]
    pub(super) fn queue(&self) -> Option<&Queue> {
        match &self.writing {
            Writing::Direct(_) => None,
            Writing::Queued(writers) => Some(writers.queue()),
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Reads nothing behind a lock, because a formatter is code of the program.
        f.debug_struct("Journal")
            .field("rows_written", &self.status().rows_written())
            .field("write_errors", &self.status().write_errors())
            .finish_non_exhaustive()
    }
}
