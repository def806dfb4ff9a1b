//! Tests the pools of the simulated device: properties, current pools, access by other devices, and sharing
//! between processes.

use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, AccessLocation, DeviceAttribute, DriverError, DriverResult, FabricHandle, HandleTypes,
    MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData, MemoryKind,
    StreamFlags,
};
use millpond_core::{DevicePtr, Driver, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice, SimMachine, ViolationKind};

const MIB: u64 = 1 << 20;
/// The memory that a pool of a large device takes at once.
const CHUNK: u64 = 32 * MIB;
fn managed() -> MemPoolProps {
    MemPoolProps::default().kind(MemAllocationType::Managed)
}

fn on_host() -> MemPoolProps {
    MemPoolProps::default().location(MemLocation::Host)
}

fn shared() -> MemPoolProps {
    MemPoolProps::default().handles(HandleTypes::POSIX_FD)
}

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

fn code<T: std::fmt::Debug>(answer: DriverResult<T>) -> i32 {
    answer.unwrap_err().code()
}

fn kinds(device: &SimDevice) -> Vec<ViolationKind> {
    device.take_violations().into_iter().map(|violation| violation.kind).collect()
}

fn get(device: &SimDevice, pool: MemPool, attribute: MemPoolAttribute) -> u64 {
    device.mem_pool_get_attribute(pool, attribute).unwrap()
}

fn free(device: &SimDevice, ptr: DevicePtr, stream: StreamRef) {
    // SAFETY: every test passes each pointer once; otherwise the device detects it.
    unsafe { device.mem_free_async(ptr, stream) }.unwrap();
}

fn destroy(device: &SimDevice, pool: MemPool) {
    // SAFETY: the tests use the pool again only on purpose, and the device detects that.
    unsafe { device.mem_pool_destroy(pool) }.unwrap();
}

#[test]
fn a_pool_says_how_it_was_made() {
    use MemPoolAttribute::*;
    let device = device();
    let attributes = [AllocationType, LocationType, ExportHandleTypes, MaxPoolSize, HwDecompressEnabled];
    let props = shared().max_bytes(MIB).hw_decompress(true);
    for (props, expected) in [
        (MemPoolProps::default(), [1, 1, 0, 0, 0]),
        (props, [1, 1, 1, MIB, 1]),
        (managed(), [2, 1, 0, 0, 0]),
        (on_host(), [1, 2, 0, 0, 0]),
        (on_host().location(MemLocation::HostNuma(0)), [1, 3, 0, 0, 0]),
    ] {
        let pool = device.mem_pool_create(props).unwrap();
        assert_eq!(attributes.map(|attribute| get(&device, pool, attribute)), expected, "{props:?}");
        for attribute in attributes {
            assert_eq!(code(device.mem_pool_set_attribute(pool, attribute, 1)), DriverError::INVALID_VALUE);
        }
        destroy(&device, pool);
    }
    let pool = device.device_get_default_mem_pool().unwrap();
    assert_eq!(get(&device, pool, LocationId), u64::from(device.device().ordinal()));
    assert_eq!(device.live_allocations(), 0);
}

#[test]
fn pools_that_cuda_has_not_are_refused() {
    let device = device();
    for (props, expected) in [
        (MemPoolProps::default().handles(HandleTypes::WIN32), DriverError::NOT_SUPPORTED),
        (on_host().location(MemLocation::HostNumaCurrent), DriverError::INVALID_VALUE),
        (on_host().location(MemLocation::HostNuma(7)), DriverError::INVALID_VALUE),
        (managed().handles(HandleTypes::POSIX_FD), DriverError::INVALID_VALUE),
        (managed().max_bytes(MIB), DriverError::INVALID_VALUE),
    ] {
        assert_eq!(code(device.mem_pool_create(props)), expected, "{props:?}");
    }
    assert_eq!(device.live_allocations(), 0);
}

