//! Tests that the tracking report names the function that allocated, in any build profile: `.ci/full` runs it
//! in the profile that people install.

use millpond_adaptors::tracking::Stacks;
use millpond_adaptors::{TrackingLayer, TrackingResourceAdaptor};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::CudaMemoryResource;

/// The function that the report must name. It works after the call, so that the call is not a tail call.
#[inline(never)]
fn who_allocated(resource: &dyn DeviceMemoryResource) -> DevicePtr {
    let ptr = resource.allocate(Layout::new(1234), StreamRef::LEGACY).expect("there is room");
    std::hint::black_box(ptr)
}

#[test]
fn the_report_names_the_function_that_allocated() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let layer = TrackingLayer::new().stacks(Stacks::On);
    let tracked: TrackingResourceAdaptor<_> = cuda.layer(layer).expect("a layer");
    let ptr = who_allocated(&tracked);
    let report = tracked.report();
    assert!(report.contains("who_allocated"), "{report}");
    assert!(!report.contains("<unknown>\n   1: <unknown>"), "{report}");
    let memory = tracked.memory_report();
    assert!(memory.to_string().contains("who_allocated"), "{memory}");
    // SAFETY: the block came from this stack with this size, once, and nothing uses it.
    unsafe { tracked.deallocate(ptr, Layout::new(1234), StreamRef::LEGACY) };
}
