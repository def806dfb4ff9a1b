//! Tests pools over a stream-ordered upstream: its memory comes in the order of one stream, and goes back
//! when the work of all streams is done.

use std::sync::Arc;

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::{DeviceMemoryResourceExt, DevicePtr, DriverError, Layout, StreamRef};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice};
use millpond_resources::{CudaAsyncMemoryResource, CudaAsyncOptions, PoolLayer};
use millpond_testkit::Checked;

const MIB: u64 = 1 << 20;
/// A pool takes a larger region for such a block.
const BYTES: u64 = 1000;
const LONG: u64 = 1_000_000_000; // No test runs that long on the virtual clock.

fn setup() -> (Arc<SimDevice>, Arc<CudaAsyncMemoryResource>, [StreamRef; 2]) {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let upstream = CudaAsyncMemoryResource::new(device.clone(), CudaAsyncOptions::default()).unwrap();
    let streams = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    (device, Arc::new(upstream), streams)
}

fn work(device: &SimDevice, stream: StreamRef, ptr: DevicePtr, bytes: u64) {
    device.launch_for(stream, &[Access::write(ptr, bytes, 7)], LONG);
}

/// Upstream hands memory on in the order of a stream: the stream's last work may still run.
#[test]
fn another_stream_gets_the_rest_of_a_region_after_the_work_of_the_one_that_grew() {
    let (device, upstream, [s, other]) = setup();
    let before = upstream.allocate_bytes(128 * MIB, s).unwrap();
    work(&device, s, before, 128 * MIB);
    // SAFETY: the block came from upstream with this size, and its uses are on the stream.
    unsafe { upstream.deallocate_bytes(before, 128 * MIB, s) };
    let pool = Arc::clone(&upstream).layer(PoolLayer::new()).unwrap();
    let pool = Checked::new(pool, Some(device.clone()));
    let take = |stream| {
        let ptr = pool.allocate_bytes(BYTES, stream).unwrap();
        work(&device, stream, ptr, BYTES);
        ptr
    };
    let is_in_it = |ptr: DevicePtr| (before.address()..before.address() + 128 * MIB).contains(&ptr.address());
    assert!(is_in_it(take(s)), "the driver's pool gives the stream its memory again");
    take(other);
    assert_eq!(device.take_violations(), []);
}

/// A block that is still live may be in use.
#[test]
fn memory_stays_where_the_end_of_a_pool_cannot_wait_for_the_device() {
    let (device, upstream, [s, _]) = setup();
    let pool = Arc::clone(&upstream).layer(PoolLayer::new()).unwrap();
    let pool = Checked::new(pool, Some(device.clone()));
    let ptr = pool.allocate_bytes(3 * MIB, s).unwrap();
    work(&device, s, ptr, 3 * MIB);
    let refused = FaultPlan::nth_of(CallKind::Synchronize, 0, DriverError::NOT_PERMITTED);
    device.set_faults(refused.persistent());
    drop(pool);
    device.set_faults(FaultPlan::none());
    assert_eq!(device.take_violations(), []);
    assert!(upstream.pool().used_bytes().unwrap() >= 3 * MIB, "the block is the program's");
}

/// The work of the last owner has ended, so any stream may use the block.
#[test]
fn a_block_for_all_streams_is_ready() {
    let (device, upstream, [s, _]) = setup();
    let upstream = Checked::new(upstream, Some(device.clone()));
    let before = upstream.allocate_bytes(3 * MIB, StreamRef::LEGACY).unwrap();
    work(&device, StreamRef::LEGACY, before, 3 * MIB);
    // SAFETY: each block came from upstream with this size, once, and its uses come before.
    unsafe { upstream.deallocate_bytes(before, 3 * MIB, StreamRef::LEGACY) };
    let block = upstream.allocate_sync(Layout::new(3 * MIB)).unwrap();
    assert_eq!(block, before);
    work(&device, s, block, 3 * MIB);
    assert_eq!(device.take_violations(), []);
}
