//! Tests every stack with failing driver calls: no panic, no double free, no leak. Afterwards the stack works
//! again or is poisoned.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use millpond::stack::StackSpec;
use millpond_testkit::canary::{CanaryLayer, WrongLayer};
use millpond_testkit::conformance::Subject;
use millpond_testkit::faults::{self, Ways};
use millpond_testkit::{size, stacks};

use crate::subjects;

#[test]
fn every_driver_call_of_every_stack_may_fail() {
    let subjects = subjects::wanted();
    // A pair of adaptors makes the same driver calls as each alone.
    let pairs: Vec<String> = stacks::pairs().collect();
    let in_every_way = |stack: &str| {
        let is_plain = !stack.contains(':') && stack.matches('+').count() < 2;
        is_plain || size::is_thorough() && !pairs.iter().any(|pair| pair == stack)
    };
    let (next, runs, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    // Stacks share nothing, and misuse is recorded for each thread.
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(subject) = subjects.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ways = if in_every_way(subject.name()) { Ways::Every } else { Ways::Turns };
                    match faults::exhaust(subject, ways) {
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
    assert!(
        is_limited || runs > size::of(2_000, 5_000),
        "only {runs} runs: the scenario does not reach the driver"
    );
}

/// The tests find a layer that mishandles errors, in every way and in turns. Without the mistake they find
/// nothing.
#[test]
fn a_layer_that_is_wrong_about_errors_is_found() {
    let subject = |wrong: Option<WrongLayer>| {
        Subject::new("a layer over the pool", move |driver| {
            let pool = "cuda+pool".parse::<StackSpec>()?.build(&subjects::layers(), driver)?;
            CanaryLayer::build(pool, wrong)
        })
    };
    for ways in [Ways::Every, Ways::Turns] {
        let right = faults::exhaust(&subject(None), ways);
        assert!(right.is_ok(), "{ways:?}: {}", right.expect_err("the layer fails"));
        for (wrong, says) in [
            (WrongLayer::BlursErrors, "out of memory"),
            (WrongLayer::WaitsWhenLost, "dropping a poisoned resource calls the driver"),
        ] {
            let found = faults::exhaust(&subject(Some(wrong)), ways).expect_err("the layer is wrong");
            assert!(found.call.is_some() && found.message.contains(says), "{wrong:?}, {ways:?}: {found}");
        }
    }
}
