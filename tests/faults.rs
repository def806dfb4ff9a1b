//! Tests every stack with failing driver calls: no panic, no block freed twice, no memory left, and the stack
//! works again afterwards or is poisoned.

mod subjects;

use millpond_testkit::faults;

#[test]
fn every_driver_call_of_every_stack_may_fail() {
    let mut runs = 0;
    let mut failed = Vec::new();
    for subject in subjects::wanted() {
        match faults::exhaust(&subject) {
            Ok(count) => runs += count,
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    println!("{runs} runs, each with another driver call failing");
    let is_limited = std::env::var_os("MILLPOND_SUBJECT").is_some();
    assert!(is_limited || runs > 5_000, "only {runs} runs: the scenario does not reach the driver");
}
