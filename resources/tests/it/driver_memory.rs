//! Tests memory whose free the driver refuses, as it may during a graph capture.

use std::sync::Arc;

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, ManagedMemoryResource, PagesMode, PoolLayer};
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::misuse_recorder;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 40 * MIB;
const S: StreamRef = StreamRef::LEGACY;

fn give(resource: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: each block comes from this resource with this size and is freed once; nothing uses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) };
}

/// A device of 64 MiB, and a driver that does not exchange the modes of threads: otherwise captures would
/// allow the frees.
fn device() -> (Arc<SimDevice>, Arc<HookedDriver>) {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let hooks = HookedDriver::new(device.clone());
    hooks.keep_capture_modes();
    (device, hooks)
}

/// Runs `work` during a capture, which the refused calls end.
fn during_a_capture(device: &SimDevice, work: impl FnOnce()) {
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
    device.begin_capture(stream, CaptureMode::Global).expect("nothing is captured yet");
    let ((), misuses) = misuse_recorder::record(work);
    assert!(misuses.is_empty(), "{misuses:?}");
    device.end_capture(stream).expect_err("a refused call ends the capture");
}

/// Takes `BYTES` and frees them during a capture: plain memory, managed memory, a pool's regions.
fn refused(device: &SimDevice, hooks: &Arc<HookedDriver>, which: &str) {
    let cuda = CudaMemoryResource::new(hooks.clone());
    let resource: AnyResource = match which {
        "cuda" => cuda.into_any(),
        "managed" => ManagedMemoryResource::new(hooks.clone()).into_any(),
        _ => cuda.layer(PoolLayer::new().pages(PagesMode::Off)).expect("a pool").into_any(),
    };
    let block = resource.allocate_bytes(BYTES, S).expect("there is room");
    during_a_capture(device, || {
        give(&*resource, block, BYTES);
        drop(resource);
    });
    assert_eq!(device.live_bytes(), BYTES, "{which}: the driver has not taken it back");
}

#[test]
fn a_free_that_was_refused_is_made_at_the_next_deallocation() {
    for which in ["cuda", "managed", "pool"] {
        let (device, hooks) = device();
        refused(&device, &hooks, which);
        let cuda = CudaMemoryResource::new(hooks);
        let other = cuda.allocate_bytes(MIB, S).expect("there is room");
        assert_eq!(device.live_bytes(), BYTES + MIB, "{which}: nothing was short");
        give(&cuda, other, MIB);
        assert_eq!((device.live_bytes(), device.take_violations()), (0, vec![]), "{which}");
    }
}

#[test]
fn a_free_that_was_refused_is_made_where_memory_is_short() {
    for which in ["cuda", "pool"] {
        let (device, hooks) = device();
        refused(&device, &hooks, which);
        let cuda = CudaMemoryResource::new(hooks);
        let again = cuda.allocate_bytes(BYTES, S).expect("the block is free");
        assert_eq!(device.live_bytes(), BYTES, "{which}");
        give(&cuda, again, BYTES);
        assert_eq!((device.live_bytes(), device.take_violations()), (0, vec![]), "{which}");
    }
}

#[test]
fn a_free_that_is_refused_again_is_kept() {
    let (device, hooks) = device();
    refused(&device, &hooks, "cuda");
    let cuda = CudaMemoryResource::new(hooks);
    let other = cuda.allocate_bytes(MIB, S).expect("there is room");
    during_a_capture(&device, || give(&cuda, other, MIB));
    assert_eq!(device.live_bytes(), BYTES + MIB, "neither was taken back");
    let last = cuda.allocate_bytes(MIB, S).expect("there is room");
    give(&cuda, last, MIB);
    assert_eq!((device.live_bytes(), device.take_violations()), (0, vec![]));
}
