//! Notices that the process is a fork of a process that has blocks.

#[cfg(unix)]
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_core::{Error, Result};

/// Whether this process is a forked copy of a process that has blocks. The copy must not touch these blocks:
/// the parent owns the device memory, and locks that other threads held at the fork are never released.
static IS_COPY: AtomicBool = AtomicBool::new(false);

/// Notices forks from now on.
pub(crate) fn notice_forks() {
    #[cfg(unix)]
    {
        static ONCE: Once = Once::new();
        extern "C" fn note() {
            IS_COPY.store(true, Ordering::Relaxed);
        }
        ONCE.call_once(|| {
            // SAFETY: the function stores a flag, which any process may do after a fork.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(note)) };
        });
    }
}

/// Whether this process is a copy that must leave the blocks alone.
pub(crate) fn is_copy() -> bool {
    IS_COPY.load(Ordering::Relaxed)
}

/// Returns an error in a forked copy of the process.
pub(crate) fn check_process() -> Result<()> {
    if is_copy() {
        return Err(Error::forked());
    }
    Ok(())
}