#[test]
#[cfg(unix)]
fn pools_have_fabric_handles_from_compute_capability_9_on() {
    let both = HandleTypes::POSIX_FD | HandleTypes::FABRIC;
    let [hopper, ampere] = [SimConfig::h200(), SimConfig::a100()].map(SimDevice::new);
    for (device, handles) in [(&hopper, both), (&ampere, HandleTypes::POSIX_FD)] {
        let known = device.attribute(DeviceAttribute::MemPoolSupportedHandleTypes).unwrap();
        assert_eq!(known, i64::from(handles.bits()));
    }
    let [fabric, both] = [HandleTypes::FABRIC, both].map(|kind| MemPoolProps::default().handles(kind));
    assert_eq!(code(ampere.mem_pool_create(fabric)), DriverError::NOT_SUPPORTED);
    let pool = hopper.mem_pool_create(fabric).unwrap();
    assert_eq!(get(&hopper, pool, MemPoolAttribute::ExportHandleTypes), 8);
    assert_eq!(code(hopper.mem_pool_export_to_fd(pool)), DriverError::INVALID_VALUE);
    destroy(&hopper, pool);
    destroy(&hopper, hopper.mem_pool_create(both).unwrap());
}

#[test]
fn the_current_pool_serves_requests_that_name_none() {
    let device = device();
    let s = stream(&device);
    let default = device.device_get_default_mem_pool().unwrap();
    assert_eq!(device.device_get_mem_pool(), Ok(default));
    let pool = device.mem_pool_create(MemPoolProps::default()).unwrap();
    device.device_set_mem_pool(pool).unwrap();
    assert_eq!(device.device_get_mem_pool(), Ok(pool));
    let place = (MemLocation::Device, MemAllocationType::Pinned);
    assert_eq!(device.mem_get_mem_pool(place.0, place.1), Ok(pool));
    assert_eq!(device.mem_get_default_mem_pool(place.0, place.1), Ok(default));
    let ptr = device.mem_alloc_async(MIB, s).unwrap();
    assert_eq!(device.pointer_mem_pool(ptr), Ok(Some(pool)));
    assert_eq!(get(&device, pool, MemPoolAttribute::UsedMemCurrent), MIB);
    free(&device, ptr, s);
    destroy(&device, pool);
    assert_eq!(device.device_get_mem_pool(), Ok(default), "the default replaces a pool that ends");
    assert_eq!(code(device.device_set_mem_pool(pool)), DriverError::INVALID_VALUE);

    let managed = device.mem_get_default_mem_pool(MemLocation::Device, MemAllocationType::Managed).unwrap();
    assert_ne!(managed, default);
    assert_eq!(device.mem_get_default_mem_pool(MemLocation::Device, MemAllocationType::Managed), Ok(managed));
    assert_eq!(
        code(device.device_set_mem_pool(managed)),
        DriverError::INVALID_VALUE,
        "another kind of memory"
    );
    device.mem_set_mem_pool(MemLocation::Device, MemAllocationType::Managed, managed).unwrap();
    // SAFETY: the device refuses it.
    assert_eq!(code(unsafe { device.mem_pool_destroy(managed) }), DriverError::INVALID_VALUE);
}

#[test]
fn a_pool_of_another_device_is_none_of_this_one() {
    let machine = SimMachine::new();
    let [a, b] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(1 << 30)));
    let pool = a.mem_pool_create(MemPoolProps::default()).unwrap();
    let error = b.device_set_mem_pool(pool).unwrap_err();
    assert_eq!((error.code(), error.call()), (DriverError::INVALID_VALUE, "cuDeviceSetMemPool"));
    assert!(b.device_get_default_mem_pool() != a.device_get_default_mem_pool());
}

