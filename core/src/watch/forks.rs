//! Keeps forks apart from reports.
//!
//! If a process forked while its watch thread held the lock of a pool, the child could never use its copy of
//! the pool. So a fork waits for the stack that is being reported, though not for long: the report may wait
//! for a lock that the forking thread holds.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The report or the fork that has the turn, or [`FREE`]. There is no list of waiters, so a forked child can
/// end the turn.
static TURN: AtomicUsize = AtomicUsize::new(FREE);
const FREE: usize = 0;
/// The number of the socket, which a child closes; -1 for none.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
/// The device and the inode of the socket. If the program closes descriptors that it did not open, the number
/// may belong to another file by now.
static FILE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// How long a fork waits.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };

/// A fork by this thread.
#[allow(clippy::unnecessary_cast)] // The types differ between systems.
fn this_fork() -> usize {
    // SAFETY: the call has no preconditions. A forked child may make it.
    (unsafe { libc::pthread_self() }) as usize
}

/// A report by this thread. Threads are numbered by addresses of structures, which are even.
fn this_report() -> usize {
    this_fork() | 1
}

/// Waits for the turn. Returns whether the caller has it now.
fn take_turn(by: usize, patience: Duration) -> bool {
    let start = Instant::now();
    while let Err(other) = TURN.compare_exchange(FREE, by, Ordering::Acquire, Ordering::Relaxed) {
        // A layer that forks while it is being reported would wait for itself.
        if other == this_report() || start.elapsed() > patience {
            return false;
        }
        thread::sleep(Duration::from_micros(20));
    }
    true
}

/// Ends the turn, unless another fork or report has it.
fn end_turn(by: usize) {
    let _ = TURN.compare_exchange(by, FREE, Ordering::Release, Ordering::Relaxed);
}

/// A report's turn, which ends when this is dropped, also by a panic.
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        end_turn(this_report());
    }
}

/// Runs `report` so that the process does not fork meanwhile.
pub(super) fn between<T>(report: impl FnOnce() -> T) -> T {
    // A layer whose report asks for a report has the turn already.
    let _turn = take_turn(this_report(), Duration::MAX).then(|| Turn);
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
    take_turn(this_fork(), PATIENCE);
}

extern "C" fn after() {
    end_turn(this_fork());
}

extern "C" fn in_child() {
    // The thread that had the turn may not be in the child.
    TURN.store(FREE, Ordering::Release);
    let socket = SOCKET.swap(-1, Ordering::Acquire);
    if is_socket(socket) {
        // SAFETY: the descriptor is this process's copy of the socket, which only the watch thread used.
        unsafe { libc::close(socket) };
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// The tests share the process's turn.
    static ALONE: Mutex<()> = Mutex::new(());

    fn is_free() -> bool {
        TURN.load(Ordering::Acquire) == FREE
    }

    #[test]
    fn a_report_that_panics_lets_forks_go_on() {
        let _alone = ALONE.lock();
        assert!(!between(is_free), "a report keeps forks apart");
        let panicked = std::panic::catch_unwind(|| between(|| panic!("on purpose")));
        assert!(panicked.is_err() && is_free());
    }

    #[test]
    fn a_fork_that_waited_in_vain_ends_no_turn_of_others() {
        let _alone = ALONE.lock();
        let fork_in_vain = || {
            before();
            after();
        };
        before();
        thread::scope(|scope| scope.spawn(fork_in_vain).join()).unwrap();
        assert!(!is_free(), "this thread still forks");
        after();
        assert!(is_free());
        between(|| {
            thread::scope(|scope| scope.spawn(fork_in_vain).join()).unwrap();
            fork_in_vain();
            between(|| {});
            assert!(!is_free(), "the report goes on");
        });
        assert!(is_free());
    }
}
