//! Checks failing driver calls, which only the simulated device can produce on request.

use millpond_core::{DeviceMemoryResource, DriverError, Error, ErrorKind, Layout, StreamRef};
use millpond_driver::sim::{FaultPlan, SimDevice};

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context, Tested};

bodies![
    driver_out_of_memory_once,
    driver_out_of_memory_from_now_on,
    another_driver_error_once,
    sticky_error_poisons,
    poisoned_deallocate_and_drop_call_no_driver,
];

const S: StreamRef = StreamRef::LEGACY;
const NEEDS_SIM: Outcome = Skipped("only the simulated device fails on request");

/// Allocates until a request fails. It must fail if the driver fails and the resource calls it.
fn until_error(context: &Context<'_>, resource: &Tested) -> (Vec<Block>, Option<Error>) {
    let layout = Layout::new(context.clip(64 << 20));
    let mut blocks = Vec::new();
    for _ in 0..2048 {
        match resource.allocate(layout, S) {
            Ok(ptr) => blocks.push(resource.block(ptr, layout, S)),
            Err(error) => return (blocks, Some(error)),
        }
    }
    (blocks, None)
}

fn put_all(resource: &Tested, blocks: Vec<Block>) {
    blocks.into_iter().for_each(|block| resource.put(block));
}

fn driver_out_of_memory_once(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return NEEDS_SIM };
    let resource = context.build();
    sim.set_faults(FaultPlan::nth_call(0, DriverError::OUT_OF_MEMORY));
    match resource.allocate(Layout::new(context.clip(64 << 20)), S) {
        Ok(ptr) => resource.put(resource.block(ptr, Layout::new(context.clip(64 << 20)), S)),
        Err(error) => {
            assert!(error.is_out_of_memory(), "{error}");
            assert!(error.out_of_memory_report().is_some(), "the error has no report: {error}");
        }
    }
    sim.set_faults(FaultPlan::none());
    resource.put(resource.get(context.clip(64 << 20), S));
    Passed
}

fn driver_out_of_memory_from_now_on(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return NEEDS_SIM };
    let resource = context.build();
    sim.set_faults(FaultPlan::nth_call(0, DriverError::OUT_OF_MEMORY).persistent());
    let (blocks, error) = until_error(context, &resource);
    let error = error.unwrap_or_else(|| panic!("the resource hands out more memory than the device has"));
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.out_of_memory_report().is_some(), "the error has no report: {error}");
    sim.set_faults(FaultPlan::none());
    put_all(&resource, blocks);
    resource.put(resource.get(context.clip(64 << 20), S));
    Passed
}

fn another_driver_error_once(context: &Context<'_>) -> Outcome {
    let Some(sim) = &context.sim else { return NEEDS_SIM };
    let resource = context.build();
    sim.set_faults(FaultPlan::nth_call(0, DriverError::INVALID_VALUE).persistent());
    let (blocks, error) = until_error(context, &resource);
    let error = error.unwrap_or_else(|| panic!("the resource hands out more memory than the device has"));
    assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
    assert_eq!(error.driver_error().map(DriverError::code), Some(DriverError::INVALID_VALUE), "{error}");
    sim.set_faults(FaultPlan::none());
    put_all(&resource, blocks);
    resource.put(resource.get(context.clip(64 << 20), S));
    Passed
}

/// Makes the device fail permanently, and lets the resource notice it.
fn poison(context: &Context<'_>, sim: &SimDevice, resource: &Tested) -> (Vec<Block>, Error) {
    sim.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS).persistent());
    let (blocks, error) = until_error(context, resource);
    (blocks, error.unwrap_or_else(|| panic!("the resource hands out more memory than the device has")))
}

fn sticky_error_poisons(context: &Context<'_>) -> Outcome {
    let Some((context, sim)) = &context.apart(context.subject.device_bytes) else { return NEEDS_SIM };
    let resource = context.build();
    let (blocks, error) = poison(context, sim, &resource);
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert!(error.is_sticky(), "{error}");
    sim.set_faults(FaultPlan::none()); // The driver recovers now; a real one would not.
    for bytes in [1, 1000, 1 << 20].map(|bytes| context.clip(bytes)) {
        let Err(error) = resource.allocate(Layout::new(bytes), S) else {
            panic!(
                "{bytes} bytes were served although the device is lost; make each driver call through \
                 `millpond::driver::call`, and fail with `driver.health().error()` if the health \
                 `is_lost`"
            )
        };
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    }
    put_all(&resource, blocks);
    Passed
}

fn poisoned_deallocate_and_drop_call_no_driver(context: &Context<'_>) -> Outcome {
    let Some((context, sim)) = &context.apart(context.subject.device_bytes) else { return NEEDS_SIM };
    let resource = context.build();
    let before: Vec<Block> = (0..4).map(|_| resource.get(context.clip(1 << 20), S)).collect();
    let (after, _) = poison(context, sim, &resource);
    let calls = sim.driver_calls();
    put_all(&resource, after);
    put_all(&resource, before);
    drop(resource);
    assert_eq!(sim.driver_calls(), calls, "driver calls after poisoning");
    Passed
}
