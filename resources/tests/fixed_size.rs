//! Tests blocks of one size beside a resource for requests that do not fit.

use std::sync::Arc;

use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, ErrorKind, Layout, Result,
    StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, FixedSizeLayer, PoolLayer};

const S: StreamRef = StreamRef::LEGACY;
const BLOCK: u64 = 4096;

/// A program that falls back on another resource when memory is out, and for no other error.
fn allocate(
    first: &dyn DeviceMemoryResource,
    fallback: &dyn DeviceMemoryResource,
    layout: Layout,
) -> Result<DevicePtr> {
    first.allocate(layout, S).or_else(|error| match error.is_out_of_memory() {
        true => fallback.allocate(layout, S),
        false => Err(error),
    })
}

#[test]
fn issue_9_what_is_larger_than_a_block_is_served_by_a_fallback() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let cuda = || CudaMemoryResource::new(Arc::clone(&driver));
    let blocks = cuda().layer(FixedSizeLayer::new().block_bytes(BLOCK)).expect("blocks");
    let pool = cuda().layer(PoolLayer::new()).expect("a pool");
    let served = || {
        let counts = |it: &dyn DeviceMemoryResource| it.statistics().expect("it counts").allocations;
        [counts(&blocks), counts(&pool)]
    };
    for (bytes, expected) in [(BLOCK, [1, 0]), (BLOCK + 1, [1, 1]), (1 << 30, [1, 2])] {
        allocate(&blocks, &pool, Layout::new(bytes)).expect("there is room");
        assert_eq!(served(), expected, "{bytes} bytes");
    }
    let error = blocks.allocate_bytes(BLOCK + 1, S).expect_err("a block is smaller");
    assert_eq!((error.kind(), error.requested_bytes()), (ErrorKind::OutOfMemory, Some(BLOCK + 1)));
    assert!(error.message().contains("raise block_size, or use binning"), "{error}");
}

/// A larger alignment is not a lack of memory: a fallback would hide a mistake.
#[test]
fn what_is_aligned_to_more_than_a_block_is_refused() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let cuda = CudaMemoryResource::new(driver);
    let blocks = cuda.layer(FixedSizeLayer::new().block_bytes(BLOCK)).expect("blocks");
    let layout = Layout::with_alignment(BLOCK, 512).expect("a power of two");
    let error = blocks.allocate(layout, S).expect_err("blocks are aligned to 256");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
