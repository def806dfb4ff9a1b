//! The operating system's id of the calling thread.

/// Returns the calling thread's id, as tools of the operating system show it.
#[inline]
pub(super) fn id() -> u32 {
    thread_local! {
        static MINE: u32 = ask();
    }
    // After this local is destroyed, a destructor of another local of the thread may still free memory.
    MINE.try_with(|id| *id).unwrap_or_else(|_| ask())
}

#[cfg(target_os = "linux")]
fn ask() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Numbers the threads on systems without such an id.
#[cfg(not(target_os = "linux"))]
fn ask() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
