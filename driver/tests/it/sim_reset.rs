//! Tests a reset of the context on the simulated device, which behaves as an H200 does (docs/lab/gpu.md).

use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, DriverError, EventFlags, HostFlags, MemPoolAttribute, MemPoolProps, PhysicalProps,
    StreamFlags,
};
use millpond_core::{DevicePtr, Driver, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};

const MIB: u64 = 1 << 20;
const DESTROYED: i32 = DriverError::CONTEXT_IS_DESTROYED;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

#[test]
fn issue_9_a_reset_ends_plain_managed_and_pinned_memory_streams_and_events() {
    let device = device();
    let plain = device.mem_alloc(4096).unwrap();
    device.mem_alloc_managed(MIB).unwrap();
    let pinned = device.mem_host_alloc(MIB, HostFlags::default()).unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let event = device.event_create(EventFlags::default()).unwrap();
    device.event_record(event, stream).unwrap();
    device.lend(plain, 4096, stream);
    device.reset_context();
    assert_eq!((device.live_allocations(), device.live_bytes(), device.lent_blocks()), (0, 0, 0));
    assert_eq!((device.live_streams(), device.live_events()), (0, 0));

    let now = device.open_again();
    assert!(Arc::ptr_eq(&now, &device.open_again()) && !Arc::ptr_eq(&now, &device));
    assert_eq!(now.device(), device.device());
    // Addresses and handles are reused.
    assert_eq!(now.mem_alloc(4096).unwrap(), plain);
    let new_stream = now.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    assert_eq!(new_stream.handle(), stream.handle());
    assert_ne!(new_stream.id(), stream.id());

    // The old driver cannot harm the new context.
    // SAFETY: the driver must refuse each call.
    unsafe {
        assert_eq!(device.mem_free(plain).unwrap_err().code(), DESTROYED);
        assert_eq!(device.mem_free_host(pinned).unwrap_err().code(), DESTROYED);
        assert_eq!(device.event_destroy(event).unwrap_err().code(), DESTROYED);
        assert_eq!(device.stream_destroy(stream).unwrap_err().code(), DESTROYED);
    }
    assert_eq!(device.event_record_if_alive(event, StreamRef::LEGACY).unwrap_err().code(), DESTROYED);
    assert_eq!(device.stream_synchronize(StreamRef::LEGACY).unwrap_err().code(), DESTROYED);
    assert_eq!((now.live_allocations(), now.live_streams()), (1, 1));
    assert_eq!(now.violations(), []);
}

#[test]
fn issue_9_physical_memory_its_mappings_and_addresses_outlive_a_reset() {
    let device = device();
    let at = device.mem_address_reserve(4 * MIB, 0).unwrap();
    let handle = device.mem_create(4 * MIB, PhysicalProps::default()).unwrap();
    // SAFETY: the addresses are reserved and the handle is whole.
    unsafe {
        device.mem_map(at, 4 * MIB, handle).unwrap();
        device.mem_set_access(at, 4 * MIB, AccessFlags::ReadWrite, &[device.device()]).unwrap();
        device.memset_d8_async(at, 7, 4 * MIB, StreamRef::LEGACY).unwrap();
    }
    device.reset_context();
    assert_eq!(device.live_bytes(), 4 * MIB);
    let now = device.open_again();
    let mut read = [0; 4];
    // SAFETY: the mapping is readable in the new context; the buffer has 4 bytes.
    unsafe { now.memcpy_dtoh_async(read.as_mut_ptr(), at, 4, StreamRef::LEGACY) }.unwrap();
    assert_eq!(read, [7; 4]);
    assert_ne!(now.mem_address_reserve(4 * MIB, 0).unwrap(), at, "the addresses are still taken");
    assert_eq!(
        device.mem_create(2 * MIB, PhysicalProps::default()).unwrap_err().code(),
        DESTROYED,
        "the old driver takes nothing new"
    );
    // SAFETY: the old driver unmaps and frees its own mappings.
    unsafe {
        device.mem_unmap(at, 4 * MIB).unwrap();
        device.mem_release(handle).unwrap();
        device.mem_address_free(at, 4 * MIB).unwrap();
    }
    assert_eq!(now.live_bytes(), 0);
    assert_eq!(now.violations(), []);
}

#[test]
fn issue_9_pools_of_the_driver_keep_what_they_hold_over_a_reset() {
    /// The memory that a pool of this device takes at once.
    const CHUNK: u64 = 32 * MIB;
    let device = device();
    let own = device.mem_pool_create(MemPoolProps::default()).unwrap();
    let default = device.device_get_default_mem_pool().unwrap();
    for pool in [own, default] {
        device.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
        let ptr = device.mem_alloc_from_pool_async(MIB, pool, StreamRef::LEGACY).unwrap();
        // SAFETY: it came from this driver.
        unsafe { device.mem_free_async(ptr, StreamRef::LEGACY) }.unwrap();
    }
    device.reset_context();
    let now = device.open_again();
    assert_eq!(now.live_bytes(), 2 * CHUNK);
    assert!(now.mem_alloc_from_pool_async(MIB, own, StreamRef::LEGACY).is_err());
    assert!(now.mem_pool_trim_to(own, 0).is_err());
    // SAFETY: the pool came from this device, and none of its memory is in use.
    unsafe { now.mem_pool_destroy(own) }.unwrap();
    assert_eq!(now.live_bytes(), CHUNK);
    now.mem_alloc_async(MIB, StreamRef::LEGACY).unwrap();
    assert_eq!(now.live_bytes(), CHUNK, "the default pool keeps its memory");
}

#[test]
fn issue_9_a_device_is_found_in_its_new_context() {
    let device = device();
    let id = device.device();
    assert!(!device.was_reset());
    device.reset_context();
    assert!(device.was_reset() && device.health().is_reset());
    let found = millpond_driver::open(id).unwrap();
    assert!(!found.was_reset() && !found.health().is_lost());
    assert!(Arc::ptr_eq(found.health(), millpond_driver::open(id).unwrap().health()));
    device.reset_context();
    assert!(found.was_reset(), "a second reset is another");
    drop(device);
    drop(found);
    assert!(millpond_driver::open(id).is_err());
}

#[test]
fn issue_9_work_under_way_ends_with_the_context() {
    let device = device();
    let ptr = device.mem_alloc(MIB).unwrap();
    let streams: Vec<_> = (0..40).map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap()).collect();
    for stream in streams {
        // SAFETY: the memory exists until the reset.
        unsafe { device.memset_d8_async(ptr, 1, MIB, stream) }.unwrap();
    }
    device.reset_context();
    let now = device.open_again();
    for _ in 0..100 {
        let stream = now.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let ptr: DevicePtr = now.mem_alloc(MIB).unwrap();
        // SAFETY: the stream and the memory belong to this driver.
        unsafe {
            now.memset_d8_async(ptr, 2, MIB, stream).unwrap();
            now.mem_free(ptr).unwrap();
            now.stream_destroy(stream).unwrap();
        }
    }
    assert_eq!(now.live_bytes(), 0);
}