/// A pool divides its memory, and returned neighbours join into one piece.
#[test]
fn pools_hand_out_pieces_of_chunks() {
    let device = device();
    let (s, other) = (stream(&device), stream(&device));
    let pool = device.mem_pool_create(MemPoolProps::default()).unwrap();
    device.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
    let take = |bytes, stream| device.mem_alloc_from_pool_async(bytes, pool, stream).unwrap();
    let reserved = || get(&device, pool, MemPoolAttribute::ReservedMemCurrent);
    let blocks = [(); 4].map(|()| take(MIB, s));
    assert_eq!((reserved(), blocks[3].address() - blocks[0].address()), (CHUNK, 3 * MIB));
    free(&device, blocks[1], s);
    free(&device, blocks[2], s);
    assert_eq!(take(2 * MIB, s), blocks[1], "the two joined into one");
    free(&device, blocks[1], s);
    assert_eq!(take(CHUNK + 1, s).address() % (2 * MIB), 0);
    assert_eq!(reserved(), 2 * CHUNK + 2 * MIB, "a request above one chunk gets its own");
    // Neighbours of two streams join when both are done and nothing else fits.
    take(CHUNK - 4 * MIB, s);
    free(&device, blocks[0], other);
    device.synchronize().unwrap();
    assert_eq!(take(3 * MIB, other), blocks[0]);
}

#[test]
fn managed_pools_have_real_memory_that_the_host_sees() {
    let device = device();
    let s = stream(&device);
    let pool = device.mem_pool_create(managed()).unwrap();
    let ptr = device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
    assert_eq!(device.pointer_kind(ptr), Ok(MemoryKind::Managed));
    assert_eq!((device.live_bytes(), device.used_bytes()), (CHUNK, 0));
    // SAFETY: live memory of this size; the test waits for the stream before the host reads it.
    unsafe { device.memset_d8_async(ptr, 7, MIB, s) }.unwrap();
    device.stream_synchronize(s).unwrap();
    let bytes: *const u8 = std::ptr::with_exposed_provenance(ptr.address() as usize);
    // SAFETY: managed memory of 1 MiB, whose work is done.
    assert_eq!(unsafe { (bytes.read(), bytes.add(MIB as usize - 1).read()) }, (7, 7));
    // SAFETY: live memory.
    unsafe { device.mem_prefetch_async(ptr, MIB, true, s) }.unwrap();
    free(&device, ptr, s);
    device.synchronize().unwrap();
    assert_eq!(get(&device, pool, MemPoolAttribute::ReservedMemCurrent), 0, "the threshold is 0");
    destroy(&device, pool);
    assert_eq!((device.live_bytes(), device.live_allocations()), (0, 0));
    assert_eq!(kinds(&device), []);
}

/// Work that is not ordered before a free still finds memory: a simulated race must not be a real one.
#[test]
fn real_memory_goes_back_when_no_work_can_touch_it() {
    let device = device();
    let [s, t] = [(); 2].map(|()| stream(&device));
    let pool = device.mem_pool_create(managed()).unwrap();
    let ptr = device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
    device.stream_synchronize(s).unwrap();
    device.launch_for(t, &[], 1_000_000_000);
    // SAFETY: live memory; the test frees it too early on purpose.
    unsafe { device.memset_d8_async(ptr, 7, MIB, t) }.unwrap();
    free(&device, ptr, s);
    device.stream_synchronize(s).unwrap();
    assert_eq!(kinds(&device), [ViolationKind::EarlyReturn]);
    assert_eq!(device.live_bytes(), 0);
}

