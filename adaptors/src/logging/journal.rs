use std::io;
use std::time::Instant;

use millpond_core::DeviceId;
use parking_lot::Mutex;

use super::layer::Settings;
use super::queue::Queue;
use super::record::{Entry, Record};
use super::sink::Sink;
use super::text::Text;
use super::writers::Writers;
use super::{Columns, Flush};

/// The log as the adaptor sees it, whoever writes it.
#[derive(Debug)]
pub(super) enum Journal {
    /// The thread that logs.
    Direct(Box<Mutex<Direct>>),
    /// Threads of the log's own.
    Queued(Writers),
}

/// Behind a lock, so that rows are whole, numbered, and in order of time.
#[derive(Debug)]
pub(super) struct Direct {
    text: Text,
    sink: Sink,
    sequence: u64,
    /// There if the further columns are written.
    opened: Option<Instant>,
}

impl Journal {
    /// Writes the header.
    pub(super) fn open(mut sink: Sink, settings: &Settings, device: DeviceId) -> io::Result<Self> {
        let mut text = Text::new(settings.columns, device, 512);
        text.header();
        text.take(|header, rows| sink.write(header, rows))?;
        sink.flush()?;
        let opened = (settings.columns == Columns::Extended).then(Instant::now);
        if settings.flush == Flush::Async {
            let queue = Queue::new(sink, opened, |bytes| Text::new(settings.columns, device, bytes));
            return Ok(Self::Queued(Writers::start(queue)?));
        }
        Ok(Self::Direct(Box::new(Mutex::new(Direct { text, sink, sequence: 0, opened }))))
    }

    /// Logs a row. What goes wrong is counted and reported by the sink.
    #[inline]
    pub(super) fn write(&self, entry: Entry) {
        match self {
            Self::Direct(direct) => direct.lock().write(entry),
            Self::Queued(writers) => writers.queue().push(entry),
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        match self {
            Self::Direct(direct) => direct.lock().sink.flush(),
            Self::Queued(_) if super::canary::without("flush") => Ok(()),
            Self::Queued(writers) => writers.queue().flush(),
        }
    }

    pub(super) fn ask<T>(&self, question: impl FnOnce(&Sink) -> T) -> T {
        match self {
            Self::Direct(direct) => question(&direct.lock().sink),
            Self::Queued(writers) => writers.queue().ask(question),
        }
    }
}

impl Direct {
    fn write(&mut self, entry: Entry) {
        self.text.row(&Record::now(entry, self.opened), self.sequence);
        self.sequence += 1;
        // Counted and reported in there; an allocation must not fail for it.
        let _ = self.text.take(|row, rows| self.sink.write(row, rows));
    }
}
