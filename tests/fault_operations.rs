//! Tests every public operation that calls the driver, with each of its driver calls failing: no panic, no
//! leak, no double free, and it works afterwards, or says that the device is lost.

#[path = "fault_operations/completeness.rs"]
mod completeness;
#[path = "fault_operations/containers.rs"]
mod containers;
#[path = "fault_operations/memory_pools.rs"]
mod memory_pools;
#[path = "fault_operations/plugin.rs"]
mod plugin;
#[path = "fault_operations/resources.rs"]
mod resources;

use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, Result};
use millpond_testkit::faults::{Act, Operation, Stage, exhaust_operation};

const CRATES: [(&str, &[Operation]); 4] = [
    ("containers", containers::OPERATIONS),
    ("memory pools", memory_pools::OPERATIONS),
    ("resources and adaptors", resources::OPERATIONS),
    ("plugin and replay", plugin::OPERATIONS),
];

fn all() -> impl Iterator<Item = &'static Operation> {
    CRATES.iter().flat_map(|(_, operations)| *operations)
}

fn act(body: impl FnMut() -> Result<()> + 'static) -> Result<Act> {
    Ok(Box::new(body))
}

/// An operation with nothing prepared but what it owns.
fn on_stage(stage: &Stage, mut body: impl FnMut(&Stage) -> Result<()> + 'static) -> Result<Act> {
    let stage = stage.clone();
    act(move || body(&stage))
}

/// Allocates on two streams, the second time what the first one freed, and gives all back.
fn use_of(resource: &dyn DeviceMemoryResource, stage: &Stage) -> Result<()> {
    for stream in [stage.a(), stage.b()] {
        let sizes = [1000, 1 << 20];
        let blocks = sizes.map(|bytes| (resource.allocate_bytes(bytes, stream), bytes));
        for (ptr, bytes) in &blocks {
            if let Ok(ptr) = ptr {
                // SAFETY: the block came from this resource with this size, and nothing uses it.
                unsafe { resource.deallocate_bytes(*ptr, *bytes, stream) };
            }
        }
        blocks.into_iter().try_for_each(|(ptr, _)| ptr.map(drop))?;
    }
    Ok(())
}

/// All operations, or those whose name has MILLPOND_SUBJECT in it.
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
