//! Tests the out-of-memory reports of resources that ask the driver for each block.

use std::sync::Arc;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DeviceMemoryResourceExt, Driver, DriverError, DriverHandle, StreamRef};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
use millpond_resources::{CudaAsyncMemoryResource, CudaAsyncOptions};

const MIB: u64 = 1 << 20;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(256 * MIB))
}

/// Managed memory moves, so the device's free memory is no bound.
#[test]
fn a_report_has_the_memory_that_was_asked_for() {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    for (text, call, has_device, has_host, is_short) in [
        ("cuda", CallKind::MemAlloc, true, false, true),
        ("managed", CallKind::MemAllocManaged, true, true, false),
        ("pinned_host", CallKind::MemHostAlloc, false, true, false),
    ] {
        let device = device();
        let driver: DriverHandle = device.clone();
        let resource = text.parse::<StackSpec>().unwrap().build(&table, &driver).unwrap();
        device.mem_alloc(200 * MIB).unwrap();
        device.set_faults(FaultPlan::nth_of(call, 0, DriverError::OUT_OF_MEMORY).persistent());
        let error = resource.allocate_bytes(128 * MIB, StreamRef::LEGACY).unwrap_err();
        let report = error.out_of_memory_report().expect("memory is out");
        assert_eq!((report.device.is_some(), report.host.is_some()), (has_device, has_host), "{text}");
        assert_eq!(
            (report.short_bytes.is_some(), !report.remedies.is_empty()),
            (is_short, is_short),
            "{text}"
        );
    }
}

/// A layer that waits for memory does not wait at a maximum.
#[test]
fn a_request_beyond_the_maximum_is_impossible() {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let options = CudaAsyncOptions::default().maximum_bytes(Some(32 * MIB));
    let upstream = CudaAsyncMemoryResource::new(device, options).unwrap();
    for (mib, is_impossible) in [(33, true), (31, false)] {
        let held = upstream.allocate_bytes(8 * MIB, StreamRef::LEGACY).unwrap();
        let error = upstream.allocate_bytes(mib * MIB, StreamRef::LEGACY).unwrap_err();
        assert_eq!((error.is_out_of_memory(), error.is_impossible()), (true, is_impossible), "{error}");
        // SAFETY: the block came from upstream with this size, and nothing uses it.
        unsafe { upstream.deallocate_bytes(held, 8 * MIB, StreamRef::LEGACY) };
    }
}
