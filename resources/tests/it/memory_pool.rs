//! Tests the driver's pools as a type: who keeps them, what they share, and how they answer mistakes.

use std::os::fd::AsFd;
use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, CaptureMode, HandleTypes, MemAllocationType, MemLocation, MemPool, MemPoolProps, StreamFlags,
};
use millpond_core::{
    DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverError, DriverHandle,
    Error, ErrorKind, Result, StreamRef,
};
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice, SimMachine};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::CudaAsyncViewMemoryResource;
use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions, PoolReuse};
use millpond_testkit::hooked::HookedDriver;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 32 * MIB; // A pool of the simulated device takes this at once.

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

fn options() -> MemoryPoolOptions {
    MemoryPoolOptions::new()
}

fn pool(device: &Arc<SimDevice>, options: MemoryPoolOptions) -> MemoryPool {
    MemoryPool::new(device.clone(), options).unwrap()
}

fn view(pool: &MemoryPool) -> CudaAsyncViewMemoryResource {
    CudaAsyncViewMemoryResource::new(pool.clone()).unwrap()
}

/// Frees a block that the test allocated with this size.
fn put(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: every test passes the blocks that it allocated, once, when nothing uses them.
    unsafe { resource.deallocate_bytes(ptr, bytes, stream) }
}

/// Returns the kind and the text of an error. The text calls the device `DEVICE`.
fn said<T>(answer: Result<T>) -> (ErrorKind, String) {
    let Err(error) = answer else { panic!("it was not refused") };
    let device = error.device().map(|device| device.to_string());
    let text = error.to_string();
    (error.kind(), device.map_or(text.clone(), |device| text.replace(&device, "DEVICE")))
}

// --- Making and asking ---

#[test]
fn a_pool_is_what_its_options_say() {
    let device = device();
    let reuse = PoolReuse::ALL.opportunistic(false);
    let made =
        pool(&device, options().max_bytes(64 * MIB).release_threshold(5).reuse(reuse).hw_decompress(true));
    let expected = MemPoolProps::default().max_bytes(64 * MIB).hw_decompress(true);
    assert_eq!(made.properties().unwrap(), expected);
    assert_eq!((made.release_threshold().unwrap(), made.reuse().unwrap()), (5, reuse));
    made.set_reuse(PoolReuse::OWN_STREAM).unwrap();
    assert_eq!(made.reuse().unwrap(), PoolReuse::OWN_STREAM);
    // The value asks the driver about a pool that was not made here.
    let default = MemoryPool::default_of(device.clone()).unwrap();
    assert_eq!(default.properties().unwrap(), MemPoolProps::default());
    let managed =
        MemoryPool::default_for(device.clone(), MemLocation::Device, MemAllocationType::Managed).unwrap();
    let expected = MemPoolProps::default().kind(MemAllocationType::Managed);
    assert_eq!(managed.properties().unwrap(), expected);
    assert_ne!(managed, default);
    assert_eq!(MemoryPool::default_of(device).unwrap(), default, "the same pool, the same value");
}

#[test]
fn marks_and_bytes_are_counted_and_start_again() {
    let device = device();
    let pool = pool(&device, options().release_threshold(u64::MAX));
    let (resource, s) = (view(&pool), stream(&device));
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    let large = resource.allocate_bytes(2 * CHUNK, s).unwrap();
    put(&resource, large, 2 * CHUNK, s);
    assert_eq!((pool.used_bytes().unwrap(), pool.used_high().unwrap()), (MIB, 2 * CHUNK + MIB));
    assert_eq!((pool.reserved_bytes().unwrap(), pool.reserved_high().unwrap()), (3 * CHUNK, 3 * CHUNK));
    device.stream_synchronize(s).unwrap();
    assert_eq!(pool.trim(0).unwrap(), 2 * CHUNK, "the other chunk has a block in use");
    pool.reset_used_high().unwrap();
    pool.reset_reserved_high().unwrap();
    assert_eq!((pool.used_high().unwrap(), pool.reserved_high().unwrap()), (MIB, CHUNK));
    assert_eq!(pool.trim(CHUNK).unwrap(), 0);
    put(&resource, ptr, MIB, s);
}

