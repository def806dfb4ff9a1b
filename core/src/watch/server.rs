//! The thread that answers requests.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use super::folder::{prepare, socket_name};
use super::forks;
use super::memory::ProgramMemory;
use crate::own_file;

/// How long a reader may take for the whole answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A socket of this process, which stays open as long as its thread lives.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    own: Metadata,
}

impl Socket {
    /// Removes the socket, unless another process has put its own in the place.
    pub(super) fn remove(&self) {
        let _ = own_file::remove(&self.path, &self.own);
    }
}

/// Opens the socket, and starts the thread, which writes `memory()` for each request. Returns the socket.
pub(super) fn start(
    value: &OsStr,
    memory: impl Fn() -> ProgramMemory + Send + 'static,
) -> Result<Socket, String> {
    let path = prepare(value)?.join(socket_name(std::process::id()));
    let failed = |error: io::Error| format!("the socket {} cannot be opened: {error}", path.display());
    if SocketAddr::from_pathname(&path).is_err() {
        let bytes = path.as_os_str().len();
        return Err(format!(
            "the path of the socket {} has {bytes} bytes, more than sockets can have; name a folder with a \
             shorter path",
            path.display()
        ));
    }
    let (listener, own) = bind(&path).map_err(failed)?;
    forks::watch(listener.as_raw_fd()).map_err(failed)?;
    let socket = Socket { path, own };
    let serve = move || {
        serve(&listener, &memory);
        if !forks::forget() {
            // The number belongs to another file by now.
            let _ = listener.into_raw_fd();
        }
    };
    match thread::Builder::new().name("millpond-watch".to_owned()).spawn(serve) {
        Ok(_) => Ok(socket),
        Err(error) => {
            forks::forget();
            socket.remove();
            Err(format!("the thread cannot be started: {error}"))
        }
    }
}

/// Binds a socket that only the owner of the process can use. No living process has this one's number, so a
/// new socket replaces an old one of that name, unless a process of another container listens on it.
fn bind(path: &Path) -> io::Result<(UnixListener, Metadata)> {
    if fs::symlink_metadata(path).is_ok() && !is_left_over(path) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    // A new socket has the permissions that the program gives to new files. So it is made in a folder that is
    // closed to others, and new: a link that another user prepared is refused.
    // The path there is as long as the final one, because paths of sockets have a limit.
    let random = format!("{:016x}", RandomState::new().build_hasher().finish());
    let name_bytes = path.file_name().map_or(0, OsStr::len);
    let closed = path.with_file_name(&random[..name_bytes.saturating_sub(2).clamp(1, random.len())]);
    let socket = closed.join("s");
    DirBuilder::new().mode(0o700).create(&closed)?;
    let bound = UnixListener::bind(&socket).and_then(|listener| {
        fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        let own = fs::symlink_metadata(&socket)?;
        fs::rename(&socket, path)?;
        Ok((listener, own))
    });
    if bound.is_err() {
        let _ = fs::remove_file(&socket);
    }
    let _ = fs::remove_dir(&closed);
    bound
}

/// Returns whether this is a socket on which no process listens.
fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|known| known.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).err().is_some_and(refused)
}

fn serve(listener: &UnixListener, memory: impl Fn() -> ProgramMemory) {
    block_signals();
    // The program may have closed all descriptors, and opened files of the same numbers.
    while forks::has_socket() {
        match listener.accept() {
            Ok((reader, _)) => {
                // A reader that has gone needs no answer.
                let _ = answer(reader, &memory());
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ECONNABORTED) => {}
                // The process has no descriptor or memory left now.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    thread::sleep(Duration::from_secs(1));
                }
                _ => return,
            },
        }
    }
}

/// Leaves the program's signals to its own threads. A reader that has gone would else end the program by
/// `SIGPIPE`.
fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the first call fills the set that the second one reads.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), null_mut());
    }
}

fn answer(mut reader: UnixStream, memory: &ProgramMemory) -> io::Result<()> {
    let text = serde_json::to_vec(memory)?;
    let (mut rest, start) = (&text[..], Instant::now());
    while !rest.is_empty() {
        // A timeout of zero is an error, and ends the answer too.
        reader.set_write_timeout(Some(PATIENCE.saturating_sub(start.elapsed())))?;
        let written = reader.write(rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// A folder may be as long as the limit of sockets' paths allows, for processes of all numbers.
    #[test]
    fn the_longest_path_of_a_socket_can_be_used() {
        const MOST: usize = 107; // as on Linux: `sun_path` has 108 bytes, with the NUL
        let base = std::env::temp_dir().join(format!("millpond-test-long-{}", std::process::id()));
        for process in [1, 4_194_304] {
            let name = socket_name(process);
            let missing = MOST - base.as_os_str().len() - name.len() - 2;
            let path = base.join("x".repeat(missing)).join(name);
            DirBuilder::new().recursive(true).create(path.parent().unwrap()).unwrap();
            if cfg!(target_os = "linux") {
                assert!(SocketAddr::from_pathname(&path).is_ok());
                assert!(SocketAddr::from_pathname(path.with_extension("sockx")).is_err());
            }
            let (listener, _) = bind(&path).unwrap();
            UnixStream::connect(&path).unwrap();
            drop(listener);
            assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "only the socket is left");
        }
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_with_its_length() {
        let base = std::env::temp_dir().join(format!("millpond-test-too-long-{}", std::process::id()));
        let folder = base.join("x".repeat(120));
        fs::create_dir(&base).unwrap();
        let error = start(folder.as_os_str(), || unreachable!("no request comes")).unwrap_err();
        let bytes = folder.join(socket_name(std::process::id())).as_os_str().len();
        assert!(error.contains(&format!("has {bytes} bytes")) && error.contains("shorter path"), "{error}");
        fs::remove_dir_all(base).unwrap();
    }
}
