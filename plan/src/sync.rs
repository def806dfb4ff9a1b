//! Locks and atomics. They come from the standard library or, in models (`--cfg millpond_loom`), from loom.

#[cfg(not(all(test, millpond_loom)))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(all(test, millpond_loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(not(all(test, millpond_loom)))]
pub(crate) use std::thread::sleep;

#[cfg(all(test, millpond_loom))]
pub(crate) use modelled::*;

#[cfg(all(test, millpond_loom))]
mod modelled {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

    pub(crate) fn sleep(_: Duration) {
        loom::thread::yield_now();
    }

    /// A lock that panics do not poison, like parking_lot's.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom ends at the first panic")
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().expect("loom ends at the first panic")
        }
    }

    /// Runs a model in every order that its threads can take.
    pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        // One preemption more than the canaries need. `.ci/full` allows six, which takes eight times as long.
        builder.preemption_bound = builder.preemption_bound.or(Some(4));
        builder.max_branches = 20_000;
        builder.check(model);
    }

    /// Runs a wrong model: in some order it must panic with these words.
    pub(crate) fn explore_canary(words: &str, model: impl Fn() + Send + Sync + 'static) {
        let panic = catch_unwind(AssertUnwindSafe(|| explore(model))).expect_err("the canary was not found");
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(text.contains(words), "the model failed for another reason: {text}");
    }
}
