//! Tells watchers when a pool takes memory from its upstream, and when a pool returns memory. The adaptor
//! `recording` is such a watcher.
//!
//! A segment is contiguous memory that a pool holds. A pool reports a segment after the pool has allocated or
//! freed it, and holds no lock during the report. If there is no watcher, a report only reads one atomic
//! counter.
//!
//! A pool that maps pages may build a block from several pieces of its memory, at another address. It then
//! reports that the pieces are unmapped and that the block is mapped, and the reverse when the block is free
//! again. So the segments never list a byte of the device twice. If several threads use a pool, their reports
//! of such blocks may arrive in another order.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::DeviceId;

/// The action of a pool on a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SegmentAction {
    /// The pool allocated the segment from its upstream.
    Allocate,
    /// The pool returned the segment to its upstream.
    Free,
    /// The pool created physical memory and mapped it, or memory of the pool came to this address.
    Map,
    /// The pool unmapped physical memory and released it, or the memory went to another address.
    Unmap,
}

/// Describes one segment that a pool took or returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SegmentEvent {
    /// The action of the pool on the segment.
    pub action: SegmentAction,
    /// The device that holds the memory.
    pub device: DeviceId,
    /// The pool's number, unique in the process.
    pub pool: u64,
    /// The address at which the segment starts.
    pub address: u64,
    /// The size of the segment in bytes.
    pub bytes: u64,
}

impl SegmentEvent {
    /// Creates an event: the pool with this number took or returned `bytes` at `address`.
    pub const fn new(action: SegmentAction, device: DeviceId, pool: u64, address: u64, bytes: u64) -> Self {
        Self { action, device, pool, address, bytes }
    }
}

/// Receives an event for each segment that a pool of this process takes or returns.
pub trait SegmentWatcher: Send + Sync {
    /// Receives an event. The method runs inside a call of the pool, so it must not call the pool. A panic of
    /// the method does not reach the pool's caller: it becomes a `tracing` event.
    fn note(&self, event: &SegmentEvent);
}

static WATCHERS: RwLock<Vec<Weak<dyn SegmentWatcher>>> = RwLock::new(Vec::new());
/// The number of entries in that list.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Registers a watcher. The watcher receives all later events until it is dropped.
pub fn watch(watcher: &Arc<dyn SegmentWatcher>) {
    let mut watchers = WATCHERS.write();
    watchers.retain(|known| known.strong_count() > 0);
    watchers.push(Arc::downgrade(watcher));
    COUNT.store(watchers.len(), Ordering::Relaxed);
}

/// Returns whether there is a watcher. If there is none, a pool need not prepare a report.
#[inline]
pub fn is_watched() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Reports an event to all watchers, and catches their panics. Hold no lock during this call.
pub fn report(event: &SegmentEvent) {
    if is_watched() {
        // The list is copied: a watcher may drop its last owner, or watch another pool.
        let watchers: Vec<_> = WATCHERS.read().iter().filter_map(Weak::upgrade).collect();
        for watcher in watchers {
            if !returns(|| watcher.note(event)) {
                // The program's subscriber may panic, too.
                returns(|| tracing::error!(target: "millpond::segments", "a watcher of segments panicked"));
            }
            // This may drop the watcher, which is the program's code, too.
            returns(|| drop(watcher));
        }
    }
}

/// Returns whether a call of the program's code returns without a panic. Leaks the payload of a panic,
/// because its drop also runs code of the program.
fn returns(call: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Notes(Mutex<Vec<u64>>);

    impl SegmentWatcher for Notes {
        fn note(&self, event: &SegmentEvent) {
            self.0.lock().push(event.address);
            // A watcher may watch others.
            let other: Arc<dyn SegmentWatcher> = Arc::new(Self::default());
            watch(&other);
        }
    }

    #[test]
    fn a_watcher_is_told_while_it_lives() {
        let tell =
            |address| report(&SegmentEvent::new(SegmentAction::Map, DeviceId::sim(0), 1, address, 256));
        let notes = Arc::new(Notes::default());
        let watcher: Arc<dyn SegmentWatcher> = notes.clone();
        tell(1);
        watch(&watcher);
        assert!(is_watched());
        tell(2);
        tell(3);
        drop(watcher);
        assert_eq!(*notes.0.lock(), [2, 3]);
        drop(notes);
        tell(4);
    }
}
