//! Asks watched programs about their memory.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millpond_core::own_file;
use millpond_core::watch::{FORMAT, ProgramMemory, VARIABLE, folders, socket_name};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Pid, geteuid, test_kill_process};
use serde::Deserialize;

/// The most bytes of an answer. The answer of a typical program has some kilobytes.
const MOST_BYTES: u64 = 16 << 20;

/// Why a program gave no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// No process listens on the socket.
    Gone,
    /// The program listened, and ended before it answered. A process of another container may do so.
    Silent,
    /// The program listens, but has not answered in time.
    Slow,
    /// The user may not connect to the socket.
    Denied,
    /// The answer cannot be read, or is not a valid document.
    Wrong(String),
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Self::Gone,
            ErrorKind::ConnectionReset => Self::Silent,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Slow,
            ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Wrong(error.to_string()),
        }
    }
}

impl From<Errno> for NoAnswer {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Asks the program that listens on a socket.
pub(super) fn ask(path: &Path, patience: Duration) -> Result<ProgramMemory, NoAnswer> {
    let start = Instant::now();
    let fd = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    // A connection waits while the program accepts no connections.
    set_socket_timeout(&fd, Timeout::Send, Some(patience))?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    let (mut from, mut text) = (UnixStream::from(fd).take(MOST_BYTES + 1), Vec::new());
    let mut part = vec![0; 64 << 10];
    loop {
        let left = patience.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        from.get_ref().set_read_timeout(Some(left.ok_or(NoAnswer::Slow)?))?;
        match from.read(&mut part)? {
            0 => break,
            read => text.extend_from_slice(&part[..read]),
        }
    }
    if text.is_empty() {
        return Err(NoAnswer::Silent);
    }
    if text.len() as u64 > MOST_BYTES {
        return Err(NoAnswer::Wrong(format!("the answer is larger than {} MiB", MOST_BYTES >> 20)));
    }
    read(&text)
}

fn read(text: &[u8]) -> Result<ProgramMemory, NoAnswer> {
    /// The fields that every version of the document has.
    #[derive(Deserialize)]
    struct Any {
        format: u32,
    }

    let wrong = |error: serde_json::Error| NoAnswer::Wrong(format!("the answer cannot be read: {error}"));
    let any: Any = serde_json::from_slice(text).map_err(wrong)?;
    if any.format != FORMAT {
        let why = format!(
            "the program's answer has version {}, but this command reads version {FORMAT}; use the \
             millpond-replay of the millpond version that the program uses",
            any.format
        );
        return Err(NoAnswer::Wrong(why));
    }
    serde_json::from_slice(text).map_err(wrong)
}

/// Whether there is a process with this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Existence {
    No,
    Own,
    OfAnotherUser,
}

/// Returns whether there is a process with this number.
pub(super) fn existence(process: u32) -> Existence {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    match pid.map(test_kill_process) {
        Some(Ok(())) => Existence::Own,
        Some(Err(Errno::PERM)) => Existence::OfAnotherUser,
        _ => Existence::No,
    }
}

/// The folders in which a process may have its socket.
fn folders_of(process: Option<u32>, folder: Option<&Path>) -> Vec<PathBuf> {
    if let Some(folder) = folder {
        return vec![folder.to_owned()];
    }
    let own = geteuid().as_raw();
    let owner = process.and_then(|process| Some(fs::metadata(format!("/proc/{process}")).ok()?.uid()));
    folders(owner.unwrap_or(own))
}

/// Finds the socket of a process, and asks the process.
///
/// # Errors
/// The error says why the process cannot be watched, and what to do.
pub(super) fn find(
    process: u32,
    folder: Option<&Path>,
    patience: Duration,
) -> Result<(PathBuf, ProgramMemory), String> {
    let folders = folders_of(Some(process), folder);
    let existence = existence(process);
    let mut is_denied = false;
    for folder in &folders {
        let path = folder.join(socket_name(process));
        match ask(&path, patience) {
            Ok(memory) => return Ok((path, memory)),
            Err(NoAnswer::Gone | NoAnswer::Silent) => {}
            Err(NoAnswer::Denied) => is_denied = true,
            // If a process has ended, a child of the process may still keep the socket open.
            Err(NoAnswer::Slow) if existence == Existence::No => {}
            Err(NoAnswer::Slow) => {
                let seconds = patience.as_secs();
                return Err(format!(
                    "process {process} has not answered for {seconds} s; it may be suspended (Ctrl+Z) or \
                     stopped in a debugger"
                ));
            }
            Err(NoAnswer::Wrong(why)) => return Err(format!("process {process}: {why}")),
        }
    }
    Err(match existence {
        _ if is_denied => of_another_user(process),
        Existence::No => format!("process {process} does not exist"),
        Existence::OfAnotherUser => of_another_user(process),
        Existence::Own => {
            let searched: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!(
                "process {process} is not watched: start it with {VARIABLE}=1, and try again after it has \
                 built a stack (there is no socket in {})",
                searched.join(" or ")
            )
        }
    })
}

fn of_another_user(process: u32) -> String {
    format!("process {process} belongs to another user; run this command as that user or as root")
}

