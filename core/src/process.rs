//! Recognises a forked child process, which must not use its parent's resources.
//!
//! A fork copies memory, but neither the other threads nor CUDA. In the child, locks that those threads held
//! are never released, and tables that they changed stay half changed. The device memory belongs to the
//! parent.
//!
//! So all resources keep one rule in a forked child of the process that opened their device:
//! - An allocation fails with [`Unsupported`](crate::ErrorKind::Unsupported).
//! - A free does nothing, and dropping a resource leaves everything as it is.
//! - None of these calls the driver.
//!
//! A layer may keep a count or a lock above the resource, so a child should not free at all. Dropping is safe
//! in any case: it waits for no lock. A child that opens a device itself uses that device as any process
//! does.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that created a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(u32);

impl Origin {
    /// Returns this process.
    pub fn here() -> Self {
        notice_forks();
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether this process is a forked child of that process. Makes no system call.
    #[inline]
    pub fn is_elsewhere(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}

impl Default for Origin {
    /// Returns [this process](Self::here).
    fn default() -> Self {
        Self::here()
    }
}

/// Counts forks from now on.
fn notice_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(all(unix, not(miri)))]
        {
            extern "C" fn in_child() {
                GENERATION.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: the handler changes a number, which any process may do after a fork.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
    });
}