#[test]
fn a_threshold_of_0_gives_back_at_a_synchronisation_and_a_high_one_keeps() {
    let device = device();
    for (threshold, kept) in [(0, 0), (u64::MAX, CHUNK)] {
        let pool = pool(&device, options().release_threshold(threshold));
        let (resource, s) = (view(&pool), stream(&device));
        let ptr = resource.allocate_bytes(MIB, s).unwrap();
        put(&resource, ptr, MIB, s);
        device.stream_synchronize(s).unwrap();
        assert_eq!(pool.reserved_bytes().unwrap(), kept);
    }
}

// --- Who keeps a pool ---

#[test]
fn a_pool_ends_with_its_last_value() {
    let device = device();
    let made = pool(&device, options());
    let clone = made.clone();
    drop(made);
    assert_eq!(device.live_allocations(), 1);
    let resource = view(&clone);
    drop(clone);
    assert_eq!(device.live_allocations(), 1, "the resource keeps it");
    drop(resource);
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
}

#[test]
fn a_dropped_pool_stays_with_the_driver_until_its_last_block_is_freed() {
    let device = device();
    let (pool, s) = (pool(&device, options()), stream(&device));
    let ptr = view(&pool).allocate_bytes(MIB, s).unwrap();
    drop(pool);
    assert_eq!(device.live_bytes(), CHUNK);
    device.launch(s, &[Access::write(ptr, MIB, 1), Access::check(ptr, MIB, 1)]);
    // SAFETY: the block is live, and its pool can no longer take it back.
    unsafe { device.mem_free_async(ptr, s) }.unwrap();
    device.stream_synchronize(s).unwrap();
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    assert_eq!(device.take_violations(), []);
}

#[test]
fn a_current_pool_lives_while_it_is_current() {
    let device = device();
    let default = MemoryPool::default_of(device.clone()).unwrap();
    assert_eq!(MemoryPool::current_of(device.clone()).unwrap(), default);
    let made = pool(&device, options());
    made.set_current().unwrap();
    drop(made);
    let current = MemoryPool::current_of(device.clone()).unwrap();
    let s = stream(&device);
    let resource = CudaAsyncViewMemoryResource::of_current(device.clone()).unwrap();
    assert_eq!(resource.pool(), &current);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    assert_eq!(device.pointer_mem_pool(ptr), Ok(Some(current.raw())));
    put(&resource, ptr, MIB, s);
    default.set_current().unwrap();
    assert_eq!(MemoryPool::current_of(device.clone()).unwrap(), default);
    drop((current, resource));
    assert_eq!(device.live_allocations(), 0, "nothing keeps it any more");
}

#[test]
fn a_pool_of_another_library_is_left_to_it() {
    let device = device();
    let raw = device.mem_pool_create(MemPoolProps::default()).unwrap();
    let driver: DriverHandle = device.clone();
    // SAFETY: the pool lives until the end of this test.
    let [first, second] = [(); 2].map(|()| unsafe { MemoryPool::from_raw(driver.clone(), raw) });
    assert_eq!((&first, first.raw()), (&second, raw));
    drop((first, second));
    assert_eq!(device.live_allocations(), 1);
    // SAFETY: nothing names it any more.
    unsafe { device.mem_pool_destroy(raw) }.unwrap();
}

#[test]
fn after_an_error_that_loses_the_device_no_call_is_made() {
    let device = device();
    let pool = pool(&device, options());
    device.health().note(&DriverError::new(DriverError::ILLEGAL_ADDRESS, "a kernel"));
    let calls = device.driver_calls();
    assert_eq!(pool.trim(0).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(pool.used_bytes().unwrap_err().kind(), ErrorKind::Poisoned);
    drop(pool);
    assert_eq!(device.driver_calls(), calls);
}

// --- Other devices ---

#[test]
fn another_device_uses_what_it_was_given() {
    let machine = SimMachine::new();
    let [a, b] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(1 << 30)));
    let (s, t) = (stream(&a), stream(&b));
    let pool = pool(&a, options());
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    a.stream_synchronize(s).unwrap();
    assert_eq!(pool.access(b.device()).unwrap(), AccessFlags::None);
    // SAFETY: the block is live; the driver refuses the call.
    assert!(unsafe { b.memset_d8_async(ptr, 1, MIB, t) }.is_err());
    pool.set_access(AccessFlags::ReadWrite, &[b.device()]).unwrap();
    assert_eq!(pool.access(b.device()).unwrap(), AccessFlags::ReadWrite);
    // SAFETY: the block is live.
    unsafe { b.memset_d8_async(ptr, 1, MIB, t) }.unwrap();
    b.stream_synchronize(t).unwrap();
    put(&resource, ptr, MIB, s);
    let error = pool.set_access(AccessFlags::ReadWrite, &[device().device()]).unwrap_err();
    assert_eq!(error.driver_error().unwrap().code(), DriverError::INVALID_DEVICE, "{error}");
}

