//! Tests every method of the simulated device's driver, and its checks of arguments.

use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, CaptureMode, DeviceAttribute, Driver, DriverError, DriverResult, EventFlags, HostFlags,
    HostPtr, IpcMemHandle, MemAdvice, MemPoolAttribute, MemPoolProps, MemoryInfo, MemoryKind, PhysicalProps,
    StreamFlags,
};
use millpond_core::{DevicePtr, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice, ViolationKind};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

fn code<T>(answer: DriverResult<T>) -> i32 {
    answer.err().map_or(0, |error| error.code())
}

fn kinds(device: &SimDevice) -> Vec<ViolationKind> {
    device.take_violations().into_iter().map(|violation| violation.kind).collect()
}

fn read(device: &SimDevice, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut host = vec![0; bytes];
    // SAFETY: `host` has that many bytes; the driver checks `ptr`.
    unsafe { device.memcpy_dtoh_async(host.as_mut_ptr(), ptr, bytes as u64, StreamRef::LEGACY) }.unwrap();
    host
}

fn write(device: &SimDevice, ptr: DevicePtr, host: &[u8]) {
    // SAFETY: `host` is copied before the call returns; the driver checks `ptr`.
    unsafe { device.memcpy_htod_async(ptr, host.as_ptr(), host.len() as u64, StreamRef::LEGACY) }.unwrap();
}

#[test]
fn a_device_says_what_it_is() {
    let device = SimDevice::new(SimConfig::h200());
    assert!(device.device().is_sim());
    assert_eq!(device.name(), "simulated H200");
    assert_eq!(device.version().unwrap(), 0);
    let attributes = [
        (DeviceAttribute::MultiprocessorCount, 132),
        (DeviceAttribute::ComputeCapabilityMajor, 9),
        (DeviceAttribute::ComputeCapabilityMinor, 0),
        (DeviceAttribute::MemoryPoolsSupported, 1),
        (DeviceAttribute::VirtualMemoryManagementSupported, 1),
        (DeviceAttribute::ConcurrentManagedAccess, 1),
        (DeviceAttribute::IpcEventSupported, 1),
        (DeviceAttribute::PageableMemoryAccess, 1),
        (DeviceAttribute::Integrated, 0),
        (DeviceAttribute::CanMapHostMemory, 1),
    ];
    for (attribute, value) in attributes {
        assert_eq!(device.attribute(attribute).unwrap(), value, "{attribute:?}");
    }
    assert!(SimDevice::new(SimConfig::a100()).name().contains("not measured"));
    device.make_current();
    assert_eq!(millpond_driver::current_device().unwrap(), device.device());
    assert_ne!(SimDevice::new(SimConfig::h200()).device(), device.device());
}

#[test]
fn memory_is_counted_and_ends_at_the_capacity() {
    let device = device();
    let total = 1 << 30;
    assert_eq!(device.mem_get_info().unwrap(), MemoryInfo { free: total, total });
    let small = device.mem_alloc(1).unwrap();
    let large = device.mem_alloc(600 * MIB).unwrap();
    assert!(small.is_aligned_to(256) && large.is_aligned_to(PAGE));
    assert_eq!(device.mem_get_info().unwrap().free, total - PAGE - 600 * MIB);
    assert_eq!((device.live_bytes(), device.live_allocations()), (600 * MIB + 512, 2));
    assert_eq!(device.used_bytes(), 600 * MIB + PAGE);
    assert_eq!(code(device.mem_alloc(500 * MIB)), DriverError::OUT_OF_MEMORY);
    assert_eq!(code(device.mem_alloc_async(500 * MIB, StreamRef::LEGACY)), DriverError::OUT_OF_MEMORY);
    assert_eq!(code(device.mem_create(500 * MIB, PhysicalProps::default())), DriverError::OUT_OF_MEMORY);
    assert_eq!(code(device.mem_alloc(u64::MAX)), DriverError::OUT_OF_MEMORY);
    assert_eq!(code(device.mem_alloc(0)), DriverError::INVALID_VALUE);
    // SAFETY: live, and not used again.
    unsafe {
        device.mem_free(large).unwrap();
        device.mem_free(DevicePtr::NULL).unwrap();
        device.mem_free(small).unwrap();
    }
    assert_eq!(
        (device.live_bytes(), device.live_allocations(), device.peak_bytes()),
        (0, 0, 600 * MIB + PAGE)
    );
    let _small = device.mem_alloc(1).unwrap();
    assert_eq!(device.mem_alloc(600 * MIB).unwrap(), large, "freed addresses are used again");
    assert_eq!(kinds(&device), []);
}

