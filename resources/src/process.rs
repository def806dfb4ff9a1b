//! The process in which something was made.
//!
//! A fork copies memory, but neither the other threads nor CUDA. What those threads were in the middle of
//! stays so in the copy for ever: locks are taken that nobody gives back, and tables are half changed. So the
//! copy leaves everything of a resource where it is: it waits for no lock, makes no driver call and frees
//! nothing. The device's memory is the first process's.

use std::process;
use std::sync::Arc;

/// The process that made this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(process::id())
    }

    /// Whether this process is a copy of the one that made it.
    pub(crate) fn is_elsewhere(self) -> bool {
        self.0 != process::id()
    }
}

/// Keeps what is behind this for the rest of the process, whoever else lets it go.
pub(crate) fn leave<T>(what: &Arc<T>) {
    std::mem::forget(Arc::clone(what));
}
