//! Tests which devices of one machine may use whose memory, as on two H200s (docs/lab/gpu.md).

use std::sync::Arc;

use millpond_core::driver::{AccessFlags, DriverError, PhysicalHandle, PhysicalProps, StreamFlags};
use millpond_core::{DevicePtr, Driver, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice, SimMachine, ViolationKind};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;
const LEGACY: StreamRef = StreamRef::LEGACY;

fn machine() -> (SimMachine, Arc<SimDevice>, Arc<SimDevice>) {
    let machine = SimMachine::new();
    let [first, second] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(1 << 30)));
    (machine, first, second)
}

/// One page of physical memory, mapped for its own device.
fn page(device: &SimDevice) -> (DevicePtr, PhysicalHandle) {
    let at = device.mem_address_reserve(PAGE, 0).unwrap();
    let handle = device.mem_create(PAGE, PhysicalProps::default()).unwrap();
    // SAFETY: the addresses are reserved and the handle is whole.
    unsafe {
        device.mem_map(at, PAGE, handle).unwrap();
        device.mem_set_access(at, PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
    }
    (at, handle)
}

fn fill(device: &SimDevice, ptr: DevicePtr, value: u8) -> Result<(), i32> {
    // SAFETY: the device refuses memory that it may not use.
    unsafe { device.memset_d8_async(ptr, value, 4096, LEGACY) }.map_err(|error| error.code())?;
    device.synchronize().unwrap();
    Ok(())
}

fn copy(device: &SimDevice, dst: DevicePtr, src: DevicePtr) -> Result<(), i32> {
    // SAFETY: the device refuses memory that it may not use.
    unsafe { device.memcpy_dtod_async(dst, src, 4096, LEGACY) }.map_err(|error| error.code())
}

fn first_byte(device: &SimDevice, ptr: DevicePtr) -> u8 {
    let mut byte = [0];
    // SAFETY: the memory belongs to the device; the buffer has one byte.
    unsafe { device.memcpy_dtoh_async(byte.as_mut_ptr(), ptr, 1, LEGACY) }.unwrap();
    byte[0]
}

const REFUSED: Result<(), i32> = Err(DriverError::INVALID_VALUE);

#[test]
fn issue_9_physical_memory_is_used_by_devices_that_the_mapping_names_only() {
    let (_machine, first, second) = machine();
    let (a, _) = page(&first);
    let (b, _) = page(&second);
    assert_ne!(a, b, "addresses of one machine do not overlap");
    second.enable_peer_access(&first); // does not help
    assert_eq!([fill(&second, a, 1), copy(&second, b, a), copy(&first, b, a)], [REFUSED; 3]);
    second.copy_peer(b, a, 4096, LEGACY).unwrap();
    // SAFETY: the page is mapped.
    unsafe { first.mem_set_access(a, PAGE, AccessFlags::ReadWrite, &[second.device()]) }.unwrap();
    assert_eq!([fill(&second, a, 7), copy(&second, b, a)], [Ok(()); 2]);
    assert_eq!((first_byte(&first, a), first_byte(&second, b)), (7, 7));
    assert_eq!(fill(&first, a, 8), Ok(()), "the first keeps its access");
    assert_eq!(copy(&first, b, a), REFUSED, "the first has no access to the second's memory");
    // SAFETY: the page is mapped.
    unsafe { first.mem_set_access(a, PAGE, AccessFlags::None, &[second.device()]) }.unwrap();
    assert_eq!(fill(&second, a, 9), REFUSED);
    assert_eq!((first.violations(), second.violations()), (vec![], vec![]));
}

#[test]
fn issue_9_plain_memory_is_copied_by_all_and_filled_with_peer_access() {
    let (_machine, first, second) = machine();
    let (a, b) = (first.mem_alloc(4096).unwrap(), second.mem_alloc(4096).unwrap());
    fill(&first, a, 3).unwrap();
    assert_eq!(copy(&second, b, a), Ok(()));
    assert_eq!(first_byte(&second, b), 3);
    assert_eq!(fill(&second, a, 4), REFUSED);
    second.enable_peer_access(&first);
    assert_eq!(fill(&second, a, 4), Ok(()));
    assert_eq!(first_byte(&first, a), 4);
    assert_eq!(fill(&first, b, 5), REFUSED, "one way only");
}

#[test]
fn issue_9_kernels_of_a_peer_are_checked_too() {
    let (_machine, first, second) = machine();
    let (a, _) = page(&first);
    let stream = second.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    second.launch(stream, &[Access::write(a, 4096, 5)]);
    assert_eq!(second.take_violations()[0].kind, ViolationKind::OutOfBounds);
    // SAFETY: the page is mapped.
    unsafe { first.mem_set_access(a, PAGE, AccessFlags::ReadWrite, &[second.device()]) }.unwrap();
    second.launch(stream, &[Access::write(a, 4096, 5)]);
    first.launch(LEGACY, &[Access::check(a, 4096, 5)]);
    first.synchronize().unwrap();
    assert_eq!((first.violations(), second.violations()), (vec![], vec![]));
}

#[test]
fn issue_9_devices_without_a_way_between_them_are_no_peers() {
    let (machine, first, second) = machine();
    let apart = machine.add_device(SimConfig::with_capacity(1 << 30).without_peer_access());
    let stranger = SimDevice::new(SimConfig::with_capacity(1 << 30));
    assert_eq!(first.active_peers().unwrap(), [second.device()]);
    assert_eq!((apart.active_peers().unwrap(), stranger.active_peers().unwrap()), (vec![], vec![]));
    let (a, _) = page(&first);
    for device in [&apart, &stranger] {
        assert!(!first.can_be_accessed_by(device.device()).unwrap());
        // SAFETY: the page is mapped.
        let answer = unsafe { first.mem_set_access(a, PAGE, AccessFlags::ReadWrite, &[device.device()]) };
        assert_eq!(answer.unwrap_err().code(), DriverError::INVALID_DEVICE);
    }
    // A device whose context was reset is inactive until it is opened again.
    second.reset_context();
    assert_eq!(first.active_peers().unwrap(), []);
    let second = second.open_again();
    assert_eq!(first.active_peers().unwrap(), [second.device()]);
    drop(second);
}

#[test]
fn issue_9_access_for_more_devices_takes_longer() {
    let machine = SimMachine::new();
    let devices: Vec<_> = (0..8).map(|_| machine.add_device(SimConfig::h200())).collect();
    let ids: Vec<_> = devices.iter().map(|device| device.device()).collect();
    let times = [1, 2, 8].map(|count| {
        let (at, _) = page(&devices[0]);
        let before = devices[0].virtual_time_ns();
        // SAFETY: the page is mapped.
        unsafe { devices[0].mem_set_access(at, PAGE, AccessFlags::ReadWrite, &ids[..count]) }.unwrap();
        devices[0].virtual_time_ns() - before
    });
    let each = times[1] - times[0];
    assert!(each > 0);
    assert_eq!(times, [times[0], times[0] + each, times[0] + 7 * each]);
}

#[cfg(unix)]
#[test]
fn issue_9_physical_memory_is_shared_through_a_file_descriptor() {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let (_, unshared) = page(&device);
    assert_eq!(device.mem_export_to_fd(unshared).unwrap_err().code(), DriverError::INVALID_VALUE);
    let handle = device.mem_create(PAGE, PhysicalProps::default().share_fd(true)).unwrap();
    let fd = device.mem_export_to_fd(handle).unwrap();
    // SAFETY: the descriptor was just opened for this test.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let [one, other] = [(); 2].map(|()| device.mem_import_from_fd(fd.as_raw_fd()).unwrap());
    assert!(handle != one && one != other);
    let [a, b] = [(); 2].map(|()| device.mem_address_reserve(PAGE, 0).unwrap());
    assert_eq!(device.live_bytes(), 2 * PAGE, "it is the same memory");
    // SAFETY: the addresses are reserved, the handles are whole, and each is released once.
    unsafe {
        for (at, handle) in [(a, handle), (b, one)] {
            device.mem_map(at, PAGE, handle).unwrap();
            device.mem_set_access(at, PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
            device.mem_release(handle).unwrap();
        }
        fill(&device, a, 6).unwrap();
        assert_eq!(first_byte(&device, b), 6);
        device.mem_release(other).unwrap();
        device.mem_unmap(a, PAGE).unwrap();
        assert_eq!(device.live_bytes(), 2 * PAGE);
        device.mem_unmap(b, PAGE).unwrap();
    }
    assert_eq!(device.live_bytes(), PAGE);
    assert!(device.mem_import_from_fd(fd.as_raw_fd()).is_err(), "the memory was released");
    assert!(device.mem_import_from_fd(-1).is_err());
    let elsewhere = SimDevice::new(SimConfig::with_capacity(1 << 30));
    assert!(elsewhere.mem_import_from_fd(fd.as_raw_fd()).is_err());
    assert_eq!(device.violations(), []);
}

#[test]
fn a_copy_from_a_device_that_is_named_needs_no_access() {
    let (_machine, first, second) = machine();
    let ((a, _), (b, _)) = (page(&first), page(&second));
    fill(&first, a, 7).unwrap();
    let copy = |src: DevicePtr, device| {
        // SAFETY: the pages are mapped; the device refuses memory that it may not use.
        unsafe { second.memcpy_peer_async(b, src, device, 4096, LEGACY) }.map_err(|error| error.code())
    };
    copy(a, first.device()).unwrap();
    assert_eq!(first_byte(&second, b), 7);
    fill(&second, b.offset(PAGE / 2), 9).unwrap();
    copy(b.offset(PAGE / 2), second.device()).unwrap();
    assert_eq!(first_byte(&second, b), 9, "from the device itself");
    let elsewhere = SimDevice::new(SimConfig::h200());
    assert_eq!(copy(a, elsewhere.device()), Err(DriverError::INVALID_DEVICE));
    assert_eq!(copy(a, millpond_core::DeviceId::cuda(0)), Err(DriverError::INVALID_DEVICE));
    assert_eq!((first.violations(), second.violations()), (vec![], vec![]));
}
