//! Keeps forks apart from reports.
//!
//! If a process forked while its watch thread held the lock of a pool, the child could never use its copy of
//! the pool. So a fork waits for the stack that is being reported, though not for long: the report may wait
//! for a lock that the forking thread holds.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Held during a report, and during a fork. It has no list of waiters, so a forked child can unlock it.
static IS_BUSY: AtomicBool = AtomicBool::new(false);
/// Whether the forking thread holds it.
static IS_FORKING: AtomicBool = AtomicBool::new(false);
/// The socket, which a child closes; -1 for none.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

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

/// Runs `report` so that the process does not fork meanwhile.
pub(super) fn between<T>(report: impl FnOnce() -> T) -> T {
    struct Unlock;
    impl Drop for Unlock {
        fn drop(&mut self) {
            IS_BUSY.store(false, Ordering::Release);
        }
    }
    while !lock(Duration::MAX) {}
    let _unlock = Unlock;
    report()
}

/// Closes this socket in forked children, and watches forks from now on.
pub(super) fn watch(socket: i32) {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    SOCKET.store(socket, Ordering::Relaxed);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers do not unwind, and use only statics and calls that a forked child may make.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
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
    let socket = SOCKET.swap(-1, Ordering::Relaxed);
    if socket >= 0 {
        // SAFETY: the descriptor is this process's copy of the socket, which only the watch thread used.
        unsafe { libc::close(socket) };
    }
}
