//! The file of a log. It is opened and emptied when the whole stack is built.
//!
//! Until then, rows wait in memory, and the file system stays unchanged. So a stack that cannot be built does
//! not touch the log of an earlier run.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
#[cfg(unix)]
use std::time::Instant;

use millpond_core::own_file;
use parking_lot::Mutex;

#[cfg(unix)]
use super::ending::{LOOK, PATIENCE};

/// A file as the destination of a log.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: OnceLock<Locked>,
    waiting: Mutex<Waiting>,
}

/// The state before the file is written.
#[derive(Default, Debug)]
struct Waiting {
    rows: Vec<u8>,
    opened: Option<Opened>,
}

impl LogFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: OnceLock::new(), waiting: Mutex::default() }
    }

    /// Creates missing folders and opens the file, but changes nothing in it. Drop removes everything that
    /// this created, unless [`begin`](Self::begin) follows.
    ///
    /// # Errors
    /// The system's errors; [`ResourceBusy`](io::ErrorKind::ResourceBusy) if another process writes the file.
    pub(super) fn open(&self) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        if self.file.get().is_none() && waiting.opened.is_none() {
            waiting.opened = Some(Opened::new(&self.path)?);
        }
        Ok(())
    }

    /// Empties the file, and writes the waiting rows.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does, or if writing fails.
    pub(super) fn begin(&self) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        if self.file.get().is_some() {
            return Ok(());
        }
        let Opened { file, to_empty, mut made } = match waiting.opened.take() {
            Some(opened) => opened,
            None => Opened::new(&self.path)?,
        };
        if let Some(to_empty) = to_empty {
            to_empty.set_len(0)?;
        }
        (&file.file).write_all(&waiting.rows)?;
        made.keep();
        waiting.rows = Vec::new();
        let set = self.file.set(file);
        debug_assert!(set.is_ok(), "the lock is held");
        Ok(())
    }

    /// Writes the bytes, or lets them wait.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = self.file.get() {
            return (&file.file).write(bytes);
        }
        let mut waiting = self.waiting.lock();
        match self.file.get() {
            Some(file) => (&file.file).write(bytes),
            None => {
                waiting.rows.extend_from_slice(bytes);
                Ok(bytes.len())
            }
        }
    }
}

/// An open file whose contents are still unchanged.
#[derive(Debug)]
struct Opened {
    made: Made,
    /// `None` for a pipe, a terminal or the like, which has nothing to empty.
    to_empty: Option<File>,
    // Dropped after `made`, which may remove the file: until then the file is locked.
    file: Locked,
}

impl Opened {
    fn new(path: &Path) -> io::Result<Self> {
        let mut made = Made::default();
        if let Some(folder) = path.parent() {
            made.folders(folder)?;
        }
        // Appends, so that a process that ignores the lock overwrites no row of this one.
        let file = match OpenOptions::new().create_new(true).append(true).open(path) {
            Ok(file) => {
                made.file = Some((path.to_owned(), file.metadata()?));
                file
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_there(path)?,
            Err(error) => return Err(error),
        };
        let is_regular = file.metadata()?.is_file();
        let to_empty = if is_regular { Some(to_empty(&file, path)?) } else { None };
        if is_regular {
            // If another process has locked the file meanwhile, the file is the log of that process, and
            // stays.
            lock(&file).inspect_err(|_| made.file = None)?;
        }
        Ok(Self { made, to_empty, file: Locked { file, is_regular, process: std::process::id() } })
    }
}

/// Opens the existing file, or the target of a link. A pipe must have a reader: without one, an ordinary open
/// waits for ever, and so would the program that builds a stack.
#[cfg(unix)]
fn open_there(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use rustix::io::Errno;

    let begin = Instant::now();
    let no_wait = OFlags::NONBLOCK.bits() as i32;
    loop {
        match OpenOptions::new().create(true).append(true).custom_flags(no_wait).open(path) {
            Ok(file) => {
                // Writes wait for a slow reader.
                fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
                return Ok(file);
            }
            Err(error) if Errno::from_io_error(&error) != Some(Errno::NXIO) => return Err(error),
            Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            Err(error) => {
                let why = format!("no program reads this pipe ({error}); start its reader first");
                return Err(io::Error::new(io::ErrorKind::NotConnected, why));
            }
        }
    }
}

#[cfg(not(unix))]
fn open_there(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The folders and the file that this process created. Drop removes them, unless another one has the name by
/// now.
#[derive(Debug)]
struct Made {
    /// Each folder is open, so that the system gives its number to no other one.
    folders: Vec<(PathBuf, File)>,
    file: Option<(PathBuf, Metadata)>,
    process: u32,
}

impl Default for Made {
    fn default() -> Self {
        Self { folders: Vec::new(), file: None, process: std::process::id() }
    }
}

impl Made {
    /// Creates a folder and its missing parents.
    fn folders(&mut self, folder: &Path) -> io::Result<()> {
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let mut wanted: Vec<&Path> = folder.ancestors().take_while(missing).collect();
        while let Some(next) = wanted.pop() {
            match DirBuilder::new().create(next) {
                // Windows opens no folders, so there this folder stays.
                Ok(()) => self.folders.extend(File::open(next).map(|open| (next.to_owned(), open))),
                // Another process was faster, or the name ends in `..`.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn keep(&mut self) {
        // Does not replace `self`: the drop of the old value would remove the files that must stay.
        self.folders.clear();
        self.file = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // A forked child leaves what its parent made.
        if self.process != std::process::id() {
            return;
        }
        // Ignores errors: a folder that another process uses by now stays.
        if let Some((path, own)) = &self.file {
            let _ = own_file::remove(path, own);
        }
        for (path, open) in self.folders.iter().rev() {
            let _ = open.metadata().and_then(|own| own_file::remove(path, &own));
        }
    }
}

/// A file with a [`lock`], which is released when the file is closed. Closing alone does not release the lock
/// while a child process has a copy of the handle; each child has one until it runs its program. So the lock
/// is released explicitly, even while a forked child still writes: such a child cannot be distinguished from
/// a child that is about to run a program.
#[derive(Debug)]
struct Locked {
    file: File,
    is_regular: bool,
    process: u32,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A forked child must not release its parent's lock.
        if self.is_regular && self.process == std::process::id() {
            unlock(&self.file);
        }
    }
}

/// Returns a handle that can empty the file. It is opened together with the file, because another file may
/// have the name later.
#[cfg(unix)]
fn to_empty(file: &File, _path: &Path) -> io::Result<File> {
    file.try_clone()
}

/// Returns a handle that can empty the file: on Windows, an appending handle cannot change the length.
#[cfg(not(unix))]
fn to_empty(_file: &File, path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Tells other processes, until the file is closed, that it is being written.
#[cfg(unix)]
fn lock(file: &File) -> io::Result<()> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another process writes this log; {pid} or {rank} in the path gives each process its own file",
        )),
        // Some file systems have no locks.
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(unix)]
fn unlock(file: &File) {
    // If the file system has no locks, there is nothing to unlock.
    let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock);
}