// --- Other processes ---

#[cfg(unix)]
mod shared {
    use std::os::fd::AsFd;

    use millpond_core::driver::MemPoolPtrData;
    use millpond_resources::memory_pool::{ImporterToken, handshake};
    use millpond_testkit::hooked::HookedDriver;

    use super::*;

    fn exportable(device: &Arc<SimDevice>) -> MemoryPool {
        pool(device, options().handles(HandleTypes::POSIX_FD))
    }

    /// Imports the pool, as another process does.
    fn import(device: &Arc<SimDevice>, pool: &MemoryPool) -> MemoryPool {
        let driver = HookedDriver::in_another_process(device.clone(), millpond_core::DeviceId::sim(9_999));
        let fd = pool.export_fd().unwrap();
        // SAFETY: the tests free imported blocks first.
        unsafe { MemoryPool::import_fd(driver, fd.as_fd()) }.unwrap()
    }

    #[test]
    fn a_block_is_used_in_another_process_and_freed_there_first() {
        let device = device();
        let [s, t] = [(); 2].map(|()| stream(&device));
        let pool = exportable(&device);
        let resource = view(&pool);
        let ptr = resource.allocate_bytes(MIB, s).unwrap();
        device.launch(s, &[Access::write(ptr, MIB, 7)]);
        device.stream_synchronize(s).unwrap();
        let data = pool.export_pointer(ptr).unwrap();
        let (importers, token) = handshake().unwrap();
        // In the other process:
        let imported = import(&device, &pool);
        assert!(imported.is_imported() && imported.properties().unwrap().handles.is_none());
        let block = imported.import_pointer(&data).unwrap();
        assert_ne!(block.device_pointer(), ptr);
        device.launch(t, &[Access::check(block.device_pointer(), MIB, 7)]);
        block.free_on(t).unwrap();
        device.stream_synchronize(t).unwrap();
        drop(token);
        // And in the first:
        importers.wait().unwrap();
        put(&resource, ptr, MIB, s);
        drop((imported, resource, pool));
        assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
        assert_eq!(device.take_violations(), []);
    }

    #[test]
    fn a_dropped_block_is_freed_after_all_work() {
        let device = device();
        let [s, t] = [(); 2].map(|()| stream(&device));
        let pool = exportable(&device);
        let resource = view(&pool);
        let ptr = resource.allocate_bytes(MIB, s).unwrap();
        device.stream_synchronize(s).unwrap();
        let imported = import(&device, &pool);
        let block = imported.import_pointer(&pool.export_pointer(ptr).unwrap()).unwrap();
        device.launch_for(t, &[Access::read(block.device_pointer(), MIB)], 1_000_000);
        drop(block);
        put(&resource, ptr, MIB, s);
        assert_eq!(device.take_violations(), []);
    }

    #[test]
    fn a_dropped_block_is_freed_where_its_stream_cannot_be_made() {
        let device = device();
        let (pool, s) = (exportable(&device), stream(&device));
        let resource = view(&pool);
        let ptr = resource.allocate_bytes(MIB, s).unwrap();
        device.stream_synchronize(s).unwrap();
        let block = import(&device, &pool).import_pointer(&pool.export_pointer(ptr).unwrap()).unwrap();
        device.set_faults(FaultPlan::nth_of(CallKind::StreamCreate, 0, DriverError::OUT_OF_MEMORY));
        drop(block);
        put(&resource, ptr, MIB, s);
        assert_eq!(device.take_violations(), [], "it was freed before the exporter's");
    }

