//! loom's atomics. A canary can make them order nothing.
#![allow(dead_code, reason = "the macro gives each atomic all operations")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub(crate) use loom::sync::atomic::Ordering;
pub(crate) use loom::{hint::spin_loop, thread::yield_now};

/// Runs a fence, unless the atomics order nothing.
pub(crate) fn fence(order: Ordering) {
    if !ORDERS_NOTHING.get() {
        loom::sync::atomic::fence(order);
    }
}

thread_local! {
    /// Whether atomics order nothing. To the standard library, all threads of a model are one thread.
    static ORDERS_NOTHING: Cell<bool> = const { Cell::new(false) };
}

fn ordering(order: Ordering) -> Ordering {
    if ORDERS_NOTHING.get() { Ordering::Relaxed } else { order }
}

pub(crate) fn sleep(_: Duration) {
    yield_now();
}

/// Runs a model in every possible order of its threads.
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

/// Runs a model whose atomics order nothing: in some order it must panic with these words.
pub(crate) fn explore_without_order(words: &str, model: impl Fn() + Send + Sync + 'static) {
    ORDERS_NOTHING.set(true);
    explore_canary(words, model);
    ORDERS_NOTHING.set(false);
}

macro_rules! atomic {
    ($name:ident $(<$param:ident>)?, $value:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name $(<$param>)? (loom::sync::atomic::$name $(<$param>)?);

        impl $(<$param>)? $name $(<$param>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(ordering(order))
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                if order == Ordering::Relaxed {
                    self.0.store(value, order);
                } else {
                    // In loom, an exchange can miss a concurrent store, and then overwrite it. No machine
                    // does this. An exchange instead of the store keeps the two in order.
                    self.0.swap(value, ordering(order));
                }
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, ordering(order))
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, ordering(success), ordering(failure))
            }
        }
    };
}

macro_rules! number {
    ($($name:ident: $value:ty),*) => { $(
        atomic!($name, $value);

        impl $name {
            pub(crate) fn fetch_add(&self, by: $value, order: Ordering) -> $value {
                self.0.fetch_add(by, ordering(order))
            }

            pub(crate) fn fetch_sub(&self, by: $value, order: Ordering) -> $value {
                self.0.fetch_sub(by, ordering(order))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }
    )* };
}

number!(AtomicI64: i64, AtomicU8: u8, AtomicU32: u32, AtomicU64: u64);
atomic!(AtomicBool, bool);
atomic!(AtomicPtr<T>, *mut T);

impl Default for AtomicBool {
    fn default() -> Self {
        Self::new(false)
    }
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(std::ptr::null_mut())
    }
}

/// A lock that panics do not poison, like parking_lot's.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("loom ends at the first panic")
    }

    pub(crate) fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("loom ends at the first panic")
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}
