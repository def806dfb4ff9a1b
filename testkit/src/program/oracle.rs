//! Checks the rules that hold after every operation and at the end.

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceMemoryResource, Driver, Error, Layout, StreamRef};
use millpond_driver::sim::SimDevice;

use super::broken::{Broken, Checks};
use super::execution::Execution;
use super::op::Block;
use super::{FailureKind, Habits, StatisticsCheck};
use crate::watch;

/// Statistics, which can be slow to compute, are checked once in this many operations.
const STATISTICS_EVERY: u64 = 8;

/// The resource's internal state is checked once in this many operations.
const INSPECT_EVERY: u64 = 64;

/// The simulated device rounds allocations up to multiples of this many bytes.
const DEVICE_UNIT: u64 = 512;

pub(super) fn after_call(execution: &Execution) -> Checks {
    no_violation(&execution.device, execution.config.habits)?;
    match execution.resource.take_faults().first() {
        Some(fault) => Err(Broken::new(FailureKind::Shadow, fault)),
        None => Ok(()),
    }
}

pub(super) fn after_step(execution: &Execution) -> Checks {
    if execution.summary.operations.is_multiple_of(INSPECT_EVERY) {
        inspect(execution);
    }
    if execution.summary.operations.is_multiple_of(STATISTICS_EVERY) { statistics(execution) } else { Ok(()) }
}

pub(super) fn at_end(execution: &Execution) -> Checks {
    after_call(execution)?;
    inspect(execution);
    statistics(execution)
}

fn inspect(execution: &Execution) {
    if let Some(inspect) = execution.config.inspect {
        let _watch = watch::call("inspect");
        inspect(execution.resource.inner());
    }
}

/// Checks the device's own rules.
pub(super) fn no_violation(device: &SimDevice, habits: Habits) -> Checks {
    match habits.unexplained(&device.take_violations()) {
        Some(violation) => Err(Broken::new(FailureKind::Device(violation.kind), violation)),
        None => Ok(()),
    }
}

/// Checks oracles 5 and 8.
fn statistics(execution: &Execution) -> Checks {
    if execution.config.statistics == StatisticsCheck::None {
        return Ok(());
    }
    let Some(statistics) = execution.resource.statistics() else {
        return Err(Broken::new(FailureKind::Statistics, "the resource has no statistics"));
    };
    let equal = |what: &str, theirs: u64, ours: u64| match theirs == ours {
        true => Ok(()),
        false => {
            Err(Broken::new(FailureKind::Statistics, format!("{what} is {theirs}, but should be {ours}")))
        }
    };
    let at_most = |what: &str, small: u64, large: u64| match small <= large {
        true => Ok(()),
        false => Err(Broken::new(FailureKind::Statistics, format!("{what}: {small} is more than {large}"))),
    };
    execution.resource.shadow(|shadow| {
        equal("blocks_in_use", statistics.blocks_in_use, shadow.live_blocks())?;
        equal("bytes_requested", statistics.bytes_requested, shadow.requested_bytes())?;
        equal("allocations", statistics.allocations, shadow.allocations())?;
        equal("deallocations", statistics.deallocations, shadow.deallocations())?;
        equal("misuses", statistics.misuses, execution.summary.misuses)?;
        at_most("requested exceeds in use", shadow.requested_bytes(), statistics.bytes_in_use)
    })?;
    at_most("in use exceeds its peak", statistics.bytes_in_use, statistics.peak_bytes_in_use)?;
    if execution.config.statistics == StatisticsCheck::Exact {
        let taken = execution.device.live_bytes();
        at_most("reserved exceeds taken from the device", statistics.bytes_reserved, taken)?;
        // The device rounds each region up to its own unit.
        let rounding = statistics.regions * DEVICE_UNIT;
        at_most("taken from the device exceeds reserved", taken, statistics.bytes_reserved + rounding)?;
        at_most("in use exceeds reserved", statistics.bytes_in_use, statistics.bytes_reserved)?;
        at_most("largest free exceeds free", statistics.largest_free_block, statistics.bytes_free())?;
        at_most("reserved exceeds its peak", statistics.bytes_reserved, statistics.peak_bytes_reserved)?;
    }
    Ok(())
}

/// An out-of-memory error must have a report.
pub(super) fn has_report(execution: &Execution, error: &Error) -> Checks {
    match execution.config.reports && error.out_of_memory_report().is_none() {
        true => Err(Broken::new(FailureKind::UnexpectedError, format!("the error has no report: {error}"))),
        false => Ok(()),
    }
}

/// Oracle 6: a failed request fails again after the device is synchronised and the resource is trimmed.
/// Trimming changes the rest of the program, so only one in four errors is tested.
pub(super) fn out_of_memory_is_true(
    execution: &mut Execution,
    block: Block,
    layout: Layout,
    stream: StreamRef,
) -> Checks {
    // A guest may have freed memory meanwhile, and no call waits for the device while a stream captures.
    let is_disturbed = execution.guest.is_some() || !execution.captures.live.is_empty();
    if !execution.config.verify_out_of_memory || is_disturbed {
        return Ok(());
    }
    let early = |message: String| Err(Broken::new(FailureKind::EarlyOutOfMemory, message));
    let rounded = layout.rounded_bytes().unwrap_or(u64::MAX);
    if execution.config.statistics == StatisticsCheck::Exact && layout.alignment() == ALLOCATION_ALIGNMENT {
        let largest = execution.resource.statistics().map_or(0, |statistics| statistics.largest_free_block);
        if largest >= rounded {
            return early(format!(
                "no block of {rounded} bytes is returned, although the largest free one has {largest}"
            ));
        }
    }
    if !block.is_multiple_of(4) {
        return Ok(());
    }
    let unexpected = |error: &dyn ToString| Broken::new(FailureKind::UnexpectedError, error.to_string());
    execution.device.synchronize().map_err(|error| unexpected(&error))?;
    execution.order.host_saw_device();
    execution.resource.trim(0).map_err(|error| unexpected(&error))?;
    match execution.resource.allocate(layout, stream) {
        Ok(_) => early(format!("{rounded} bytes are refused, but served after synchronising and trimming")),
        Err(error) if error.is_out_of_memory() => Ok(()),
        Err(error) => Err(unexpected(&error)),
    }
}

/// After the resource is dropped, the device must hold nothing.
pub(super) fn nothing_left(device: &SimDevice, habits: Habits) -> Checks {
    if device.live_allocations() > 0 {
        let (count, bytes) = (device.live_allocations(), device.live_bytes());
        return Err(Broken::new(FailureKind::Leak, format!("{bytes} bytes in {count} allocations are left")));
    }
    let events = if habits.keeps_events { 0 } else { device.live_events() };
    let streams = device.live_streams();
    if events > 0 || streams > 0 {
        return Err(Broken::new(FailureKind::Leak, format!("{events} events, {streams} streams are left")));
    }
    no_violation(device, habits)
}