#[test]
fn wrong_frees_are_refused_and_reported() {
    let device = device();
    let ptr = device.mem_alloc(4096).unwrap();
    // SAFETY: the device refuses each call except the first, which frees `ptr`.
    unsafe {
        assert_eq!(code(device.mem_free(ptr.offset(256))), DriverError::INVALID_VALUE);
        device.mem_free(ptr).unwrap();
        assert_eq!(code(device.mem_free(ptr)), DriverError::INVALID_VALUE);
        assert_eq!(code(device.mem_free_async(ptr, StreamRef::LEGACY)), DriverError::INVALID_VALUE);
        assert_eq!(code(device.mem_free_host(HostPtr(4096))), DriverError::INVALID_VALUE);
        assert_eq!(code(device.ipc_close_mem_handle(ptr)), DriverError::INVALID_VALUE);
    }
    assert_eq!(kinds(&device), [ViolationKind::UnknownPointer; 5]);
}

#[test]
fn memory_that_is_freed_with_a_lent_block_in_it_is_reported() {
    let device = device();
    let ptr = device.mem_alloc(4096).unwrap();
    device.lend(ptr.offset(1024), 1024, StreamRef::LEGACY);
    assert_eq!(device.lent_blocks(), 1);
    // SAFETY: live; no work uses the block.
    unsafe { device.mem_free(ptr) }.unwrap();
    assert_eq!(kinds(&device), [ViolationKind::LentReturned]);
    assert_eq!(device.lent_blocks(), 0);
}

#[test]
fn pointers_are_known_by_range_and_kind() {
    let device = device();
    let plain = device.mem_alloc(1000).unwrap();
    let managed = device.mem_alloc_managed(1000).unwrap();
    let host = device.mem_host_alloc(1000, HostFlags::default()).unwrap();
    assert_eq!(device.mem_get_address_range(plain.offset(999)).unwrap(), (plain, 1000));
    assert_eq!(code(device.mem_get_address_range(plain.offset(1000))), DriverError::NOT_FOUND);
    let kind = |ptr| device.pointer_kind(ptr).unwrap();
    assert_eq!(kind(plain.offset(1)), MemoryKind::Device);
    assert_eq!(kind(managed.offset(1)), MemoryKind::Managed);
    assert_eq!(kind(DevicePtr::new(host.0 as u64)), MemoryKind::Host);
    assert_eq!(kind(DevicePtr::new(8)), MemoryKind::Unknown);
    // SAFETY: each is live and not used again.
    unsafe {
        device.mem_free(plain).unwrap();
        device.mem_free(managed).unwrap();
        device.mem_free_host(host).unwrap();
    }
    assert_eq!((kind(managed), device.live_allocations()), (MemoryKind::Unknown, 0));
}

#[test]
fn managed_memory_is_the_hosts_at_the_same_address() {
    let device = device();
    let ptr = device.mem_alloc_managed(4096).unwrap();
    let host = HostPtr(ptr.address() as usize).as_mut_ptr();
    // SAFETY: managed memory of 4096 bytes, read after all work on it is done.
    unsafe {
        assert_eq!(host.read(), 0);
        host.write(7);
        device.memset_d8_async(ptr.offset(1), 9, 4095, StreamRef::LEGACY).unwrap();
        device.synchronize().unwrap();
        assert_eq!((host.read(), host.add(1).read(), host.add(4095).read()), (7, 9, 9));
        device.mem_prefetch_async(ptr, 4096, true, StreamRef::LEGACY).unwrap();
        device.mem_advise(ptr, 4096, MemAdvice::ReadMostly).unwrap();
        assert_eq!(code(device.mem_advise(ptr, 4097, MemAdvice::ReadMostly)), DriverError::INVALID_VALUE);
    }
    assert_eq!(read(&device, ptr, 3), [7, 9, 9]);
    let plain = device.mem_alloc(4096).unwrap();
    // SAFETY: the device refuses it.
    let answer = unsafe { device.mem_prefetch_async(plain, 4096, false, StreamRef::LEGACY) };
    assert_eq!(code(answer), DriverError::INVALID_VALUE);
}

