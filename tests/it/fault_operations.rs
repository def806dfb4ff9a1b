//! Tests every public operation that calls the driver, with each of its driver calls failing in turn. There
//! must be no panic, no leak and no double free. Afterwards the operation works, or reports that the device
//! is lost.
//!
//! The operations run on the simulated device, where every call of [`Driver`](millpond::Driver) fails. They
//! also run over a driver library of CUDA, where every function that millpond calls fails: over
//! `millpond-shim`, and on a GPU.
#![cfg(unix)]

mod completeness;
mod containers;
mod cuda;
mod lane;
mod memory_pools;
mod plugin;
mod resources;
mod support;
mod table;

use std::collections::BTreeSet;

use millpond_shim::Shim;
use millpond_testkit::faults::{Operation, Ways, exhaust_operation};

use lane::{Lane, Outcome};
use table::{CANARIES, CRATES};

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

/// Operations that do not work without faults where no channel of IMEX is, and why.
const NOT_WITHOUT_CHANNEL: &[(&str, &str)] =
    &[("MemoryPool::export_fabric", NO_CHANNEL), ("MemoryPool::import_fabric", NO_CHANNEL)];

/// Operations that do not work without faults on the GPUs of the lane, and why.
const NOT_ON_GPUS: &[(&str, &str)] = &[
    ("MemoryPool::properties", "a pool of other code tells its properties since CUDA 13.2"),
    ("MemoryPool::export_fabric", NO_CHANNEL),
    ("MemoryPool::import_fabric", NO_CHANNEL),
    ("SystemMemoryResource::new", NOT_PAGEABLE),
    ("SystemMemoryResource::memory_info", NOT_PAGEABLE),
    ("SamHeadroomMemoryResource::new", NOT_PAGEABLE),
    ("StackSpec::build of system+pool+aligned:alignment=4KiB", NOT_PAGEABLE),
    ("StackSpec::build of sam_headroom:headroom=10%+logging:file=/dev/null", NOT_PAGEABLE),
    ("IpcHandle::open", ONE_PROCESS),
    ("IpcHandle::open_staged", ONE_PROCESS),
    ("IpcHandle::close", ONE_PROCESS),
];
const NO_CHANNEL: &str = "fabric handles need a channel of IMEX";
const NOT_PAGEABLE: &str = "the GPU cannot access pageable memory";
const ONE_PROCESS: &str = "CUDA opens the handle in another process only";

/// Runs all operations and the canaries over a driver library; prints and checks the outcome.
fn over_library(lane: &Lane) {
    let wanted = std::env::var("MILLPOND_SUBJECT").unwrap_or_default();
    let of_crates = CRATES.iter().flat_map(|(_, operations)| operations.iter());
    let operations: Vec<Operation> =
        of_crates.chain(CANARIES).filter(|operation| operation.name().contains(&wanted)).copied().collect();
    let outcomes = lane.run(&operations);
    if outcomes.is_empty() {
        return; // the process of one operation
    }
    let is_canary = |name: &str| CANARIES.iter().any(|canary| canary.name() == name);
    let done: BTreeSet<&str> = outcomes.iter().map(|outcome| outcome.name).collect();
    let (rest, with_peer): (Vec<&Operation>, Vec<&Operation>) =
        operations.iter().partition(|operation| lane.can_run(operation));
    let not_run: Vec<&str> =
        rest.iter().map(|operation| operation.name()).filter(|name| !done.contains(name)).collect();
    let (canaries, real): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().partition(|outcome| is_canary(outcome.name));
    let left_out: Vec<&str> =
        real.iter().filter(|outcome| outcome.left_out.is_some()).map(|outcome| outcome.name).collect();
    let failed: Vec<&String> = real.iter().flat_map(|outcome| &outcome.failed).collect();
    println!(
        "{} operations, {} runs, {} failed; {} left out; {} lack a second device: {:?}; not run: {not_run:?}",
        real.len() - left_out.len(),
        real.iter().map(|outcome| outcome.runs).sum::<u64>(),
        failed.len(),
        left_out.len(),
        with_peer.len(),
        with_peer.iter().map(|operation| operation.name()).collect::<Vec<_>>(),
    );
    for canary in canaries {
        assert!(!canary.failed.is_empty(), "a mistake was not found: {canary}");
    }
    assert!(failed.is_empty(), "{} runs failed", failed.len());
    assert!(not_run.is_empty(), "there was no time for {not_run:?}");
    let unknown: Vec<&&str> =
        left_out.iter().filter(|name| !lane.left_out.iter().any(|(known, _)| known == *name)).collect();
    assert!(unknown.is_empty(), "these operations do not work without faults: {unknown:?}");
}

/// Every function of CUDA that millpond calls fails, over the simulated device.
#[test]
fn every_driver_call_of_cuda_may_fail() {
    over_library(&Lane {
        test: "fault_operations::every_driver_call_of_cuda_may_fail",
        library: Shim::file_next_to_program().expect("cargo builds the library next to its tests"),
        ways: Ways::Turns,
        has_peer: false,
        left_out: NOT_WITHOUT_CHANNEL,
    });
}

#[test]
#[ignore = "needs a CUDA GPU; the GPU lane runs it"]
fn every_driver_call_of_a_gpu_may_fail() {
    over_library(&Lane {
        test: "fault_operations::every_driver_call_of_a_gpu_may_fail",
        library: std::env::var_os("MILLPOND_REAL_CUDA").map_or_else(lane::library_of_gpu, Into::into),
        ways: Ways::Every,
        has_peer: millpond::driver::cuda::device_count() > 1,
        left_out: NOT_ON_GPUS,
    });
}
