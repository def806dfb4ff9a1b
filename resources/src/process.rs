//! Recognises a forked child process, which must not use its parent's resources.
//!
//! A fork copies memory, but neither the other threads nor CUDA. In the child, locks that those threads held
//! are never released, and tables that they changed stay half changed. So the child leaves a resource as it
//! is: it waits for no lock, makes no driver call and frees nothing. The device memory belongs to the parent.

use std::process;
use std::sync::Arc;

/// The process that created a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(process::id())
    }

    /// Returns whether this process is a forked child of the one that created the resource.
    pub(crate) fn is_elsewhere(self) -> bool {
        self.0 != process::id()
    }
}

/// Keeps a value for the rest of the process.
pub(crate) fn leave<T>(what: &Arc<T>) {
    std::mem::forget(Arc::clone(what));
}