#[test]
fn contents_go_through_copies_and_fills() {
    let device = device();
    let [a, b] = [0, 1].map(|_| device.mem_alloc(200_000).unwrap());
    let data: Vec<u8> = (0..200_000_u32).map(|index| (index % 251) as u8).collect();
    write(&device, a, &data);
    // SAFETY: both are live and the ranges are in bounds; the device refuses a wrong range.
    unsafe {
        device.memset_d8_async(b, 3, 200_000, StreamRef::LEGACY).unwrap();
        device.memcpy_dtod_async(b.offset(10), a.offset(5), 150_000, StreamRef::LEGACY).unwrap();
        let beyond = device.memcpy_dtod_async(b, a, 200_001, StreamRef::LEGACY);
        assert_eq!(code(beyond), DriverError::INVALID_VALUE);
        device.memcpy_dtod_async(b, DevicePtr::NULL, 0, StreamRef::LEGACY).unwrap();
    }
    assert_eq!(kinds(&device), [ViolationKind::OutOfBounds]);
    let expected = [&[3; 10], &data[5..150_005], &[3; 200_000 - 150_010]].concat();
    assert_eq!(read(&device, b, 200_000), expected);
    assert_eq!(read(&device, a, 200_000), data);
    // SAFETY: live, and not used again.
    unsafe { device.mem_free(a) }.unwrap();
    let again = device.mem_alloc(200_000).unwrap();
    assert_eq!(again, a);
    assert_eq!(read(&device, again, 4), [0xa5; 4], "fresh memory is poison");
    device.launch(StreamRef::LEGACY, &[Access::write(again, 16, 0x0102_0304_0506_0708)]);
    assert_eq!(read(&device, again, 9), [8, 7, 6, 5, 4, 3, 2, 1, 8]);
    device.launch(StreamRef::LEGACY, &[Access::check(again, 17, 0x0102_0304_0506_0708)]);
    device.synchronize().unwrap();
    assert_eq!(kinds(&device), [ViolationKind::TagMismatch]);
}

#[test]
fn copies_with_pinned_memory_wait_for_their_turn_and_others_do_not() {
    let device = device();
    let s = stream(&device);
    let ptr = device.mem_alloc(64).unwrap();
    let pinned = device.mem_host_alloc(64, HostFlags::default().mapped(true)).unwrap();
    let host = pinned.as_mut_ptr();
    let mut registered = vec![1_u8; 64];
    let by_hand = HostPtr(registered.as_mut_ptr().expose_provenance());
    // SAFETY: all memory outlives the work on it, and the host reads it only after that work.
    unsafe {
        device.mem_host_register(by_hand, 64, HostFlags::default()).unwrap();
        let twice = device.mem_host_register(by_hand, 8, HostFlags::default());
        assert_eq!(code(twice), DriverError::HOST_MEMORY_ALREADY_REGISTERED);
        device.memcpy_htod_async(ptr, by_hand.as_mut_ptr(), 64, s).unwrap();
        device.memcpy_dtoh_async(host, ptr, 64, s).unwrap();
        assert_eq!(host.read(), 0, "not done yet");
        device.stream_synchronize(s).unwrap();
        assert_eq!((host.read(), host.add(63).read()), (1, 1));
        device.mem_host_unregister(by_hand).unwrap();
        let gone = device.mem_host_unregister(by_hand);
        assert_eq!(code(gone), DriverError::HOST_MEMORY_NOT_REGISTERED);
        assert_eq!(code(device.mem_host_get_device_pointer(by_hand)), DriverError::INVALID_VALUE);
        let mapped = device.mem_host_get_device_pointer(pinned).unwrap();
        device.memset_d8_async(mapped.offset(1), 5, 1, s).unwrap();
        device.mem_free_host(pinned).unwrap();
    }
    assert_eq!(code(device.mem_host_alloc(3 << 30, HostFlags::default())), DriverError::OUT_OF_MEMORY);
    assert_eq!(device.live_allocations(), 1);
    assert_eq!(kinds(&device), []);
}

