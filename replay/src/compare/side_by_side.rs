//! Runs several replays at once.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs `task` on each item, on up to `threads` threads. The calling thread is one of them. The items start
/// in their order, and the results have the same order.
pub(super) fn run<T: Send, R: Send>(items: Vec<T>, threads: usize, task: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = items.len();
    let items = Mutex::new(items.into_iter().enumerate());
    let results = Mutex::new(Vec::with_capacity(count));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((number, item)) = next() {
            let result = task(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    // The caller's `tracing` subscriber may be set for this thread only.
    let subscriber = tracing::dispatcher::get_default(Clone::clone);
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            let work = || tracing::dispatcher::with_default(&subscriber, work);
            // If a thread cannot start, the other threads do its work.
            let _ = thread::Builder::new().name("stack".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|&(number, _)| number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        for threads in [0, 1, 2, 9] {
            let results = run((0..20).collect(), threads, |number: u64| number * number);
            assert_eq!(results, (0..20).map(|number| number * number).collect::<Vec<_>>(), "{threads}");
        }
    }

    #[test]
    fn as_many_run_at_once_as_asked() {
        let both = Barrier::new(2);
        assert_eq!(run(vec![1, 2, 3, 4], 2, |number| (both.wait(), number).1), [1, 2, 3, 4]);
    }
}