#[test]
fn host_pools_are_for_the_device_once_it_has_access() {
    let device = device();
    let s = stream(&device);
    let pool = device.mem_pool_create(on_host()).unwrap();
    let me = AccessLocation::from(device.device());
    assert_eq!(device.mem_pool_get_access(pool, me), Ok(AccessFlags::None));
    let ptr = device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
    assert_eq!((device.pointer_kind(ptr), device.live_bytes()), (Ok(MemoryKind::Host), CHUNK));
    device.launch(s, &[Access::read(ptr, MIB)]);
    assert_eq!(kinds(&device), [ViolationKind::OutOfBounds]);
    device.mem_pool_set_access(pool, AccessFlags::ReadWrite, &[me]).unwrap();
    let later = device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
    device.launch(s, &[Access::write(ptr, MIB, 3), Access::write(later, MIB, 3)]);
    device.stream_synchronize(s).unwrap();
    for ptr in [ptr, later] {
        free(&device, ptr, s);
    }
    destroy(&device, pool);
    assert_eq!((kinds(&device), device.live_allocations()), (vec![], 0));
}

#[test]
fn other_devices_use_a_pool_that_they_were_given() {
    let machine = SimMachine::new();
    let [a, b] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(1 << 30)));
    let (s, t) = (stream(&a), stream(&b));
    let pool = a.mem_pool_create(MemPoolProps::default()).unwrap();
    let ptr = a.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
    a.stream_synchronize(s).unwrap();
    let [own, other] = [&a, &b].map(|device| AccessLocation::from(device.device()));
    assert_eq!(a.mem_pool_get_access(pool, own), Ok(AccessFlags::ReadWrite));
    assert_eq!(a.mem_pool_get_access(pool, other), Ok(AccessFlags::None));
    // SAFETY: live memory; the device refuses the call.
    assert!(unsafe { b.memset_d8_async(ptr, 1, MIB, t) }.is_err());
    a.mem_pool_set_access(pool, AccessFlags::ReadWrite, &[other]).unwrap();
    assert_eq!(a.mem_pool_get_access(pool, other), Ok(AccessFlags::ReadWrite));
    // SAFETY: live memory.
    unsafe { b.memset_d8_async(ptr, 1, MIB, t) }.unwrap();
    a.mem_pool_set_access(pool, AccessFlags::None, &[other]).unwrap();
    // SAFETY: live memory; the device refuses the call.
    assert!(unsafe { b.memset_d8_async(ptr, 1, MIB, t) }.is_err());

    let none = a.mem_pool_set_access(pool, AccessFlags::None, &[own]);
    assert_eq!(code(none), DriverError::INVALID_DEVICE, "the device keeps access to its own memory");
    let alone = device();
    let stranger = a.mem_pool_set_access(pool, AccessFlags::ReadWrite, &[alone.device().into()]);
    assert_eq!(code(stranger), DriverError::INVALID_DEVICE);
    free(&a, ptr, s);
    destroy(&a, pool);
}

#[cfg(unix)]
mod shared {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    fn export(device: &SimDevice, pool: MemPool) -> OwnedFd {
        let fd = device.mem_pool_export_to_fd(pool).unwrap();
        // SAFETY: the device has just opened the descriptor for its caller.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn import(device: &SimDevice, pool: MemPool) -> MemPool {
        device.mem_pool_import_from_fd(export(device, pool).as_raw_fd()).unwrap()
    }

    #[test]
    fn an_imported_pointer_is_the_exporters_memory_at_another_address() {
        let device = device();
        let [s, t] = [(); 2].map(|()| stream(&device));
        let pool = device.mem_pool_create(shared()).unwrap();
        let imported = import(&device, pool);
        let ptr = device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
        device.launch(s, &[Access::write(ptr, MIB, 5)]);
        device.stream_synchronize(s).unwrap();
        let data = device.mem_pool_export_pointer(ptr).unwrap();
        let there = device.mem_pool_import_pointer(imported, &data).unwrap();
        assert_ne!(there, ptr);
        assert_eq!(device.pointer_mem_pool(there), Ok(Some(imported)));
        device.launch(t, &[Access::check(there, MIB, 5)]);
        free(&device, there, t);
        device.stream_synchronize(t).unwrap();
        for count in [MemPoolAttribute::UsedMemCurrent, MemPoolAttribute::ReservedMemHigh] {
            assert_eq!(code(device.mem_pool_get_attribute(imported, count)), DriverError::INVALID_VALUE);
        }
        free(&device, ptr, s);
        for pool in [pool, imported] {
            destroy(&device, pool);
        }
        assert_eq!((kinds(&device), device.live_allocations(), device.live_bytes()), (vec![], 0, 0));
    }