    #[test]
    fn an_exporter_waits_for_every_copy_of_the_token() {
        let (importers, token) = handshake().unwrap();
        let copy = ImporterToken::from(token.as_fd().try_clone_to_owned().unwrap());
        let waiting = std::thread::spawn(move || importers.wait());
        drop(token);
        assert!(!waiting.is_finished());
        drop(copy);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn what_an_imported_pool_cannot_do_is_said_before_the_driver_is_asked() {
        let device = device();
        let pool = exportable(&device);
        let imported = import(&device, &pool);
        let calls = device.driver_calls();
        for (what, answer) in [
            ("allocate", CudaAsyncViewMemoryResource::new(imported.clone()).map(drop)),
            ("count its memory", imported.used_bytes().map(drop)),
            ("have a release threshold", imported.set_release_threshold(0)),
            ("be trimmed", imported.trim(0).map(drop)),
            ("be a device's current pool", imported.set_current()),
            ("hand out freed memory", imported.set_reuse(PoolReuse::ALL)),
            ("be exported", imported.export_pointer(DevicePtr::new(256)).map(drop)),
        ] {
            let text = format!(
                "not supported on DEVICE: an imported pool cannot {what}; do this in the process that made \
                 the pool"
            );
            assert_eq!(said(answer), (ErrorKind::Unsupported, text));
        }
        assert_eq!(device.driver_calls(), calls);
    }

    #[test]
    fn export_from_a_pool_without_handles() {
        let pool = pool(&device(), options());
        let text = "invalid argument on DEVICE: the pool was made without handles for other processes; make \
                    it with file descriptors (handles=fd)";
        assert_eq!(said(pool.export_fd()), (ErrorKind::InvalidArgument, text.to_owned()));
        let pointer = said(pool.export_pointer(DevicePtr::new(256)));
        assert_eq!(pointer, (ErrorKind::InvalidArgument, text.to_owned()));
    }

    #[test]
    fn import_of_a_descriptor_that_is_no_pools() {
        let device = device();
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: it is refused.
        let refused = unsafe { MemoryPool::import_fd(device.clone(), file.as_fd()) };
        let (kind, text) = said(refused);
        assert_eq!(kind, ErrorKind::InvalidArgument);
        let start = "invalid argument on DEVICE: the descriptor names no pool of this device; pass a \
                     descriptor that `export_fd` returned: ";
        assert!(text.starts_with(start), "{text}");
        assert_eq!(device.live_allocations(), 0);
    }

    #[test]
    fn export_of_a_pointer_of_another_pool() {
        let device = device();
        let (pool, other, s) = (exportable(&device), exportable(&device), stream(&device));
        let resource = view(&other);
        let ptr = resource.allocate_bytes(MIB, s).unwrap();
        for wrong in [ptr, DevicePtr::new(4096), ptr.offset(1 << 40)] {
            let text = format!(
                "invalid argument on DEVICE: {wrong} is in no block of this pool; export the block from the \
                 pool that allocated it"
            );
            assert_eq!(said(pool.export_pointer(wrong)), (ErrorKind::InvalidArgument, text));
        }
        let inside = other.export_pointer(ptr.offset(256)).unwrap_err();
        assert!(inside.to_string().contains("pass its first byte"), "{inside}");
        put(&resource, ptr, MIB, s);
    }

    #[test]
    fn import_of_a_pointer_that_the_pool_does_not_have() {
        let device = device();
        let (pool, other, s) = (exportable(&device), exportable(&device), stream(&device));
        let imported = import(&device, &pool);
        let resources = [&pool, &other].map(view);
        let [own, strange] = [0, 1].map(|at: usize| resources[at].allocate_bytes(MIB, s).unwrap());
        let (data, strange_data) =
            (pool.export_pointer(own).unwrap(), other.export_pointer(strange).unwrap());
        let text = "invalid argument on DEVICE: this process made the pool; import blocks into the pool that \
                    `import_fd` returned";
        assert_eq!(said(pool.import_pointer(&data)), (ErrorKind::InvalidArgument, text.to_owned()));
        put(&resources[0], own, MIB, s);
        put(&resources[1], strange, MIB, s);
        for wrong in [strange_data, data, MemPoolPtrData([0xa5; 64])] {
            let (kind, text) = said(imported.import_pointer(&wrong));
            let start = "invalid argument on DEVICE: the data describes no live block of the imported pool";
            assert!(kind == ErrorKind::InvalidArgument && text.starts_with(start), "{text}");
        }
    }
}

// --- Mistakes ---

#[test]
fn the_current_pool_of_another_device_cannot_be_set() {
    let machine = SimMachine::new();
    let [a, b] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(1 << 30)));
    let pool = pool(&a, options());
    pool.set_current().unwrap();
    let before = b.device_get_mem_pool();
    let error: Error = b.device_set_mem_pool(pool.raw()).unwrap_err().into();
    assert_eq!(error.kind(), ErrorKind::Driver);
    let text = format!(
        "driver error: cuDeviceSetMemPool: CUDA_ERROR_INVALID_VALUE (1): there is no pool {:#x} of this \
         device",
        pool.raw().0
    );
    assert_eq!(error.to_string(), text);
    assert_eq!(b.device_get_mem_pool(), before);
    MemoryPool::default_of(a).unwrap().set_current().unwrap();
}

