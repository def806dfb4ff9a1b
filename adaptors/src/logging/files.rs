//! The log files that this process writes.
//!
//! Adaptors that name one file share one [`Journal`]. So no log truncates another's rows, the rows of one
//! address are in order across adaptors, and the counters belong to the file. A lock tells other processes
//! that the file is being written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use millpond_core::Result;
use millpond_core::process::Origin;
use millpond_core::stack::{AtEnd, FilePlace};
use parking_lot::{Condvar, Mutex};

use super::journal::{Journal, OpenFile};
use super::log_file::LogFile;
use super::settings::Settings;
use super::sink::Sink;
use super::status::Status;

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// The number of the next entry.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Notified when a log has ended.
static ENDED: Condvar = Condvar::new();

/// A log of this process, whose file may not be open yet.
struct Known {
    number: u64,
    place: FilePlace,
    journal: Weak<Journal>,
    file: Weak<LogFile>,
}

/// An entry in the table. Dropping it lets other adaptors truncate and write the file.
#[derive(Debug)]
struct Entry {
    number: u64,
    process: Origin,
}

impl OpenFile for Entry {}

impl Drop for Entry {
    fn drop(&mut self) {
        // Another thread may have held the lock when this process was forked.
        if !self.process.is_elsewhere() {
            KNOWN.lock().retain(|known| known.number != self.number);
            ENDED.notify_all();
        }
    }
}

/// The last step of building a log: opens its file, then empties it. Does nothing if the file is open.
#[derive(Debug)]
pub(super) struct OpenLog {
    file: Arc<LogFile>,
    /// The entry in the table, if logs may share the file.
    number: Option<u64>,
    path: PathBuf,
    settings: Settings,
}

impl OpenLog {
    fn open(&self) -> io::Result<()> {
        let Some(number) = self.number else { return self.file.open() };
        // Another thread that looks for the file finds its place either before or after the opening.
        let mut table = KNOWN.lock();
        self.file.open()?;
        if let Some(known) = table.iter_mut().find(|known| known.number == number) {
            known.place = FilePlace::of(&self.path);
        }
        Ok(())
    }
}

impl AtEnd for OpenLog {
    fn prepare(&mut self) -> Result<()> {
        self.open().map_err(|error| self.settings.unwritable(error))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.file.begin().map_err(|error| self.settings.unwritable(error))
    }
}

/// Returns the existing or a new journal for this file, and the step that opens the file. This function opens
/// nothing.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the file is open with other settings.
pub(super) fn journal(path: &Path, settings: &Settings) -> Result<(Arc<Journal>, OpenLog)> {
    let place = FilePlace::of(path);
    let step = |file, number| OpenLog { file, number, path: path.to_owned(), settings: settings.clone() };
    loop {
        if place.is_file()
            && let Some((journal, file, number)) = open_one(&place)
        {
            return journal.check_same(settings).map(|()| (journal, step(file, Some(number))));
        }
        // Without the lock: the log may start threads, and report. Nothing is opened yet.
        let file = Arc::new(LogFile::new(path.to_owned()));
        let status = Status::new(path.display().to_string(), false);
        let sink = Sink::new(Box::new(Rows(Arc::clone(&file))), status, settings.flush);
        let journal = Journal::open(sink, settings).map_err(|error| settings.unwritable(error))?;
        if !place.is_file() {
            return Ok((journal, step(file, None)));
        }
        let mut table = KNOWN.lock();
        if table.iter().any(|known| known.place == place) {
            // Another thread was faster.
            continue;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        journal.is_of(Box::new(Entry { number, process: Origin::here() }));
        let (weak, place) = (Arc::downgrade(&journal), place.clone());
        table.push(Known { number, place, journal: weak, file: Arc::downgrade(&file) });
        drop(table);
        return Ok((journal, step(file, Some(number))));
    }
}

/// Returns the journal that writes this file now. Waits for a log of the file that is ending.
fn open_one(place: &FilePlace) -> Option<(Arc<Journal>, Arc<LogFile>, u64)> {
    let mut table = KNOWN.lock();
    loop {
        let known = table.iter().find(|known| known.place == *place)?;
        // The file first: a journal that ended here would wait for the lock of the table.
        if let Some(file) = known.file.upgrade()
            && let Some(journal) = known.journal.upgrade()
        {
            return Some((journal, file, known.number));
        }
        // The journal's last adaptor is being dropped, and writes the remaining rows.
        ENDED.wait(&mut table);
    }
}

/// A writer that passes rows to the file.
struct Rows(Arc<LogFile>);

impl Write for Rows {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
