//! Tests that a block holds no bytes of its earlier owner.

use std::sync::Arc;

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverError, DriverHandle,
    ErrorKind, StreamRef,
};
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};

use super::{MIB, S, build_on, free, take};

fn device() -> (Arc<SimDevice>, DriverHandle) {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    (Arc::clone(&device), device)
}

fn write(driver: &DriverHandle, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: the block is live and has that many bytes.
    unsafe { driver.memset_d8_async(ptr, 0xAB, bytes, stream) }.unwrap();
}

/// Returns whether each byte is zero.
fn is_clear(driver: &DriverHandle, ptr: DevicePtr, bytes: u64, stream: StreamRef) -> bool {
    let mut read = vec![1_u8; bytes as usize];
    // SAFETY: the block is live and has that many bytes; the vector lives until the stream is synchronised.
    unsafe { driver.memcpy_dtoh_async(read.as_mut_ptr(), ptr, bytes, stream) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
    read.iter().all(|byte| *byte == 0)
}

/// A tenant writes and frees. The next one gets the same memory, cleared if its tree says so.
fn hand_over(zero: &str) -> bool {
    let (_, driver) = device();
    let pool: AnyResource = build_on(&driver, "cuda+pool:pages=off").unwrap();
    let spec = |name: &str| format!("budget:name={name},limit=64MiB,parent=job");
    let on = |text: &str| {
        let text: millpond_core::stack::StackSpec = text.parse().unwrap();
        text.build_on(Arc::clone(&pool), &super::table()).unwrap()
    };
    let _job = on(&format!("budget:name=job,limit=64MiB{zero}"));
    let (etl, train) = (on(&spec("etl")), on(&spec("train")));
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let first = etl.allocate_bytes(MIB, stream).unwrap();
    write(&driver, first, MIB, stream);
    // SAFETY: the block is live, and freed with its size.
    unsafe { etl.deallocate_bytes(first, MIB, stream) };
    let second = train.allocate_bytes(MIB, stream).unwrap();
    assert_eq!(first, second, "the pool gives out the same block");
    is_clear(&driver, second, MIB, stream)
}

#[test]
fn a_block_is_cleared_for_its_next_tenant() {
    assert!(!hand_over(""), "the test would see bytes that are left");
    assert!(hand_over(",zero=handover"), "the parent decides for all budgets below");
}

/// A pool above the budget reuses its own blocks as they are.
#[test]
fn a_pool_above_the_budget_is_not_cleared_again() {
    let counting = CountingDriver::new(device().0);
    let driver: DriverHandle = counting.clone();
    let stack = build_on(&driver, "cuda+budget:name=a,limit=64MiB,zero=handover+pool").unwrap();
    let fills = || counting.counts().get(CallKind::Fill).calls;
    let block = take(&stack, MIB).unwrap();
    assert!(is_clear(&driver, block, MIB, S) && fills() == 1);
    free(&stack, block, MIB);
    let again = take(&stack, MIB).unwrap();
    assert_eq!((again, fills()), (block, 1));
}

#[test]
fn a_layer_that_clears_is_ordered_by_the_stream() {
    let (_, driver) = device();
    let ordered = |text: &str| build_on(&driver, text).unwrap().is_stream_ordered();
    assert!(!ordered("cuda+budget:name=a,limit=1MiB"));
    assert!(ordered("cuda+budget:name=a,limit=1MiB,zero=handover"));
    let error = build_on(&driver, "host+budget:name=a,limit=1MiB,zero=handover").unwrap_err();
    assert!(error.to_string().contains("the device cannot access the memory of `host`"), "{error}");
}

#[test]
fn a_block_that_cannot_be_cleared_is_not_handed_out() {
    let (device, driver) = device();
    let stack = build_on(&driver, "cuda+pool+budget:name=a,limit=1MiB,zero=handover").unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    device.begin_capture(stream, CaptureMode::ThreadLocal).unwrap();
    let error = stack.allocate_bytes(256, stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the stream captures a graph"), "{error}");
    assert!(stack.allocate_bytes(0, stream).unwrap().is_null());
    device.end_capture(stream).unwrap();
    device.set_faults(FaultPlan::nth_of(CallKind::Fill, 0, DriverError::INVALID_VALUE));
    let error = take(&stack, MIB).unwrap_err();
    assert_eq!((error.kind(), error.requested_bytes()), (ErrorKind::Driver, Some(MIB)));
    // The block and its bytes went back.
    let block = take(&stack, MIB).unwrap();
    free(&stack, block, MIB);
    assert_eq!(stack.statistics().unwrap().blocks_in_use, 0);
}
