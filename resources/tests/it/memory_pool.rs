//! Tests the driver's pools as a type: who keeps them, what they share, and how they answer mistakes.

use std::os::fd::AsFd;
use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, HandleTypes, MemAllocationType, MemLocation, MemPool,
    MemPoolProps, StreamFlags,
};
use millpond_core::{
    Accessibility, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverError,
    DriverHandle, Error, ErrorKind, Result, StreamRef,
};
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice, SimMachine};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::CudaAsyncViewMemoryResource;
use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions, PoolReuse};
use millpond_testkit::hooked::HookedDriver;

pub(crate) const MIB: u64 = 1 << 20;
const CHUNK: u64 = 32 * MIB; // A pool of the simulated device takes this at once.

pub(crate) fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

pub(crate) fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

pub(crate) fn options() -> MemoryPoolOptions {
    MemoryPoolOptions::new()
}

pub(crate) fn pool(device: &Arc<SimDevice>, options: MemoryPoolOptions) -> MemoryPool {
    MemoryPool::new(device.clone(), options).unwrap()
}

pub(crate) fn view(pool: &MemoryPool) -> CudaAsyncViewMemoryResource {
    CudaAsyncViewMemoryResource::new(pool.clone()).unwrap()
}

/// Frees a block that the test allocated with this size.
pub(crate) fn put(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: every test passes the blocks that it allocated, once, when nothing uses them.
    unsafe { resource.deallocate_bytes(ptr, bytes, stream) }
}

/// Returns the kind and the text of an error. The text calls the device `DEVICE`.
pub(crate) fn said<T>(answer: Result<T>) -> (ErrorKind, String) {
    let Err(error) = answer else { panic!("it was not refused") };
    let device = error.device().map(|device| device.to_string());
    let text = error.to_string();
    (error.kind(), device.map_or(text.clone(), |device| text.replace(&device, "DEVICE")))
}

// --- Host memory ---

/// The figures of a host pool are the host's, also if other code made the pool.
#[test]
fn a_pool_of_host_memory_has_the_hosts_figures() {
    let device = device();
    let (host, of_device) = (device.host_memory_info().unwrap(), device.mem_get_info().unwrap());
    assert_ne!(host.total, of_device.total);
    let props = MemPoolProps::default().location(MemLocation::HostNuma(0));
    let raw = device.mem_pool_create(props).unwrap();
    let default = |location, kind| MemoryPool::default_for(device.clone(), location, kind).unwrap();
    for (pool, total) in [
        (pool(&device, options().location(MemLocation::Host)), host.total),
        (default(MemLocation::Host, MemAllocationType::Pinned), host.total),
        (default(MemLocation::HostNuma(0), MemAllocationType::Pinned), host.total),
        // SAFETY: the pool outlives its value.
        (unsafe { MemoryPool::from_raw(device.clone(), raw) }, host.total),
        (default(MemLocation::Device, MemAllocationType::Managed), of_device.total),
        (default(MemLocation::Device, MemAllocationType::Pinned), of_device.total),
    ] {
        let resource = view(&pool);
        assert_eq!(resource.memory_info().unwrap().total, total, "{pool:?}");
        let report = resource.memory_report();
        let is_on_host = total == host.total;
        assert_eq!(report.device_memory.is_some(), !is_on_host, "{report}");
        assert_eq!(report.host_memory.is_some(), resource.accessibility().host, "{report}");
        let error = resource.allocate_bytes(1 << 50, StreamRef::LEGACY).unwrap_err();
        let report = error.out_of_memory_report().unwrap();
        assert_eq!(
            (report.device.is_some(), report.host.is_some()),
            (!is_on_host, resource.accessibility().host)
        );
    }
}

