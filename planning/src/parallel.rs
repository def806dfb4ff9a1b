//! Runs numbered tasks on all cores. The result is the same on any number of cores.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The stack size of a thread in bytes. The exact search nests once for each block.
const STACK_BYTES: usize = 64 << 20;

/// Returns the number of threads to use; if `asked` is 0, one thread for each core.
pub(crate) fn threads(asked: usize) -> usize {
    if asked > 0 { asked } else { thread::available_parallelism().map_or(1, NonZeroUsize::get) }
}

/// Runs the tasks `0..tasks`, and returns their results by number. The tasks begin in the order of their
/// numbers.
pub(crate) fn run<T: Send>(threads: usize, tasks: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(tasks));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= tasks {
                break;
            }
            let result = task(number);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    thread::scope(|scope| {
        let started = (0..threads.min(tasks))
            .filter(|_| thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work).is_ok())
            .count();
        // If the system refuses all threads, this thread does the work.
        if started == 0 {
            work();
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|&(number, _)| number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// If a task reaches the goal, ends the tasks with higher numbers. Tasks with lower numbers continue, so the
/// result does not depend on which task was faster.
#[derive(Debug)]
pub(crate) struct Race(AtomicUsize);

impl Race {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }

    pub(crate) fn reached(&self, number: usize) {
        self.0.fetch_min(number, Ordering::Relaxed);
    }

    pub(crate) fn is_over_for(&self, number: usize) -> bool {
        self.0.load(Ordering::Relaxed) < number
    }
}