#[test]
fn copies_between_host_and_device_take_a_device_address_for_the_host() {
    let device = device();
    let [from, to, freed] = [(); 3].map(|()| device.mem_alloc(64).unwrap());
    let host = |ptr: DevicePtr| std::ptr::without_provenance_mut::<u8>(ptr.address() as usize);
    write(&device, from, &[7; 64]);
    // SAFETY: the device itself uses the addresses, and knows which of them are allocated.
    unsafe {
        device.memcpy_htod_async(to, host(from), 32, StreamRef::LEGACY).unwrap();
        device.memcpy_dtoh_async(host(to.offset(32)), from, 32, StreamRef::LEGACY).unwrap();
        device.mem_free(freed).unwrap();
        let read = device.memcpy_htod_async(to, host(freed), 32, StreamRef::LEGACY);
        let written = device.memcpy_dtoh_async(host(freed), from, 32, StreamRef::LEGACY);
        assert_eq!([read, written].map(code), [DriverError::INVALID_VALUE; 2]);
    }
    assert_eq!((read(&device, to, 64), kinds(&device)), (vec![7; 64], vec![ViolationKind::OutOfBounds; 2]));
}

#[test]
fn default_streams_exist_and_stay() {
    let device = device();
    for handle in 0..3 {
        // SAFETY: the default streams are always alive.
        let stream = unsafe { device.stream_ref(handle) }.unwrap();
        assert_eq!(stream.handle(), handle);
        // SAFETY: the device refuses it.
        assert_eq!(code(unsafe { device.stream_destroy(stream) }), DriverError::INVALID_HANDLE);
        device.stream_synchronize(stream).unwrap();
    }
    // SAFETY: a simulated device detects the wrong handle.
    assert_eq!(code(unsafe { device.stream_ref(0x1234) }), DriverError::INVALID_HANDLE);
    assert_eq!(kinds(&device), [ViolationKind::DeadHandle]);
}

// --- Stream-ordered memory ---

#[test]
fn pools_keep_memory_in_stream_order() {
    /// The memory that a pool of this device takes at once.
    const CHUNK: u64 = 32 * MIB;
    let device = device();
    let [s, t] = [0, 1].map(|_| stream(&device));
    let pool = device.device_get_default_mem_pool().unwrap();
    let get = |attribute| device.mem_pool_get_attribute(pool, attribute).unwrap();
    device.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
    device.mem_pool_set_attribute(pool, MemPoolAttribute::ReuseAllowInternalDependencies, 0).unwrap();
    let a = device.mem_alloc_async(CHUNK, s).unwrap();
    device.launch(s, &[Access::write(a, CHUNK, 1)]);
    // SAFETY: live, and not used again under this name.
    // SAFETY: as above.
    unsafe { device.mem_free_async(a, s) }.unwrap();
    assert_eq!(
        (get(MemPoolAttribute::UsedMemCurrent), get(MemPoolAttribute::ReservedMemCurrent)),
        (0, CHUNK)
    );
    assert_eq!(device.mem_alloc_async(CHUNK, s).unwrap(), a, "the same stream gets it again");
    device.launch(s, &[]);
    // SAFETY: as above.
    unsafe { device.mem_free_async(a, s) }.unwrap();
    let b = device.mem_alloc_async(CHUNK, t).unwrap();
    assert_ne!(a, b, "another stream does not get it while it is in use");
    device.advance(1_000_000);
    assert_eq!(device.mem_alloc_async(CHUNK, t).unwrap(), a, "now the work is done");
    assert_eq!(
        (get(MemPoolAttribute::UsedMemCurrent), get(MemPoolAttribute::UsedMemHigh)),
        (2 * CHUNK, 2 * CHUNK)
    );
    assert_eq!(get(MemPoolAttribute::ReleaseThreshold), u64::MAX);
    // SAFETY: as above; plain free takes pooled memory too, and synchronises.
    unsafe {
        device.mem_free_async(a, t).unwrap();
        device.mem_free(b).unwrap();
    }
    assert_eq!((device.live_bytes(), device.live_allocations()), (2 * CHUNK, 0));
    device.mem_pool_trim_to(pool, CHUNK).unwrap();
    assert_eq!(device.live_bytes(), CHUNK);
    device.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, 0).unwrap();
    device.mem_pool_set_attribute(pool, MemPoolAttribute::UsedMemHigh, 0).unwrap();
    device.synchronize().unwrap();
    assert_eq!((device.live_bytes(), get(MemPoolAttribute::UsedMemHigh)), (0, 0));
    assert_eq!(kinds(&device), []);
}