#[test]
fn a_numa_node_that_does_not_exist_is_named() {
    let device = device();
    let place = MemLocation::HostNuma(70_000);
    for refused in [
        said(MemoryPool::new(device.clone(), options().location(place))),
        said(MemoryPool::default_for(device.clone(), place, MemAllocationType::Pinned)),
    ] {
        let (kind, text) = refused;
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(
            text.contains("NUMA node 70000") && text.contains("or none, which needs CUDA 13.0"),
            "{text}"
        );
    }
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

/// A driver before CUDA 13.2 does not say how another library's pool was made, but who accesses it.
#[test]
fn an_old_drivers_pools_are_told_apart_by_their_access() {
    let device = device();
    let seen = |props, reaches_device: bool| {
        let raw = device.mem_pool_create(props).unwrap();
        // SAFETY: the pool outlives its value.
        let pool = unsafe { MemoryPool::from_raw(device.clone(), raw) };
        if reaches_device {
            pool.set_access(AccessFlags::ReadWrite, &[device.device()]).unwrap();
        }
        device.set_faults(FaultPlan::nth_of(CallKind::MemPool, 0, DriverError::INVALID_VALUE));
        let accessibility = view(&pool).accessibility();
        device.set_faults(FaultPlan::none());
        accessibility
    };
    let props = MemPoolProps::default();
    let (host, managed) = (props.location(MemLocation::Host), props.kind(MemAllocationType::Managed));
    assert_eq!(seen(props, false), Accessibility::DEVICE);
    assert_eq!(seen(host, false), Accessibility::HOST);
    assert_eq!([seen(host, true), seen(managed, false)], [Accessibility::DEVICE_AND_HOST; 2]);
    let own = MemoryPool::default_for(device.clone(), MemLocation::Device, MemAllocationType::Pinned);
    assert_eq!(own.unwrap(), MemoryPool::default_of(device.clone()).unwrap());
}

/// As an H100's driver answers (580, CUDA 13.0; `benches/rules/pools.cpp`).
#[test]
fn the_host_accesses_host_memory_and_no_device_memory() {
    let device = device();
    let me = device.device();
    let host = pool(&device, options().location(MemLocation::Host));
    let (managed, own) = (pool(&device, options().managed()), pool(&device, options()));
    let refuse = |pool: &MemoryPool, access, place: AccessLocation, why: &str| {
        let (kind, text) = said(pool.set_access(access, &[place]));
        assert!(kind == ErrorKind::InvalidArgument && text.contains(why), "{text}");
    };
    let why = "the host always accesses pools of host memory, and never pools of device memory";
    for place in [AccessLocation::Host, AccessLocation::HostNuma(0), AccessLocation::HostNuma(99)] {
        assert_eq!(host.access(place).unwrap(), AccessFlags::ReadWrite);
        host.set_access(AccessFlags::ReadWrite, &[place]).unwrap();
        refuse(&host, AccessFlags::None, place, why);
        assert_eq!(own.access(place).unwrap(), AccessFlags::None);
        for access in [AccessFlags::None, AccessFlags::ReadWrite] {
            refuse(&own, access, place, why);
            managed.set_access(access, &[place]).unwrap();
            assert_eq!(managed.access(AccessLocation::Host).unwrap(), access);
        }
    }
    assert_eq!(host.access(me).unwrap(), AccessFlags::None);
    host.set_access(AccessFlags::ReadWrite, &[AccessLocation::Host, me.into()]).unwrap();
    assert_eq!(host.access(me).unwrap(), AccessFlags::ReadWrite);
    refuse(&host, AccessFlags::Read, me.into(), "the driver has no access for reading only");
    refuse(&own, AccessFlags::None, me.into(), "always accesses its own memory; name other devices");
    let current = AccessLocation::HostNumaCurrent;
    refuse(&host, AccessFlags::ReadWrite, current, "the driver takes no current NUMA node");
    assert!(said(host.access(current)).1.contains("the driver takes no current NUMA node"));
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
    for (options, why) in [
        (
            options().managed(),
            "managed memory cannot be exported; leave out the handles, or use device memory",
        ),
        (
            options().location(MemLocation::Host),
            "host memory on any NUMA node cannot be exported; leave out the handles, or name a NUMA node, as \
             in `numa=0`",
        ),
    ] {
        let refused = said(MemoryPool::new(device.clone(), options.handles(HandleTypes::POSIX_FD)));
        assert_eq!(refused, (ErrorKind::Unsupported, format!("not supported on DEVICE: pools of {why}")));
    }
    pool(&device, options().location(MemLocation::HostNuma(0)).handles(HandleTypes::POSIX_FD));
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