    /// A fabric handle is 64 bytes, which name the pool as a descriptor does.
    #[test]
    fn a_fabric_handle_names_a_pool() {
        let device = SimDevice::new(SimConfig::h200());
        let s = stream(&device);
        let [both, fabric] = [HandleTypes::POSIX_FD | HandleTypes::FABRIC, HandleTypes::FABRIC]
            .map(|handles| device.mem_pool_create(MemPoolProps::default().handles(handles)).unwrap());
        let handle = device.mem_pool_export_to_fabric(fabric).unwrap();
        assert_ne!(device.mem_pool_export_to_fabric(both), Ok(handle));
        let imported = device.mem_pool_import_from_fabric(&handle).unwrap();
        let ptr = device.mem_alloc_from_pool_async(MIB, fabric, s).unwrap();
        let data = device.mem_pool_export_pointer(ptr).unwrap();
        let there = device.mem_pool_import_pointer(imported, &data).unwrap();
        assert_eq!(device.pointer_mem_pool(there), Ok(Some(imported)));
        assert_eq!(code(device.mem_pool_export_to_fd(fabric)), DriverError::INVALID_VALUE);
        assert_eq!(code(device.mem_pool_export_to_fabric(imported)), DriverError::INVALID_VALUE);
        let files_only = device.mem_pool_create(shared()).unwrap();
        assert_eq!(code(device.mem_pool_export_to_fabric(files_only)), DriverError::INVALID_VALUE);
        let elsewhere = SimDevice::new(SimConfig::h200());
        let mut wrong = handle;
        wrong.0[9] ^= 1;
        for answer in [
            elsewhere.mem_pool_import_from_fabric(&handle),
            device.mem_pool_import_from_fabric(&wrong),
            device.mem_pool_import_from_fabric(&FabricHandle([0; 64])),
            device.mem_pool_import_from_fabric(&FabricHandle(data.0)),
        ] {
            assert_eq!(code(answer), DriverError::INVALID_VALUE);
        }
        free(&device, there, s);
        free(&device, ptr, s);
        for pool in [both, fabric, imported] {
            destroy(&device, pool);
        }
        assert_eq!(code(device.mem_pool_import_from_fabric(&handle)), DriverError::INVALID_VALUE);
    }

    #[test]
    fn the_importer_frees_first() {
        let device = device();
        let [s, t] = [(); 2].map(|()| stream(&device));
        let pool = device.mem_pool_create(shared()).unwrap();
        let imported = import(&device, pool);
        for frees_there in [false, true] {
            let ptr = device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
            device.stream_synchronize(s).unwrap();
            let data = device.mem_pool_export_pointer(ptr).unwrap();
            let there = device.mem_pool_import_pointer(imported, &data).unwrap();
            device.launch(t, &[Access::read(there, MIB)]);
            if frees_there {
                free(&device, there, t); // but nothing orders `s` after it
            }
            free(&device, ptr, s);
            assert!(kinds(&device).contains(&ViolationKind::EarlyReturn), "{frees_there}");
        }
    }

