//! Writes the logs that no drop has written before the process ends: those in a `static`, in a leaked handle,
//! or when `exit` is called.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once, Weak};

use parking_lot::Mutex;

use super::queue::Queue;

static LIVE: Mutex<Vec<Weak<Queue>>> = Mutex::new(Vec::new());

pub(super) fn register(queue: &Arc<Queue>) {
    static REGISTERED: Once = Once::new();
    if super::canary::without("at_exit") {
        return;
    }
    REGISTERED.call_once(|| {
        // SAFETY: `at_exit` may be called at any time on any thread: it touches only what lives for ever
        // and what it owns, and does not unwind.
        let refused = unsafe { libc::atexit(at_exit) } != 0;
        if refused {
            tracing::warn!(
                target: "millpond::logging",
                "the end of the process cannot be watched; flush the allocation log before it"
            );
        }
    });
    let mut live = LIVE.lock();
    live.retain(|queue| queue.strong_count() > 0);
    live.push(Arc::downgrade(queue));
}

extern "C" fn at_exit() {
    let live = std::mem::take(&mut *LIVE.lock());
    // A forked process has copies of its parent's logs, which the parent writes.
    let live: Vec<_> = live.iter().filter_map(Weak::upgrade).filter(|queue| queue.is_own_process()).collect();
    // A subscriber's panic must not change how the process ends.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // All at once: several destinations that hang take no longer than one.
        let endings: Vec<_> = live.iter().map(Queue::begin_end).collect();
        for (queue, ending) in live.iter().zip(endings) {
            queue.end(ending);
        }
    }));
}