fn is_own_socket(known: &Metadata) -> bool {
    known.file_type().is_socket() && known.uid() == geteuid().as_raw()
}

/// Returns the memory of each program that can be watched, by process number, and an error for each other
/// program. If a process of this user has ended and left its socket, removes the socket.
pub(super) fn list(folder: Option<&Path>, patience: Duration) -> (Vec<ProgramMemory>, Vec<String>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for folder in folders_of(None, folder) {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let process = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse::<u32>().ok());
            let Some(process) = process else { continue };
            let asked = entry.metadata().ok().filter(is_own_socket);
            match ask(&path, patience) {
                Ok(memory) => found.push(memory),
                // A new process may have this number, and its socket this name, meanwhile.
                Err(NoAnswer::Gone) => {
                    if let Some(asked) = asked.filter(|_| existence(process) == Existence::No) {
                        let _ = own_file::remove(&path, &asked);
                    }
                }
                Err(NoAnswer::Silent) => {}
                Err(NoAnswer::Slow) => errors.push(format!("process {process} does not answer")),
                Err(NoAnswer::Denied) => errors.push(of_another_user(process)),
                Err(NoAnswer::Wrong(why)) => errors.push(format!("process {process}: {why}")),
            }
        }
    }
    found.sort_by_key(|memory| memory.process);
    (found, errors)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Answers one request with this text, as often as it is repeated.
    fn asked(text: &'static [u8], times: usize) -> Result<ProgramMemory, NoAnswer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut to, _) = listener.accept().unwrap();
                // The reader may have had enough.
                let _ = (0..times).try_for_each(|_| to.write_all(text));
            });
            ask(&path, Duration::from_secs(60))
        })
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_refused() {
        let document = br#"{"format":1,"process":7,"program":"a","elapsed_us":5,"stacks":[],
            "stacks_left_out":0,"errors":[],"later":{}}"#;
        assert_eq!(asked(document, 1).unwrap().process, 7);
        for (text, times, why) in [
            (&br#"{"format":2,"stacks":7}"#[..], 1, "has version 2"),
            (br#"{"format":1}"#, 1, "cannot be read"),
            (b"\x00\xff", 1, "cannot be read"),
            (b"[[[[[[[[[[[[[[[[", 10_000, "cannot be read"),
            (&[b' '; 1 << 16], 1 << 10, "larger than 16 MiB"),
        ] {
            let error = asked(text, times).unwrap_err();
            assert!(matches!(&error, NoAnswer::Wrong(told) if told.contains(why)), "{why}: {error:?}");
        }
        assert!(matches!(asked(b"", 1), Err(NoAnswer::Silent)));
    }

    #[test]
    fn a_program_that_does_not_answer_is_slow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let short = Duration::from_millis(1);
        assert!(matches!(ask(&path, short), Err(NoAnswer::Slow)));
        let own = std::process::id();
        fs::rename(&path, folder.path().join(socket_name(own))).unwrap();
        let error = find(own, Some(folder.path()), short).unwrap_err();
        assert!(error.contains("may be suspended"), "{error}");
        let (found, errors) = list(Some(folder.path()), short);
        assert_eq!((found, errors), (vec![], vec![format!("process {own} does not answer")]));
        drop(listener);
        let error = find(own, Some(folder.path()), short).unwrap_err();
        assert!(error.contains("MILLPOND_WATCH=1") && error.contains("no socket in"), "{error}");
    }

    #[test]
    fn sockets_of_processes_that_have_ended_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let ended = socket_name(i32::MAX as u32);
        for name in [&*ended, &socket_name(std::process::id()), "note.txt", "x.sock"] {
            drop(UnixListener::bind(folder.path().join(name)).unwrap());
        }
        assert_eq!(list(Some(folder.path()), Duration::from_secs(1)), (vec![], vec![]));
        assert!(!folder.path().join(ended).exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert!(find(i32::MAX as u32, None, Duration::from_secs(1)).unwrap_err().contains("does not exist"));
        assert!(find(0, None, Duration::from_secs(1)).unwrap_err().contains("does not exist"));
    }

    /// A process of another container has a number that is unknown here, and may answer in another format.
    #[test]
    fn only_sockets_on_which_no_process_listens_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: i32| folder.path().join(socket_name(number as u32));
        fs::write(path(i32::MAX), "a file").unwrap();
        std::os::unix::fs::symlink(folder.path().join("nothing"), path(i32::MAX - 1)).unwrap();
        let _slow = UnixListener::bind(path(i32::MAX - 2)).unwrap();
        let other = UnixListener::bind(path(i32::MAX - 3)).unwrap();
        let (found, errors) = thread::scope(|scope| {
            scope.spawn(move || other.accept().unwrap().0.write_all(br#"{"format":2}"#).unwrap());
            list(Some(folder.path()), Duration::from_secs(1))
        });
        assert_eq!((found.len(), errors.len()), (0, 2), "{errors:?}");
        for number in 0..4 {
            assert!(fs::symlink_metadata(path(i32::MAX - number)).is_ok(), "{number}");
        }
    }
}