#[cfg(not(unix))]
fn unlock(_file: &File) {}

/// Takes no lock: on Windows, a lock would keep other processes from reading the log, too.
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
        let opened = LogFile::new(log.clone());
        opened.open().unwrap();
        std::fs::rename(&log, &rotated).unwrap();
        std::fs::write(&log, "another's").unwrap();
        opened.begin().unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "another's");
        assert_eq!(std::fs::read_to_string(&rotated).unwrap(), "");
    }

    #[test]
    fn what_got_the_name_of_a_new_file_or_folder_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [made, log] = ["made", "made/log.csv"].map(|name| folder.path().join(name));
        let other = |path: &Path| {
            std::fs::rename(path, path.with_extension("old")).unwrap();
            if path == made { std::fs::create_dir(path) } else { std::fs::write(path, "another's") }.unwrap();
        };
        let opened = LogFile::new(log.clone());
        opened.open().unwrap();
        other(&log);
        drop(opened);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "another's");
        std::fs::remove_dir_all(&made).unwrap();

        let opened = LogFile::new(log.clone());
        opened.open().unwrap();
        other(&made);
        drop(opened);
        assert!(made.is_dir());
    }

    /// A pipe without a reader gives an error and does not hang. A pipe whose reader comes late is written.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_without_a_reader_is_refused_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let of_thread = pipe.clone();
        std::thread::spawn(move || tell.send(LogFile::new(of_thread).open()));
        let answer = told.recv_timeout(std::time::Duration::from_secs(60)).expect("it does not hang");
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("start its reader first"), "{error}");

        let of_reader = pipe.clone();
        let reader = std::thread::spawn(move || std::fs::read_to_string(of_reader).unwrap());
        let file = LogFile::new(pipe);
        file.write(b"row").unwrap();
        file.begin().unwrap();
        drop(file);
        assert_eq!(reader.join().unwrap(), "row");
    }

    /// The program's umask decides who may read a log.
    #[test]
    fn a_log_has_the_permissions_of_any_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let [log, other] = ["log.csv", "other"].map(|name| folder.path().join(name));
        LogFile::new(log.clone()).begin().unwrap();
        std::fs::write(&other, "").unwrap();
        let [log, other] = [log, other].map(|path| path.metadata().unwrap().permissions());
        assert_eq!(log, other);
    }

    /// Opening alone leaves no lasting change.
    #[test]
    fn a_file_that_is_opened_and_not_begun_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("old.csv");
        std::fs::write(&old, "rows").unwrap();
        let new = folder.path().join("a/b/../c/new.csv");
        for path in [&old, &new] {
            let file = LogFile::new(path.clone());
            assert_eq!(file.write(b"row").unwrap(), 3);
            file.open().unwrap();
            assert!(path.exists());
            drop(file);
        }
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, std::slice::from_ref(&old));
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "rows");
        let file = LogFile::new(new.clone());
        file.write(b"row").unwrap();
        file.begin().unwrap();
        drop(file);
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "row");
    }
}
