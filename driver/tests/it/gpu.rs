//! Helpers for tests on a real device. Every block, stream and range passed here is alive.

use std::sync::Arc;

use millpond_core::{DevicePtr, Driver, StreamRef};
use millpond_driver::cuda::CudaDriver;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn device() -> Arc<CudaDriver> {
    CudaDriver::open(0).unwrap()
}

/// Fills a living block and waits.
pub(crate) fn fill(driver: &dyn Driver, ptr: DevicePtr, value: u8, bytes: u64) {
    // SAFETY: every caller passes a living block that no other work uses.
    unsafe { driver.memset_d8_async(ptr, value, bytes, StreamRef::LEGACY) }.unwrap();
    driver.stream_synchronize(StreamRef::LEGACY).unwrap();
}

/// Reads a living block after the work on this stream.
pub(crate) fn read(driver: &dyn Driver, ptr: DevicePtr, bytes: u64, stream: StreamRef) -> Vec<u8> {
    let mut host = vec![0xEE; bytes as usize];
    // SAFETY: every caller passes a living block; the vector is equally long and lives until the copy is
    // done.
    unsafe { driver.memcpy_dtoh_async(host.as_mut_ptr(), ptr, bytes, stream) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
    host
}

pub(crate) fn write(driver: &dyn Driver, ptr: DevicePtr, host: &[u8], stream: StreamRef) {
    // SAFETY: every caller passes a living block of that size; the slice lives until the copy is done.
    unsafe { driver.memcpy_htod_async(ptr, host.as_ptr(), host.len() as u64, stream) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
}

pub(crate) fn free(driver: &dyn Driver, ptr: DevicePtr) {
    // SAFETY: every caller passes a block from this driver after all work on it, and does not use it again.
    unsafe { driver.mem_free(ptr) }.unwrap();
}

pub(crate) fn destroy(driver: &dyn Driver, stream: StreamRef) {
    // SAFETY: every caller passes a stream from this driver and does not use it again.
    unsafe { driver.stream_destroy(stream) }.unwrap();
}