    #[test]
    fn what_an_imported_pool_cannot_do_is_refused() {
        let device = device();
        let s = stream(&device);
        let pool = device.mem_pool_create(shared()).unwrap();
        let imported = import(&device, pool);
        let refused = [
            device.mem_alloc_from_pool_async(MIB, imported, s).map(drop),
            device.device_set_mem_pool(imported),
            device.mem_pool_export_to_fd(imported).map(drop),
        ];
        assert_eq!(refused.map(code), [DriverError::INVALID_VALUE; 3]);
        assert_eq!(get(&device, imported, MemPoolAttribute::ExportHandleTypes), 0);
        let refused = [
            device.mem_pool_trim_to(imported, 0),
            device.mem_pool_set_attribute(imported, MemPoolAttribute::ReleaseThreshold, 0),
            device.mem_pool_set_attribute(imported, MemPoolAttribute::UsedMemHigh, 0),
            device.mem_pool_get_attribute(imported, MemPoolAttribute::ReuseAllowOpportunistic).map(drop),
        ];
        assert_eq!(refused.map(code), [DriverError::INVALID_VALUE; 4]);
        // A pool that can be exported does not release memory before its end either.
        free(&device, device.mem_alloc_from_pool_async(MIB, pool, s).unwrap(), s);
        device.synchronize().unwrap();
        device.mem_pool_trim_to(pool, 0).unwrap();
        assert_eq!(get(&device, pool, MemPoolAttribute::ReservedMemCurrent), CHUNK);
        for pool in [pool, imported] {
            destroy(&device, pool);
        }
        assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    }

    #[test]
    fn only_what_a_pool_exported_is_imported_from_it() {
        let device = device();
        let s = stream(&device);
        let [pool, other] = [(); 2].map(|()| device.mem_pool_create(shared()).unwrap());
        let plain = device.mem_pool_create(MemPoolProps::default()).unwrap();
        let imported = import(&device, pool);
        let alloc = |pool| device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
        let (own, strange, private) = (alloc(pool), alloc(other), alloc(plain));
        device.stream_synchronize(s).unwrap();
        assert_eq!(code(device.mem_pool_export_to_fd(plain)), DriverError::INVALID_VALUE);
        assert_eq!(code(device.mem_pool_export_pointer(private)), DriverError::INVALID_VALUE);
        assert_eq!(code(device.mem_pool_export_pointer(own.offset(256))), DriverError::INVALID_VALUE);
        let data = device.mem_pool_export_pointer(strange).unwrap();
        assert_eq!(code(device.mem_pool_import_pointer(imported, &data)), DriverError::INVALID_VALUE);
        let own_data = device.mem_pool_export_pointer(own).unwrap();
        assert_eq!(code(device.mem_pool_import_pointer(pool, &own_data)), DriverError::INVALID_VALUE);
        let garbage = MemPoolPtrData([0xa5; 64]);
        assert_eq!(code(device.mem_pool_import_pointer(imported, &garbage)), DriverError::INVALID_VALUE);
        free(&device, own, s);
        assert_eq!(code(device.mem_pool_import_pointer(imported, &own_data)), DriverError::INVALID_VALUE);

        let file = std::fs::File::open("/dev/null").unwrap();
        for fd in [-1, file.as_raw_fd()] {
            assert_eq!(code(device.mem_pool_import_from_fd(fd)), DriverError::INVALID_VALUE);
        }
        let elsewhere = super::device();
        assert_eq!(
            code(elsewhere.mem_pool_import_from_fd(export(&device, pool).as_raw_fd())),
            DriverError::INVALID_VALUE
        );
        assert_eq!(kinds(&device), []);
    }
}

#[test]
fn a_stream_is_gone_once_it_is_destroyed() {
    let device = device();
    let s = stream(&device);
    assert!(!device.stream_is_gone(s));
    // SAFETY: the stream belongs to this test and is not passed to a call again.
    unsafe { device.stream_destroy(s) }.unwrap();
    assert!(device.stream_is_gone(s));
    // SAFETY: no call is made with it.
    let foreign = unsafe { StreamRef::foreign(s.handle(), s.id().get()) };
    assert!(
        ![foreign, StreamRef::LEGACY, StreamRef::PER_THREAD]
            .map(|s| device.stream_is_gone(s))
            .contains(&true)
    );
    assert_eq!(kinds(&device), []);
}
