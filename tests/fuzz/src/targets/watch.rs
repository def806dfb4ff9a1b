//! The socket of a watched program. A program that is watched gets the bytes as a request, and answers the
//! next request as ever. `top` gets the bytes as the answer of a program.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::{io, process, thread};

use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResourceExt, DriverHandle, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_replay::{cli, compare};
use tempfile::TempDir;

/// This program, which is watched, and the socket of a program that answers with the bytes.
struct Programs {
    /// Watched as long as it lives.
    _stack: AnyResource,
    socket: PathBuf,
    listener: UnixListener,
    _folder: TempDir,
    other: PathBuf,
}

static PROGRAMS: LazyLock<Programs> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder can be made");
    // SAFETY: no other thread of this process runs yet.
    unsafe { std::env::set_var("MILLPOND_WATCH", folder.path()) };
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(64 << 20));
    let spec: StackSpec = "cuda+pool+tracking".parse().expect("a stack");
    let stack = spec.build(&compare::layers(), &device).expect("a stack");
    stack.allocate_bytes(1 << 20, StreamRef::LEGACY).expect("memory");
    let name = format!("{}.sock", process::id());
    let other = folder.path().join("other");
    std::fs::create_dir(&other).expect("a folder can be made");
    let listener = UnixListener::bind(other.join(&name)).expect("a socket");
    Programs { _stack: stack, socket: folder.path().join(name), listener, _folder: folder, other }
});

/// A request of these bytes, whose answer is read, partly read, or not read.
fn request(programs: &Programs, end: u8, bytes: &[u8]) {
    let mut to = UnixStream::connect(&programs.socket).expect("the program listens");
    to.set_nonblocking(true).expect("a setting of the socket");
    let _ = to.write(bytes);
    match end % 3 {
        0 => drop(to.shutdown(Shutdown::Both)),
        1 => drop(to.read(&mut [0; 16])),
        _ => {}
    }
    drop(to);
    let mut answer = Vec::new();
    let mut again = UnixStream::connect(&programs.socket).expect("the program still listens");
    again.read_to_end(&mut answer).expect("the program still answers");
    let answer: serde_json::Value = serde_json::from_slice(&answer).expect("an answer is JSON");
    assert_eq!(answer["process"], process::id(), "{answer}");
}

/// `top` shows a program that answers with these bytes.
fn show(programs: &Programs, format: u8, bytes: &[u8]) {
    let process = process::id().to_string();
    let folder = programs.other.to_str().expect("a path in Unicode");
    let format = if format < 128 { "json" } else { "table" };
    let words = ["millpond-replay", "top", &process, "--once", "--folder", folder, "--format", format];
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut to, _) = programs.listener.accept().expect("a request");
            let _ = to.write_all(bytes);
        });
        let ran = cli::run(words.map(OsString::from), &compare::layers(), io::sink());
        assert!(ran.is_ok(), "{ran:?}");
    });
}

pub(super) fn run(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let programs = &*PROGRAMS;
    request(programs, *first, bytes);
    show(programs, *first, bytes);
}
