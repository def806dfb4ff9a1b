//! Waits for other threads' frees, without a lock that those frees need.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use millpond_core::interrupt::is_interrupted;

use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, has_failed};

/// The longest time that a thread waits between two attempts. If a free misses that a thread waits, that
/// thread loses this much.
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// Wakes the threads that wait for memory when another thread frees a block.
#[derive(Default)]
pub(crate) struct Frees {
    /// The number of waiting threads.
    waiting: AtomicUsize,
    /// The number of frees while any thread waited.
    count: Mutex<u64>,
    freed: Condvar,
}

/// Counts a waiting thread, while this value lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if has_failed() {
            return;
        }
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Frees {
    /// Notes that a block was freed.
    #[inline]
    pub(crate) fn note(&self) {
        if self.are_awaited() {
            *self.count.lock() += 1;
            self.freed.notify_all();
        }
    }

    /// Calls `attempt` until it serves the request, or fails for a reason that frees do not help
    /// (`is_curable`). Also stops when `timeout` has passed since `begin`, or when the program ends the wait.
    /// Between two attempts it waits for frees. During an attempt it holds no lock.
    #[cold]
    pub(crate) fn wait_for<T, E>(
        &self,
        begin: Instant,
        timeout: Duration,
        is_curable: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let left = || timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero());
        let _waiting = Waiting::begin(&self.waiting);
        loop {
            // Read before the attempt: a later free ends the nap at once.
            let seen = *self.count.lock();
            let error = match attempt() {
                Err(error) if is_curable(&error) => error,
                other => return other,
            };
            if left().is_none() {
                return Err(error);
            }
            let mut count = self.count.lock();
            while let (true, Some(left)) = (*count == seen, left()) {
                if self.freed.wait_for(&mut count, left.min(LONGEST_NAP)).timed_out() {
                    break;
                }
            }
            drop(count);
            if is_interrupted() {
                return Err(error);
            }
        }
    }

    /// Returns whether a thread waits for a free.
    #[inline]
    pub(crate) fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    #[cfg(test)]
    pub(crate) fn counted(&self) -> u64 {
        *self.count.lock()
    }
}

impl fmt::Debug for Frees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frees").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// The locks that a thread holds and that other threads' frees need.
#[derive(Clone, Copy)]
struct Held {
    locks: u32,
    /// How long a layer below the locks would have waited for a free.
    wanted: Option<Duration>,
}

thread_local! {
    static HELD: Cell<Held> = const { Cell::new(Held { locks: 0, wanted: None }) };
}

/// Marks, while it lives, that the calling thread holds a lock that other threads' frees need. Layers below
/// then do not wait for frees, and leave the wait to the layer with the outermost lock.
pub(crate) struct Exclusive {
    /// The lock belongs to its thread.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Exclusive {
    pub(crate) fn begin() -> Self {
        let _ = HELD.try_with(|held| {
            let Held { locks, wanted } = held.get();
            held.set(Held { locks: locks + 1, wanted: wanted.filter(|_| locks > 0) });
        });
        Self { not_send: std::marker::PhantomData }
    }

    /// Returns how long a layer below would have waited, if this is the thread's outermost lock.
    pub(crate) fn wanted(&self) -> Option<Duration> {
        let held = HELD.try_with(Cell::get).ok()?;
        held.wanted.filter(|_| held.locks == 1)
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| held.set(Held { locks: held.get().locks - 1, ..held.get() }));
    }
}

/// Returns whether a layer that wants to wait for frees must leave the wait to a layer above, whose lock the
/// thread holds.
pub(crate) fn leaves_to_above(timeout: Duration) -> bool {
    let leaves = HELD.try_with(|held| {
        let Held { locks, wanted } = held.get();
        if locks > 0 {
            held.set(Held { locks, wanted: wanted.max(Some(timeout)) });
        }
        locks > 0
    });
    leaves.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_left_to_the_outermost_lock_alone() {
        let time = Duration::from_secs(1);
        assert!(!leaves_to_above(time), "no lock is held");
        let outer = Exclusive::begin();
        assert_eq!(outer.wanted(), None);
        {
            let inner = Exclusive::begin();
            assert!(leaves_to_above(time) && leaves_to_above(time / 2));
            assert_eq!(inner.wanted(), None, "another lock is held");
        }
        assert_eq!(outer.wanted(), Some(time), "the longest of both");
        drop(outer);
        assert_eq!(Exclusive::begin().wanted(), None, "what was wanted under the last lock is forgotten");
        assert!(!leaves_to_above(time));
    }
}