#[test]
fn pools_wait_on_the_device_where_they_may() {
    let device = device();
    let [s, t] = [0, 1].map(|_| stream(&device));
    let pool = device.mem_pool_create(MemPoolProps::default().max_bytes(MIB)).unwrap();
    let a = device.mem_alloc_from_pool_async(MIB, pool, s).unwrap();
    device.launch(s, &[Access::write(a, MIB, 1)]);
    let full = device.mem_alloc_from_pool_async(MIB, pool, t);
    assert_eq!(code(full), DriverError::OUT_OF_MEMORY);
    // SAFETY: live, and not used again under this name.
    unsafe { device.mem_free_async(a, s) }.unwrap();
    let again = device.mem_alloc_from_pool_async(MIB, pool, t).unwrap();
    assert_eq!(again, a);
    device.launch(t, &[Access::write(again, MIB, 2), Access::check(again, MIB, 2)]);
    assert!(!device.stream_query(t).unwrap(), "it waits for the other stream");
    // SAFETY: as above. Freeing ends the memory that is still handed out.
    unsafe {
        device.mem_pool_destroy(pool).unwrap();
        assert_eq!(code(device.mem_pool_trim_to(pool, 0)), DriverError::INVALID_VALUE);
        device.mem_free_async(again, t).unwrap();
        let default = device.device_get_default_mem_pool().unwrap();
        assert_eq!(code(device.mem_pool_destroy(default)), DriverError::INVALID_VALUE);
    }
    assert_eq!((device.live_bytes(), device.live_allocations()), (0, 0));
    assert_eq!(kinds(&device), []);
}

#[test]
fn pools_give_back_what_is_done_before_memory_runs_out() {
    let device = device();
    let s = stream(&device);
    let pool = device.device_get_default_mem_pool().unwrap();
    device.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
    let a = device.mem_alloc_async(700 * MIB, s).unwrap();
    // SAFETY: live, and not used again.
    unsafe { device.mem_free_async(a, s) }.unwrap();
    device.synchronize().unwrap();
    assert_eq!(device.live_bytes(), 700 * MIB);
    assert!(device.mem_alloc_async(500 * MIB, s).is_ok());
}

#[test]
fn stream_ordered_memory_must_be_used_and_freed_in_order() {
    let device = device();
    let [s, t] = [0, 1].map(|_| stream(&device));
    let a = device.mem_alloc_async(MIB, s).unwrap();
    device.launch(t, &[Access::read(a, MIB)]);
    assert_eq!(
        kinds(&device),
        [ViolationKind::StreamOrder],
        "used on a stream that is not ordered after the allocation"
    );
    // SAFETY: live, and not used again; the device reports the mistake.
    unsafe { device.mem_free_async(a, s) }.unwrap();
    assert_eq!(kinds(&device), [ViolationKind::EarlyReturn], "freed while another stream may use it");
    let b = device.mem_alloc_async(MIB, s).unwrap();
    device.lend(b, MIB, s);
    device.launch(s, &[Access::write(b, MIB, 1)]);
    device.give_back(b, MIB, s);
    // SAFETY: as above.
    unsafe { device.mem_free_async(b, s) }.unwrap();
    assert_eq!(kinds(&device), []);
}

