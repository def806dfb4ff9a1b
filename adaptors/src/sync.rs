//! Locks and atomics of budgets and of waits. They come from the usual crates or, in models (`--cfg
//! millpond_loom`), from loom.

#[cfg(not(all(test, millpond_loom)))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(all(test, millpond_loom)))]
pub(crate) use plain::{SHARDS, has_failed, makes, shard_of_thread};
#[cfg(not(all(test, millpond_loom)))]
pub(crate) use spin::mutex::{SpinMutex, SpinMutexGuard};
#[cfg(not(all(test, millpond_loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(all(test, millpond_loom))]
pub(crate) use modelled::*;

/// A mistake that a model makes on purpose, to show that the other models would find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// A free stays in its thread's stock, although a request waits for it.
    KeepsFrees,
    /// A request decides after each stock is empty, but while threads fill stocks again.
    LooksAtOneStockAtATime,
    /// A budget may borrow what another request waits for.
    BorrowsClaimed,
}

#[cfg(not(all(test, millpond_loom)))]
mod plain {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The number of parts of [`Shards`](crate::shards::Shards), one for each bit of a word.
    pub(crate) const SHARDS: usize = u64::BITS as usize;

    #[inline]
    pub(crate) fn shard_of_thread() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
        }
        // After this local is destroyed, a destructor of another local of the thread may still free memory;
        // any part will do then.
        MINE.try_with(|mine| *mine).unwrap_or(0)
    }

    /// Returns whether a model has failed.
    #[inline]
    pub(crate) const fn has_failed() -> bool {
        false
    }

    /// Only models make mistakes.
    #[inline]
    pub(crate) const fn makes(_: super::Mistake) -> bool {
        false
    }
}

#[cfg(all(test, millpond_loom))]
mod modelled {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::Mistake;

    pub(crate) const SHARDS: usize = 2;
    const NEVER_POISONED: &str = "loom ends at the first panic";

    /// A lock that panics do not poison, like parking_lot's.
    #[derive(Default, Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    /// The guard leaves its place while its thread waits.
    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect(NEVER_POISONED)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("it is in its place")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("it is in its place")
        }
    }

    /// A spin lock, which loom cannot run: a lock that waits has the same orders.
    #[derive(Default)]
    pub(crate) struct SpinMutex<T>(loom::sync::Mutex<T>);

    pub(crate) type SpinMutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

    impl<T> SpinMutex<T> {
        pub(crate) fn lock(&self) -> SpinMutexGuard<'_, T> {
            self.0.lock().expect(NEVER_POISONED)
        }

        /// Fails always, as if another thread held the lock. loom's own attempt waits for a lock that another
        /// thread takes, and so finds circles of waits that there are not.
        pub(crate) fn try_lock(&self) -> Option<SpinMutexGuard<'_, T>> {
            None
        }
    }

    /// In a model no time passes, so a wait without a signal never ends, and loom reports it.
    #[derive(Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    pub(crate) struct Signalled;

    impl Signalled {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> Signalled {
            let inner = guard.0.take().expect("it is in its place");
            guard.0 = Some(self.0.wait(inner).expect(NEVER_POISONED));
            Signalled
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    loom::thread_local! {
        /// The part of the thread; a model sets it.
        static SHARD: Cell<usize> = Cell::new(0);
    }

    pub(crate) fn set_shard(shard: usize) {
        SHARD.with(|mine| mine.set(shard));
    }

    pub(crate) fn shard_of_thread() -> usize {
        SHARD.with(Cell::get)
    }

    thread_local! {
        /// All threads of a model run on one thread of the system.
        static MISTAKE: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    /// A model that failed has ended, and its locks and atomics with it.
    pub(crate) fn has_failed() -> bool {
        std::thread::panicking()
    }

    pub(crate) fn makes(mistake: Mistake) -> bool {
        MISTAKE.get() == Some(mistake)
    }

    /// Runs a model in every order that its threads can take.
    pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        // Enough to find each canary. `.ci/full` asks for more, which these models do not take.
        builder.preemption_bound = Some(3);
        builder.max_branches = 20_000;
        builder.check(model);
    }

    /// Runs a model with a mistake: in some order it must panic with these words.
    pub(crate) fn explore_canary(mistake: Mistake, words: &str, model: impl Fn() + Send + Sync + 'static) {
        MISTAKE.set(Some(mistake));
        let outcome = catch_unwind(AssertUnwindSafe(|| explore(model)));
        MISTAKE.set(None);
        let panic = outcome.expect_err("the canary was not found");
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(text.contains(words), "the model failed for another reason: {text}");
    }
}