#[test]
fn a_handle_that_names_no_pool() {
    // SAFETY: the simulated device finds out.
    let pool = unsafe { MemoryPool::from_raw(device(), MemPool(0)) };
    let text = "driver error on DEVICE: cuMemPoolGetAttribute: CUDA_ERROR_INVALID_VALUE (1): there is no \
                pool 0x0 of this device";
    assert_eq!(said(pool.used_bytes()), (ErrorKind::Driver, text.to_owned()));
}

#[test]
fn handles_that_the_device_has_not() {
    let device = device();
    let text = "not supported on DEVICE: the device does not support pools with these handles; choose \
                another kind of handle, or none";
    for handles in [HandleTypes::WIN32_KMT, HandleTypes::WIN32, HandleTypes::POSIX_FD | HandleTypes::WIN32] {
        let refused = said(MemoryPool::new(device.clone(), options().handles(handles)));
        assert_eq!(refused, (ErrorKind::Unsupported, text.to_owned()));
    }
    let managed = options().managed().handles(HandleTypes::POSIX_FD);
    let text = "not supported on DEVICE: pools of managed memory cannot be exported; leave out the handles, \
                or use device memory";
    assert_eq!(said(MemoryPool::new(device, managed)), (ErrorKind::Unsupported, text.to_owned()));
}

#[test]
fn a_pool_after_a_reset_of_the_context() {
    let device = device();
    let (pool, s) = (pool(&device, options()), stream(&device));
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    device.reset_context();
    let (kind, text) = said(pool.used_bytes());
    assert_eq!(kind, ErrorKind::Poisoned);
    assert!(text.contains("the device's context was reset"), "{text}");
    assert!(device.health().is_reset());
    let calls = device.driver_calls();
    put(&resource, ptr, MIB, s);
    assert_eq!(resource.allocate_bytes(MIB, s).unwrap_err().kind(), ErrorKind::Poisoned);
    drop((resource, pool));
    assert_eq!(
        device.driver_calls(),
        calls + 2,
        "the block and the pool go back, and nothing else is called"
    );
    let again = device.open_again();
    assert_eq!((device.live_bytes(), device.live_allocations()), (0, 0));
    assert!(MemoryPool::default_of(again.clone()).unwrap().used_bytes().is_ok());
    assert_eq!(again.take_violations(), []);
}

/// The first call after a reset is a free, on a stream that ended with the context.
#[test]
fn a_free_after_a_reset_of_the_context() {
    let device = device();
    let (pool, s) = (pool(&device, options()), stream(&device));
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    device.reset_context();
    put(&resource, ptr, MIB, s);
    assert!(device.health().is_reset());
    assert_eq!(resource.statistics(), None, "it was no mistake");
    assert_eq!(device.take_violations(), []);
}

/// A free that the driver refused is repeated once the device has done its work.
#[test]
fn a_free_that_the_driver_refused_is_made_later() {
    let device = device();
    let (pool, s) = (pool(&device, options().release_threshold(u64::MAX)), stream(&device));
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    // The second call of a free: the first asks whether the stream captures.
    device.set_faults(FaultPlan::nth_call(1, DriverError::INVALID_VALUE));
    put(&resource, ptr, MIB, s);
    device.set_faults(FaultPlan::none());
    assert_eq!(pool.used_bytes().unwrap(), MIB);
    assert_eq!(resource.memory_info().unwrap().free, 1 << 30, "it counts as free");
    assert_eq!(pool.trim(0).unwrap(), CHUNK);
    assert_eq!(device.take_violations(), []);
}

#[test]
fn reuse_is_read_from_text() {
    for text in
        ["own", "follow", "opportunistic", "internal", "follow/internal", "follow/opportunistic/internal"]
    {
        assert_eq!(text.parse::<PoolReuse>().unwrap().to_string(), text);
    }
    let text = "invalid argument: `some` is none of follow, opportunistic and internal; write for example \
                follow/opportunistic, or own";
    assert_eq!("follow/some".parse::<PoolReuse>().unwrap_err().to_string(), text);
}

// --- Found by review ---

