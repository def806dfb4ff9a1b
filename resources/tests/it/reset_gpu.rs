//! Tests a reset of the context on a real device. It runs alone in its process, because a reset affects all
//! users of the device.
#![cfg(target_os = "linux")]

use libloading::Library;
use millpond_core::driver::{EventFlags, StreamFlags};
use millpond_core::{DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DriverHandle, StreamRef};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, registry};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Resets the context like another library; `and_retain` makes a new one before millpond looks.
fn reset(and_retain: bool) {
    let mut context = 0_u64;
    // SAFETY: the types match the functions, and device 0 exists.
    unsafe {
        let cuda = Library::new("libcuda.so.1").expect("the driver");
        let reset = cuda.get::<unsafe extern "C" fn(i32) -> i32>("cuDevicePrimaryCtxReset_v2").unwrap();
        assert_eq!(reset(0), 0);
        if and_retain {
            let retain =
                cuda.get::<unsafe extern "C" fn(*mut u64, i32) -> i32>("cuDevicePrimaryCtxRetain").unwrap();
            assert_eq!(retain(&raw mut context, 0), 0);
        }
    }
}

fn open() -> DriverHandle {
    millpond_driver::open(DeviceId::cuda(0)).expect("a CUDA GPU")
}

fn free() -> u64 {
    open().mem_get_info().expect("the driver answers").free
}

/// Takes 10 GiB on two streams, with work and events on them.
fn work(resource: &impl DeviceMemoryResource) {
    let driver = resource.driver();
    let streams = [(); 2].map(|()| driver.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    // Every third block goes back; 10 GiB stay.
    for i in 0..240_u64 {
        let stream = streams[i as usize % 2];
        let ptr = resource.allocate_bytes(64 * MIB, stream).unwrap();
        // SAFETY: the block was just taken; it goes back in the order of its stream.
        unsafe {
            driver.memset_d8_async(ptr, 1, 64 * MIB, stream).unwrap();
            if i % 3 == 0 {
                resource.deallocate_bytes(ptr, 64 * MIB, stream);
            }
        }
    }
    let ptr = resource.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    // SAFETY: as above.
    unsafe { resource.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn issue_9_ten_resets_with_a_pool_of_10_gib_leave_the_devices_memory_where_it_was() {
    let id = DeviceId::cuda(0);
    open();
    reset(true);
    let before = free();
    for round in 0..10 {
        let driver = open();
        let pages = if round == 9 { PagesMode::Off } else { PagesMode::Auto };
        let pool = CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new().pages(pages)).unwrap();
        work(&pool);
        let default = registry::get_per_device_resource(id).unwrap();
        let plain = default.allocate_bytes(3 * MIB, StreamRef::LEGACY).unwrap();
        let event = driver.event_create(EventFlags::default()).unwrap();
        let held = before - free();
        assert!(held >= 9 * GIB, "round {round}: {held}");

        reset(round % 2 == 0);
        // No call with an old event or pointer reaches the new context: the driver would crash, or free
        // another resource's memory.
        assert!(driver.event_query(event).unwrap_err().is_sticky());
        let error = pool.allocate_bytes(20 * GIB, StreamRef::LEGACY).unwrap_err().to_string();
        assert!(error.contains("was reset"), "{error}");
        let successor = CudaMemoryResource::new(open());
        let taken = successor.allocate_bytes(3 * MIB, StreamRef::LEGACY).unwrap();
        // SAFETY: the block came from this resource with this size.
        unsafe { default.deallocate_bytes(plain, 3 * MIB, StreamRef::LEGACY) };
        // SAFETY: the memory still belongs to the successor.
        unsafe { open().memset_d8_async(taken, 2, 3 * MIB, StreamRef::LEGACY) }.unwrap();
        open().synchronize().unwrap();
        // SAFETY: as above.
        unsafe { successor.deallocate_bytes(taken, 3 * MIB, StreamRef::LEGACY) };
        drop(pool);
        let again = registry::get_per_device_resource(id).unwrap();
        let block = again.allocate_bytes(MIB, StreamRef::LEGACY).unwrap();
        // SAFETY: as above.
        unsafe { again.deallocate_bytes(block, MIB, StreamRef::LEGACY) };
        let stream = open().stream_create(StreamFlags::NON_BLOCKING).unwrap();
        open().stream_synchronize(stream).unwrap();
        println!("round {round}: held {held} bytes; {} free, {before} at first", free());
        // Streams themselves take some memory of the device.
        assert!(free() + 64 * MIB >= before, "round {round}: {} free, {before} at first", free());
    }
}
