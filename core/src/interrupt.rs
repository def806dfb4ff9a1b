//! Ends a wait on the host early when the user interrupts the program.

use std::sync::Arc;

use parking_lot::RwLock;

/// A callback that runs on the waiting thread. It returns whether the thread must end its wait.
pub type Ask = Arc<dyn Fn() -> bool + Send + Sync>;

static ASK: RwLock<Option<Ask>> = RwLock::new(None);

/// Installs the callback that a thread calls from time to time while it waits. Returns the previous callback.
///
/// In the Python bindings, the callback lets Python handle its signals, so that Ctrl-C ends the wait. A call
/// whose wait ends early returns the error that it waited to avoid. Without a callback, no wait ends early.
pub fn set_interrupt(ask: Option<Ask>) -> Option<Ask> {
    std::mem::replace(&mut *ASK.write(), ask)
}

/// Returns whether the calling thread must end its wait. Hold no lock during this call, because it runs code
/// of the program.
pub fn is_interrupted() -> bool {
    let ask = ASK.read().clone();
    ask.is_some_and(|ask| ask())
}
