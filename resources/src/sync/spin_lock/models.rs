//! Models of the spin lock: loom runs them in every order of threads.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::sync::spin_lock::*;
use crate::sync::{explore, explore_canary, explore_without_order};

/// A value in which loom finds concurrent accesses, and reads that miss the last write.
type Watched = UnsafeCell<u64>;

fn add_one(value: &Watched) {
    // SAFETY: the caller has the lock; loom checks it.
    value.with_mut(|value| unsafe { *value += 1 });
}

const TORN: &str = "Concurrent";

fn count(lock: &SpinLock<Watched>) -> u64 {
    // SAFETY: the lock is held; loom checks it.
    lock.lock().with(|value| unsafe { *value })
}

/// Two threads count, each as soon as it can.
fn two_threads_wait() {
    let lock = Arc::new(SpinLock::new(Watched::new(0)));
    let other = {
        let lock = Arc::clone(&lock);
        thread::spawn(move || add_one(&lock.lock()))
    };
    add_one(&lock.lock());
    other.join().expect("no assertion failed");
    assert_eq!(count(&lock), 2);
}

/// Three threads count if `try_lock` finds the lock free.
fn three_threads_try(try_lock: fn(&SpinLock<Watched>) -> Option<SpinGuard<'_, Watched>>) {
    let lock = Arc::new(SpinLock::new(Watched::new(0)));
    let tries = || {
        let lock = Arc::clone(&lock);
        move || try_lock(&lock).map(|guard| add_one(&guard)).map_or(0, |()| 1)
    };
    let others = [(); 2].map(|()| thread::spawn(tries()));
    let own = tries()();
    let others: u64 = others.into_iter().map(|other| other.join().expect("no assertion failed")).sum();
    assert_eq!(count(&lock), own + others);
}

#[test]
fn a_waiting_thread_has_the_value_alone_and_sees_the_last_write() {
    explore(two_threads_wait);
}

#[test]
fn a_trying_thread_has_the_value_alone_and_sees_the_last_write() {
    explore(|| three_threads_try(SpinLock::try_lock));
}

#[test]
fn canary_a_lock_that_orders_nothing() {
    explore_without_order(TORN, two_threads_wait);
}

/// Makes the guard even if another thread holds the lock, and then drops it.
fn try_lock_eagerly<T>(lock: &SpinLock<T>) -> Option<SpinGuard<'_, T>> {
    let taken = !lock.is_locked.swap(true, Ordering::Acquire);
    let guard = SpinGuard { lock, value: PhantomData };
    taken.then_some(guard)
}

#[test]
fn canary_a_guard_made_eagerly() {
    explore_canary(TORN, || three_threads_try(try_lock_eagerly));
}
