//! Keeps forks apart from reports.
//!
//! If a process forked while its watch thread held the lock of a pool, the child could never use its copy of
//! the pool. So a fork waits for the stack that is being reported, though not for long: the report may wait
//! for a lock that the forking thread holds.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Held during a report, and during a fork. It has no list of waiters, so a forked child can unlock it.
static IS_BUSY: AtomicBool = AtomicBool::new(false);
/// Whether the forking thread holds it.
static IS_FORKING: AtomicBool = AtomicBool::new(false);
/// The number of the socket, which a child closes; -1 for none.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
/// The device and the inode of the socket. If the program closes descriptors that it did not open, the number
/// may belong to another file by now.
static FILE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// How long a fork waits.
const PATIENCE: Duration = Duration::from_secs(1);

fn lock(patience: Duration) -> bool {
    let start = Instant::now();
    while IS_BUSY.swap(true, Ordering::Acquire) {
        if start.elapsed() > patience {
            return false;
        }
        thread::sleep(Duration::from_micros(20));
    }
    true
}

/// Holds `IS_BUSY` until it is dropped, also by a panic.
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        IS_BUSY.store(false, Ordering::Release);
    }
}

/// Runs `report` so that the process does not fork meanwhile.
pub(super) fn between<T>(report: impl FnOnce() -> T) -> T {
    while !lock(Duration::MAX) {}
    let _turn = Turn;
    report()
}

/// Closes this socket in forked children, and watches forks from now on.
pub(super) fn watch(socket: i32) -> io::Result<()> {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    let file = file_of(socket).ok_or_else(io::Error::last_os_error)?;
    FILE.iter().zip(file).for_each(|(known, part)| known.store(part, Ordering::Relaxed));
    SOCKET.store(socket, Ordering::Release);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers do not unwind, and use only statics and calls that a forked child may make.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    }
    Ok(())
}

/// Returns whether the number of the socket still belongs to the socket.
pub(super) fn has_socket() -> bool {
    is_socket(SOCKET.load(Ordering::Acquire))
}

/// Forgets the socket, which children no longer close. Returns whether its number still belongs to it.
pub(super) fn forget() -> bool {
    is_socket(SOCKET.swap(-1, Ordering::Acquire))
}

fn is_socket(number: i32) -> bool {
    number >= 0 && file_of(number) == Some(FILE.each_ref().map(|part| part.load(Ordering::Relaxed)))
}

/// Returns the device and the inode of an open file. A forked child may call this.
#[allow(clippy::unnecessary_cast)] // The types differ between systems.
fn file_of(number: i32) -> Option<[u64; 2]> {
    let mut known = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills `known` if it returns 0.
    unsafe {
        (libc::fstat(number, known.as_mut_ptr()) == 0).then(|| {
            let known = known.assume_init();
            [known.st_dev as u64, known.st_ino as u64]
        })
    }
}

extern "C" fn before() {
    if lock(PATIENCE) {
        IS_FORKING.store(true, Ordering::Relaxed);
    }
}

extern "C" fn after() {
    if IS_FORKING.swap(false, Ordering::Relaxed) {
        IS_BUSY.store(false, Ordering::Release);
    }
}

extern "C" fn in_child() {
    // The thread that reported is not in the child.
    IS_FORKING.store(false, Ordering::Relaxed);
    IS_BUSY.store(false, Ordering::Release);
    let socket = SOCKET.swap(-1, Ordering::Acquire);
    if is_socket(socket) {
        // SAFETY: the descriptor is this process's copy of the socket, which only the watch thread used.
        unsafe { libc::close(socket) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_panics_lets_forks_go_on() {
        let is_free = || !IS_BUSY.load(Ordering::Acquire);
        assert!(!between(is_free), "a report keeps forks apart");
        let panicked = std::panic::catch_unwind(|| between(|| panic!("on purpose")));
        assert!(panicked.is_err() && is_free());
    }
}
