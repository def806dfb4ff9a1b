/// The calling thread's id, as the operating system's tools show it.
pub(super) fn id() -> u64 {
    thread_local! {
        static MINE: u64 = ask();
    }
    // A destructor of a thread's local may free memory after this one is gone.
    MINE.try_with(|id| *id).unwrap_or_else(|_| ask())
}

#[cfg(target_os = "linux")]
fn ask() -> u64 {
    u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
}

/// Where the system has no such id, threads are numbered.
#[cfg(not(target_os = "linux"))]
fn ask() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
