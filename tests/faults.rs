//! Tests every stack with failing driver calls: no panic, no block freed twice, no memory left, and the stack
//! works again afterwards or is poisoned.

mod subjects;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use millpond_testkit::faults;

#[test]
fn every_driver_call_of_every_stack_may_fail() {
    let subjects = subjects::wanted();
    let (next, runs, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    // Stacks share nothing, and what is misused is recorded for each thread.
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(subject) = subjects.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match faults::exhaust(subject) {
                        Ok(count) => _ = runs.fetch_add(count, Ordering::Relaxed),
                        Err(failure) => {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).push(failure.to_string());
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    let runs = runs.into_inner();
    println!("{runs} runs, each with another driver call failing");
    let is_limited = std::env::var_os("MILLPOND_SUBJECT").is_some();
    assert!(is_limited || runs > 5_000, "only {runs} runs: the scenario does not reach the driver");
}
