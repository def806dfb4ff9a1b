//! The operating system's id of the calling thread.

/// The calling thread's id, as the operating system's tools show it.
#[inline]
pub(super) fn id() -> u32 {
    thread_local! {
        static MINE: u32 = ask();
    }
    // A destructor of another local of the thread may free memory after this one is destroyed.
    MINE.try_with(|id| *id).unwrap_or_else(|_| ask())
}

#[cfg(target_os = "linux")]
fn ask() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// On systems without such an id, threads are numbered.
#[cfg(not(target_os = "linux"))]
fn ask() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
