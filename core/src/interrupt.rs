//! Ends waits of the host early, for programs whose users interrupt them.

use std::sync::Arc;

use parking_lot::RwLock;

/// Asked on the thread that waits. It says whether the wait ends.
pub type Ask = Arc<dyn Fn() -> bool + Send + Sync>;

static ASK: RwLock<Option<Ask>> = RwLock::new(None);

/// Installs what a wait of the host asks from time to time, and returns what was installed before.
///
/// Python's bindings let Python handle its signals there, so that Ctrl-C ends the wait. A wait that ends
/// returns the error that it waited to avoid. Nothing is asked if nothing is installed.
pub fn set_interrupt(ask: Option<Ask>) -> Option<Ask> {
    std::mem::replace(&mut *ASK.write(), ask)
}

/// Whether the calling thread is to end its wait. Call it without locks: the program's code runs.
pub fn is_interrupted() -> bool {
    let ask = ASK.read().clone();
    ask.is_some_and(|ask| ask())
}
