//! A spin lock for very short critical sections: one atomic exchange locks it, a plain store unlocks it.
//!
//! The pool holds these locks for some ten nanoseconds, millions of times a second. A lock that wakes
//! sleepers at each release would double the cost. A waiting thread spins, then yields, then sleeps for some
//! microseconds at a time. The lock has no state of waiting threads, so a forked child can release it.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync;
use crate::sync::{AtomicBool, Ordering};
use crate::tuning::SPINS;

/// A spin lock; see the [module](self).
#[derive(Default)]
pub(crate) struct SpinLock<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the value, under the lock.
unsafe impl<T: Send> Send for SpinLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Access to the value. Dropping it releases the lock.
pub(crate) struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
    /// Threads may share a guard only if they may share its value.
    value: PhantomData<*const T>,
}

// SAFETY: threads that share the guard share the value, and no more.
unsafe impl<T: Sync> Sync for SpinGuard<'_, T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { is_locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let taken = !self.is_locked.swap(true, Ordering::Acquire);
        // `then_some` would always make a guard, and its drop would release the other thread's lock.
        taken.then(|| SpinGuard { lock: self, value: PhantomData })
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> SpinGuard<'_, T> {
        let mut tries = 0;
        loop {
            while self.is_locked.load(Ordering::Relaxed) {
                tries += 1;
                if tries < SPINS {
                    sync::spin_loop();
                } else if tries < 2 * SPINS {
                    sync::yield_now();
                } else {
                    sync::sleep(Duration::from_micros(20));
                }
            }
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_locked.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

#[cfg(all(test, millpond_loom))]
mod models;

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use super::*;

    #[test]
    fn threads_count_together() {
        let count = SpinLock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 40_000);
    }

    #[test]
    fn a_panic_releases_the_lock() {
        let lock = SpinLock::new(0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("on purpose");
        }));
        assert!(panicked.is_err() && lock.try_lock().is_some());
    }
}