/// If another thread defers a block after a trim has waited for the device, the trim does not free it.
#[test]
fn a_block_that_is_deferred_beside_a_trim_is_not_freed_early() {
    let device = device();
    let driver = HookedDriver::new(device.clone());
    let pool = MemoryPool::new(driver.clone(), options()).unwrap();
    let resource = Arc::new(view(&pool));
    let (one, other) = (stream(&device), stream(&device));
    let block = resource.allocate_bytes(4 * MIB, one).unwrap();
    device.stream_synchronize(one).unwrap();
    let (of_thread, sim) = (Arc::clone(&resource), device.clone());
    driver.after_synchronize(move || {
        sim.launch(one, &[Access::write(block, 4 * MIB, 7)]);
        sim.begin_capture(one, CaptureMode::Relaxed).unwrap();
        put(&of_thread, block, 4 * MIB, one);
        sim.end_capture(one).unwrap();
    });
    resource.trim(0).unwrap();
    let again = resource.allocate_bytes(4 * MIB, other).unwrap();
    device.launch(other, &[Access::write(again, 4 * MIB, 9)]);
    device.synchronize().unwrap();
    assert_eq!(device.take_violations(), []);
    put(&*resource, again, 4 * MIB, other);
}

/// Another library destroyed its pool, but a view is left, and the driver uses the handle again.
#[test]
fn a_new_pool_with_an_old_handle_is_a_pool_of_its_own() {
    let device = device();
    let driver = HookedDriver::new(device.clone());
    let raw = device.mem_pool_create(MemPoolProps::default()).unwrap();
    device.device_set_mem_pool(raw).unwrap();
    let stale = CudaAsyncViewMemoryResource::of_current(driver.clone()).unwrap();
    driver.next_pool_is(raw);
    let made = MemoryPool::new(driver.clone(), options().handles(HandleTypes::POSIX_FD)).unwrap();
    assert_ne!(made, *stale.pool());
    drop(stale);
    // The call finds the existing value, and does not make a new one that would not own the pool.
    assert_eq!(MemoryPool::current_of(driver.clone()).unwrap(), made);
    let before = device.live_allocations();
    drop(made);
    assert!(device.live_allocations() < before, "the pool is destroyed");
}

#[test]
fn an_imported_block_is_not_freed_by_a_graph() {
    let device = device();
    let pool = pool(&device, options().handles(HandleTypes::POSIX_FD));
    let resource = view(&pool);
    let (one, capturing) = (stream(&device), stream(&device));
    let block = resource.allocate_bytes(MIB, one).unwrap();
    device.stream_synchronize(one).unwrap();
    let fd = pool.export_fd().unwrap();
    let other = HookedDriver::in_another_process(device.clone(), DeviceId::sim(9_999));
    // SAFETY: the block is freed there first.
    let imported = unsafe { MemoryPool::import_fd(other, fd.as_fd()) }.unwrap();
    let there = imported.import_pointer(&pool.export_pointer(block).unwrap()).unwrap();
    device.begin_capture(capturing, CaptureMode::Relaxed).unwrap();
    let error = there.free_on(capturing).unwrap_err();
    assert_eq!(
        error.message(),
        "a block of another process cannot be freed by a graph; free it outside the capture"
    );
    device.end_capture(capturing).unwrap();
    put(&resource, block, MIB, one);
    device.synchronize().unwrap();
    assert_eq!(device.take_violations(), []);
}

/// A pool remembers few of the streams on which blocks were freed, and a trim asks few.
#[test]
fn streams_that_come_and_go_do_not_fill_a_pools_table() {
    let device = device();
    let counting = CountingDriver::new(device.clone());
    let resource = view(&MemoryPool::new(counting.clone(), options()).unwrap());
    let lasting = stream(&device);
    let block = resource.allocate_bytes(MIB, lasting).unwrap();
    for _ in 0..1000 {
        let brief = stream(&device);
        let block = resource.allocate_bytes(MIB, brief).unwrap();
        put(&resource, block, MIB, brief);
        // SAFETY: the stream is not named again.
        unsafe { device.stream_destroy(brief) }.unwrap();
    }
    put(&resource, block, MIB, lasting);
    let records = || counting.counts().get(CallKind::EventRecord).calls;
    let before = records();
    assert!(resource.trim(0).unwrap() >= MIB);
    assert!((1..=64).contains(&(records() - before)), "{} streams were asked", records() - before);
}