// --- Virtual memory management ---

/// Reserves addresses for `pages` pages and maps the first handle at the start.
fn mapped(device: &SimDevice, pages: u64) -> (DevicePtr, millpond_core::driver::PhysicalHandle) {
    let base = device.mem_address_reserve(pages * PAGE, 0).unwrap();
    let handle = device.mem_create(PAGE, PhysicalProps::default()).unwrap();
    // SAFETY: the addresses are reserved and empty.
    unsafe {
        device.mem_map(base, PAGE, handle).unwrap();
        device.mem_set_access(base, PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
    }
    (base, handle)
}

#[test]
fn a_handle_mapped_twice_is_the_same_memory() {
    let device = device();
    let (base, handle) = mapped(&device, 4);
    let other = base.offset(2 * PAGE);
    // SAFETY: the ranges are reserved; the device refuses wrong ones.
    // SAFETY: as above.
    unsafe { device.mem_map(other, PAGE, handle) }.unwrap();
    device.launch(StreamRef::LEGACY, &[Access::write(other, 8, 1)]);
    assert_eq!(kinds(&device), [ViolationKind::OutOfBounds], "mapped, but not accessible yet");
    // SAFETY: as above.
    unsafe { device.mem_set_access(other, PAGE, AccessFlags::ReadWrite, &[device.device()]) }.unwrap();
    write(&device, base.offset(4096), &[1, 2, 3]);
    assert_eq!(read(&device, other.offset(4096), 3), [1, 2, 3]);
    assert_eq!(device.live_bytes(), PAGE);
    device.synchronize().unwrap();
    // SAFETY: as above.
    unsafe {
        device.mem_release(handle).unwrap();
        device.mem_unmap(base, PAGE).unwrap();
        assert_eq!(device.live_bytes(), PAGE, "still mapped once");
        assert_eq!(code(device.mem_address_free(base, 4 * PAGE)), DriverError::INVALID_VALUE);
        device.mem_unmap(other, PAGE).unwrap();
        device.mem_address_free(base, 4 * PAGE).unwrap();
    }
    assert_eq!((device.live_bytes(), device.live_allocations()), (0, 0));
    assert_eq!(kinds(&device), []);
}

#[test]
fn mappings_are_whole_and_side_by_side_one_range() {
    let device = device();
    assert_eq!(device.mem_get_allocation_granularity().unwrap(), PAGE);
    let (base, handle) = mapped(&device, 4);
    let second = device.mem_create(2 * PAGE, PhysicalProps::default()).unwrap();
    let at = base.offset(PAGE);
    // SAFETY: the ranges are reserved; the device refuses wrong ones.
    unsafe {
        assert_eq!(code(device.mem_map(at, PAGE, second)), DriverError::NOT_SUPPORTED, "a part of a handle");
        assert_eq!(code(device.mem_map(base, PAGE, handle)), DriverError::INVALID_VALUE, "occupied");
        assert_eq!(code(device.mem_map(base.offset(4 * PAGE), PAGE, handle)), DriverError::INVALID_VALUE);
        assert_eq!(code(device.mem_map(at.offset(4096), PAGE, handle)), DriverError::INVALID_VALUE);
        device.mem_map(at, 2 * PAGE, second).unwrap();
        device.mem_set_access(base, 3 * PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
        assert_eq!(code(device.mem_unmap(base, 2 * PAGE)), DriverError::INVALID_VALUE, "half a mapping");
        assert_eq!(
            code(device.mem_set_access(base, 4 * PAGE, AccessFlags::Read, &[device.device()])),
            DriverError::INVALID_VALUE
        );
    }
    let data: Vec<u8> = (0..3 * PAGE).map(|index| (index % 249) as u8).collect();
    write(&device, base, &data);
    assert_eq!(
        read(&device, base.offset(PAGE - 7), PAGE as usize),
        data[PAGE as usize - 7..][..PAGE as usize]
    );
    device.lend(base.offset(PAGE - 256), 512, StreamRef::LEGACY);
    assert_eq!(kinds(&device), [], "a block may lie across mappings");
    device.lend(base.offset(3 * PAGE - 256), 512, StreamRef::LEGACY);
    assert_eq!(kinds(&device), [ViolationKind::OutOfBounds]);
    assert_eq!(code(device.mem_create(PAGE + 1, PhysicalProps::default())), DriverError::INVALID_VALUE);
    assert_eq!(code(device.mem_address_reserve(PAGE, 3)), DriverError::INVALID_VALUE);
    assert!(device.mem_address_reserve(PAGE, 64 * PAGE).unwrap().is_aligned_to(64 * PAGE));
    // SAFETY: the device refuses the second call.
    unsafe {
        device.mem_release(second).unwrap();
        assert_eq!(code(device.mem_release(second)), DriverError::INVALID_VALUE);
        assert_eq!(code(device.mem_address_free(base, PAGE)), DriverError::INVALID_VALUE);
    }
    assert_eq!(kinds(&device), [ViolationKind::UnknownPointer; 2]);
}

#[test]
fn a_block_is_lent_once_at_any_address_and_keeps_its_history() {
    let device = device();
    let [s, t] = [0, 1].map(|_| stream(&device));
    let (base, handle) = mapped(&device, 2);
    let other = base.offset(PAGE);
    // SAFETY: the addresses are reserved and empty.
    unsafe {
        device.mem_map(other, PAGE, handle).unwrap();
        device.mem_set_access(other, PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
    }
    device.lend(base, 4096, s);
    device.lend(other.offset(2048), 256, s);
    assert_eq!(kinds(&device), [ViolationKind::Overlap], "the same memory at two addresses");
    device.give_back(other.offset(2048), 256, s);
    device.launch(s, &[Access::write(base, 1024, 1)]);
    device.give_back(base, 4096, s);
    device.lend(other, 1024, t);
    assert_eq!(kinds(&device), [ViolationKind::StreamOrder], "used through the first address");
}

#[test]
fn unmapping_needs_the_uses_through_that_address_to_be_over() {
    let device = device();
    let s = stream(&device);
    let (base, handle) = mapped(&device, 2);
    let other = base.offset(PAGE);
    // SAFETY: the ranges are mapped as named; the device reports the mistakes.
    // SAFETY: as above.
    unsafe {
        device.mem_map(other, PAGE, handle).unwrap();
        device.mem_set_access(other, PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
    }
    device.lend(base, 4096, s);
    device.launch(s, &[Access::write(base, 4096, 1)]);
    device.give_back(base, 4096, s);
    device.stream_synchronize(s).unwrap();
    // The memory is now used through the other address, so the first may go.
    device.lend(other, 4096, s);
    device.launch(s, &[Access::check(other, 4096, 1)]);
    // SAFETY: as above.
    unsafe { device.mem_unmap(base, PAGE) }.unwrap();
    assert_eq!(kinds(&device), []);
    device.give_back(other, 4096, s);
    // SAFETY: as above.
    unsafe { device.mem_unmap(other, PAGE) }.unwrap();
    assert_eq!(kinds(&device), [ViolationKind::EarlyReturn], "the stream may still use it");
    // SAFETY: as above.
    unsafe {
        device.mem_map(base, PAGE, handle).unwrap();
        device.mem_set_access(base, PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
    }
    device.synchronize().unwrap();
    device.lend(base, 4096, s);
    // SAFETY: as above.
    unsafe { device.mem_unmap(base, PAGE) }.unwrap();
    assert_eq!(kinds(&device), [ViolationKind::LentReturned]);
    let (base, _) = mapped(&device, 1);
    device.launch(s, &[Access::read(base, 256)]);
    // SAFETY: as above.
    unsafe { device.mem_unmap(base, PAGE) }.unwrap();
    assert_eq!(kinds(&device), [ViolationKind::EarlyReturn], "used, though never lent");
}

// --- Between processes ---

#[test]
fn an_opened_handle_leads_to_the_same_memory() {
    let device = device();
    let ptr = device.mem_alloc(4096).unwrap();
    let handle = device.ipc_get_mem_handle(ptr).unwrap();
    let opened = device.ipc_open_mem_handle(&handle).unwrap();
    assert_ne!(opened, ptr);
    assert_eq!(device.ipc_open_mem_handle(&handle).unwrap(), opened, "opened twice at one address");
    write(&device, ptr, b"shared");
    assert_eq!(read(&device, opened, 6), b"shared");
    device.synchronize().unwrap();
    // SAFETY: opened twice, closed twice; the device refuses the third call.
    unsafe {
        device.ipc_close_mem_handle(opened).unwrap();
        assert_eq!(read(&device, opened, 6), b"shared");
        device.ipc_close_mem_handle(opened).unwrap();
        assert_eq!(code(device.ipc_close_mem_handle(opened)), DriverError::INVALID_VALUE);
    }
    assert_eq!(kinds(&device), [ViolationKind::UnknownPointer]);
    let again = device.ipc_open_mem_handle(&handle).unwrap();
    // SAFETY: live; the device reports that it is still open.
    unsafe { device.mem_free(ptr) }.unwrap();
    assert_eq!(kinds(&device), [ViolationKind::EarlyReturn]);
    assert_eq!(device.mem_alloc(4096).unwrap(), ptr, "another allocation has the address");
    assert_eq!(code(device.ipc_open_mem_handle(&handle)), DriverError::INVALID_VALUE, "a stale handle");
    // SAFETY: opened above.
    unsafe { device.ipc_close_mem_handle(again) }.unwrap();
}

#[test]
fn handles_of_other_memory_other_devices_and_noise_are_refused() {
    let (device, other) = (device(), device());
    let ptr = device.mem_alloc(4096).unwrap();
    let managed = device.mem_alloc_managed(4096).unwrap();
    let pooled = device.mem_alloc_async(4096, StreamRef::LEGACY).unwrap();
    let (virtual_memory, _) = mapped(&device, 1);
    for unsupported in [managed, pooled, virtual_memory] {
        assert_eq!(code(device.ipc_get_mem_handle(unsupported)), DriverError::NOT_SUPPORTED);
    }
    assert_eq!(code(device.ipc_get_mem_handle(DevicePtr::new(8))), DriverError::INVALID_VALUE);
    let handle = device.ipc_get_mem_handle(ptr).unwrap();
    assert_eq!(code(other.ipc_open_mem_handle(&handle)), DriverError::INVALID_VALUE);
    for byte in 0..48 {
        let mut noise = handle;
        noise.0[byte] ^= 1;
        assert_eq!(code(device.ipc_open_mem_handle(&noise)), DriverError::INVALID_VALUE, "byte {byte}");
    }
    assert_eq!(code(device.ipc_open_mem_handle(&IpcMemHandle([0; 64]))), DriverError::INVALID_VALUE);
}

/// The device did not know the per-thread stream before its first call, so it did not count it as a stream.
#[test]
fn a_per_thread_stream_joins_a_capture_in_its_first_call() {
    let device = device();
    let origin = stream(&device);
    device.begin_capture(origin, CaptureMode::Relaxed).unwrap();
    let event = device.event_create(EventFlags::default()).unwrap();
    device.event_record(event, origin).unwrap();
    device.stream_wait_event(StreamRef::PER_THREAD, event).unwrap();
    assert!(device.stream_is_capturing(StreamRef::PER_THREAD).unwrap());
    device.event_record(event, StreamRef::PER_THREAD).unwrap();
    device.stream_wait_event(origin, event).unwrap();
    device.end_capture(origin).unwrap();
    assert_eq!(kinds(&device), []);
}
