//! Tests every public operation that calls the driver, with each of its driver calls failing in turn. There
//! must be no panic, no leak and no double free. Afterwards the operation works, or reports that the device
//! is lost.
#![cfg(unix)]

mod completeness;
mod containers;
mod memory_pools;
mod plugin;
mod resources;
mod support;
mod table;

use millpond_testkit::faults::exhaust_operation;
use table::CRATES;

/// Runs all operations, or only those with MILLPOND_SUBJECT in their name.
#[test]
fn every_driver_call_of_every_operation_may_fail() {
    let wanted = std::env::var("MILLPOND_SUBJECT").unwrap_or_default();
    let (mut all_runs, mut failed) = (0, Vec::new());
    for (name, operations) in CRATES {
        let mut runs = 0;
        for operation in operations.iter().filter(|operation| operation.name().contains(&wanted)) {
            match exhaust_operation(operation) {
                Ok(count) => runs += count,
                Err(failure) => failed.push(failure.to_string()),
            }
        }
        println!("{name}: {} operations, {runs} runs, each with another call failing", operations.len());
        all_runs += runs;
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    assert!(!wanted.is_empty() || all_runs > 30_000, "only {all_runs} runs: they do not reach the driver");
}
