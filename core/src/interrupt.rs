//! Ends waits of the host early when the user interrupts the program.

use std::sync::Arc;

use parking_lot::RwLock;

/// A callback on the thread that waits. It returns whether to end the wait.
pub type Ask = Arc<dyn Fn() -> bool + Send + Sync>;

static ASK: RwLock<Option<Ask>> = RwLock::new(None);

/// Installs the callback that a wait of the host calls from time to time. Returns the previous one.
///
/// In the Python bindings, the callback lets Python handle its signals, so that Ctrl-C ends the wait. A wait
/// that ends returns the error that it waited to avoid. Without a callback, nothing ends a wait early.
pub fn set_interrupt(ask: Option<Ask>) -> Option<Ask> {
    std::mem::replace(&mut *ASK.write(), ask)
}

/// Returns whether the calling thread must end its wait. Hold no lock during the call: it runs the program's
/// code.
pub fn is_interrupted() -> bool {
    let ask = ASK.read().clone();
    ask.is_some_and(|ask| ask())
}
