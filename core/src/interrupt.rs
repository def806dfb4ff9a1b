//! Lets a thread end its wait on the host early when the user interrupts the program.

use std::sync::Arc;

use parking_lot::RwLock;

/// A callback that runs on a waiting thread. It returns `true` if the thread must end its wait.
pub type Ask = Arc<dyn Fn() -> bool + Send + Sync>;

static ASK: RwLock<Option<Ask>> = RwLock::new(None);

/// Installs the callback that a waiting thread calls from time to time. Returns the previously installed
/// callback.
///
/// If the callback returns `true`, the wait ends early. The waiting call then returns the error that it
/// wanted to avoid by waiting. Without a callback, no wait ends early. In the Python bindings, the callback
/// runs Python's signal handlers, so Ctrl-C ends the wait.
pub fn set_interrupt(ask: Option<Ask>) -> Option<Ask> {
    std::mem::replace(&mut *ASK.write(), ask)
}

/// Returns whether the calling thread must end its wait. Hold no lock while you call this function, because
/// it runs the installed callback.
pub fn is_interrupted() -> bool {
    let ask = ASK.read().clone();
    ask.is_some_and(|ask| ask())
}
