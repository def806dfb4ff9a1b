//! Writes the logs that no drop has written by the end of the process: logs in a `static` or in a leaked
//! handle, or when `exit` is called.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::ending::Ending;
use crate::panicked::caught;

/// A log that keeps rows, which must be written before the process ends.
pub(super) trait KeepsRows: Send + Sync {
    /// Returns whether the rows belong to this process, and not to its parent before a fork.
    fn is_own_process(&self) -> bool;

    /// Starts writing the rows. Later rows are written at once.
    fn write_last(self: Arc<Self>) -> Ending;

    /// Waits for the end of [`write_last`](Self::write_last), unless the destination hangs.
    fn wait_for_last(&self, ending: Ending);
}

static LIVE: Mutex<Vec<Weak<dyn KeepsRows>>> = Mutex::new(Vec::new());

pub(super) fn register(log: Weak<dyn KeepsRows>) {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if super::canary::without("at_exit") {
        return;
    }
    // SAFETY: `at_exit` may be called at any time on any thread. It touches only data that lives for ever and
    // data that it owns, and does not unwind.
    let is_refused = !REGISTERED.swap(true, Ordering::SeqCst) && unsafe { libc::atexit(at_exit) } != 0;
    let mut live = LIVE.lock();
    live.retain(|log| log.strong_count() > 0);
    live.push(log);
    drop(live);
    if is_refused {
        // Without a lock: the subscriber may open a log.
        tracing::warn!(
            target: "millpond::logging",
            "the allocation log cannot be flushed at the end of the process; flush it before the process ends"
        );
    }
}

extern "C" fn at_exit() {
    let live = mem::take(&mut *LIVE.lock());
    // A forked process has copies of its parent's logs, but the parent writes them.
    let live: Vec<_> = live.iter().filter_map(Weak::upgrade).filter(|log| log.is_own_process()).collect();
    // A panic of a subscriber or a writer changes neither how the process ends nor the end of other logs. All
    // logs end at once: several hanging destinations take no longer than one.
    let endings: Vec<_> = live.iter().map(|log| caught(|| Arc::clone(log).write_last())).collect();
    for (log, ending) in live.into_iter().zip(endings) {
        caught(move || ending.map(|ending| log.wait_for_last(ending)));
    }
}
