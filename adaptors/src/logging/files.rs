//! The log files that this process writes.
//!
//! Adaptors that name one file share one [`Journal`]: no log truncates another's rows, the rows of one
//! address are in order across adaptors, and the counters are those of the file. A lock tells other processes
//! that the file is being written.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Weak};

use millpond_core::Result;
use parking_lot::{Condvar, Mutex};

use super::journal::{Journal, OpenFile};
use super::settings::Settings;
use super::sink::Sink;

static OPEN: Mutex<Vec<(FileId, Weak<Journal>)>> = Mutex::new(Vec::new());

/// Notified when a file was closed.
static CLOSED: Condvar = Condvar::new();

/// The identity of a file, independent of its name.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FileId {
    #[cfg(unix)]
    device_and_inode: (u64, u64),
    #[cfg(not(unix))]
    path: std::path::PathBuf,
}

impl FileId {
    #[cfg(unix)]
    fn new(_path: &Path, metadata: &Metadata) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        Ok(Self { device_and_inode: (metadata.dev(), metadata.ino()) })
    }

    #[cfg(not(unix))]
    fn new(path: &Path, _metadata: &Metadata) -> io::Result<Self> {
        Ok(Self { path: path.canonicalize()? })
    }
}

/// An entry in the table of open files. Dropping it lets other adaptors truncate and write the file.
#[derive(Debug)]
struct Entry(FileId);

impl OpenFile for Entry {}

impl Drop for Entry {
    fn drop(&mut self) {
        OPEN.lock().retain(|(id, _)| *id != self.0);
        CLOSED.notify_all();
    }
}

/// The journal that writes this file: the one that is open, or a new one, which truncates the file.
///
/// # Errors
/// The system's; [`ResourceBusy`](io::ErrorKind::ResourceBusy) if another process writes the file; and
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if it is open with other settings.
pub(super) fn journal(path: &Path, settings: &Settings) -> Result<Arc<Journal>> {
    let unwritable = |error| settings.unwritable(error);
    // Appends, so that a process that ignores the lock overwrites no row of this one.
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(unwritable)?;
    let metadata = file.metadata().map_err(unwritable)?;
    if !metadata.is_file() {
        // A pipe, a terminal or the like: there is nothing to truncate.
        return Journal::open(sink(file, path, settings), settings).map_err(unwritable);
    }
    let id = FileId::new(path, &metadata).map_err(unwritable)?;
    let mut open = OPEN.lock();
    while let Some((_, journal)) = open.iter().find(|(known, _)| *known == id) {
        if let Some(journal) = journal.upgrade() {
            drop(open);
            return journal.check_same(settings).map(|()| journal);
        }
        // Its last adaptor is being dropped, and writes the remaining rows.
        CLOSED.wait(&mut open);
    }
    lock(&file).map_err(unwritable)?;
    let file = Locked { file, process: std::process::id() };
    truncate(&file.file, path).map_err(unwritable)?;
    let sink = sink(file, path, settings);
    let journal = Journal::open(sink, settings).map_err(unwritable)?;
    // Not earlier: if the header cannot be written, the entry's drop would wait for the lock held here.
    journal.is_of(Box::new(Entry(id.clone())));
    open.push((id, Arc::downgrade(&journal)));
    Ok(journal)
}

fn sink(file: impl Write + Send + 'static, path: &Path, settings: &Settings) -> Sink {
    Sink::new(Box::new(file), path.display().to_string(), settings.flush)
}

/// A file with a [`lock`], which is released when the file is closed. Closing alone does not release it while
/// a child process has a copy of the handle, as each has until it runs its program. So the lock is released
/// while a forked child still writes, too: such a child cannot be distinguished from one that runs a program.
struct Locked {
    file: File,
    process: u32,
}

impl Write for Locked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A forked child must not release its parent's lock.
        if self.process == std::process::id() {
            unlock(&self.file);
        }
    }
}

/// Empties the file, even if its name now belongs to another.
#[cfg(unix)]
fn truncate(file: &File, _path: &Path) -> io::Result<()> {
    file.set_len(0)
}

/// Empties the file through another handle: on Windows, one that appends may not change the length.
#[cfg(not(unix))]
fn truncate(_file: &File, path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

/// Tells other processes, until the file is closed, that it is being written.
#[cfg(unix)]
fn lock(file: &File) -> io::Result<()> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process writes this log"))
        }
        // Some file systems have no locks.
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(unix)]
fn unlock(file: &File) {
    // Without locks there is nothing to unlock.
    let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock);
}

#[cfg(not(unix))]
fn unlock(_file: &File) {}

/// Locks on Windows would keep other processes from reading the log, too.
#[cfg(not(unix))]
fn lock(_file: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_got_the_name_meanwhile_is_not_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let [log, rotated] = ["log.csv", "log.1.csv"].map(|name| folder.path().join(name));
        std::fs::write(&log, "rows").unwrap();
        let file = OpenOptions::new().append(true).open(&log).unwrap();
        std::fs::rename(&log, &rotated).unwrap();
        std::fs::write(&log, "another's").unwrap();
        truncate(&file, &log).unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "another's");
        assert_eq!(std::fs::read_to_string(&rotated).unwrap(), "");
    }
}
