//! Every clause of the contract, over every manager, on the simulated device.

mod common;

use std::sync::Arc;

use common::{Bench, MIB};
use millpond_core::DriverHandle;
use millpond_driver::sim::{SimConfig, SimDevice};

/// Runs every clause on a device of its own and checks that nothing is left on it.
fn check(bench: impl FnOnce(DriverHandle) -> Bench) {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    common::all(&bench(Arc::<SimDevice>::clone(&device)));
    assert_eq!(device.violations(), []);
    assert_eq!(device.live_allocations(), 0);
}

#[test]
fn plain_cuda_keeps_the_contract() {
    check(Bench::cuda);
}

#[test]
fn the_stack_cuda_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda"));
}

#[test]
fn a_pool_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda+pool:initial=8MiB"));
}

#[test]
fn a_pool_under_adaptors_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda+pool+statistics+thread_safe"));
}

#[test]
fn binning_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda+pool+binning"));
}
