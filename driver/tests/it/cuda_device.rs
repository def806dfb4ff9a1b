//! The memory of a real device, `cuda:0`, through every method of the CUDA driver that handles memory. The
//! other methods are in `cuda_stream.rs`. To run both: `cargo test -p millpond-driver --test it cuda_ --
//! --ignored`.
#![cfg(target_os = "linux")]

use std::process::Command;

use millpond_core::driver::{
    AccessFlags, DeviceAttribute, DriverError, HandleTypes, HostFlags, HostPtr, IpcMemHandle, MemAdvice,
    MemPoolAttribute, MemPoolProps, MemoryKind, PhysicalProps, StreamFlags,
};
use millpond_core::{DeviceId, DevicePtr, Driver, StreamRef};
use millpond_driver::{CallKind, CountingDriver, cuda};

use crate::gpu::{KIB, MIB, destroy, device, fill, free, read, write};

fn supports(driver: &dyn Driver, attribute: DeviceAttribute) -> bool {
    driver.attribute(attribute).unwrap() != 0
}

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i % 251) as u8).collect()
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn the_device_describes_itself() {
    cuda::availability().unwrap();
    assert!(cuda::device_count() > 0);
    let driver = device();
    assert_eq!(driver.device(), DeviceId::cuda(0));
    assert!(!driver.name().is_empty() && !driver.name().contains('\0'));
    assert!(driver.version().unwrap() >= 11000);
    assert_eq!(driver.virtual_time_ns(), None);
    assert!(driver.attribute(DeviceAttribute::MultiprocessorCount).unwrap() > 0);
    assert!(driver.attribute(DeviceAttribute::ComputeCapabilityMajor).unwrap() >= 3);
    for attribute in [
        DeviceAttribute::ComputeCapabilityMinor,
        DeviceAttribute::MemoryPoolsSupported,
        DeviceAttribute::VirtualMemoryManagementSupported,
        DeviceAttribute::ConcurrentManagedAccess,
        DeviceAttribute::PageableMemoryAccess,
        DeviceAttribute::Integrated,
        DeviceAttribute::CanMapHostMemory,
        DeviceAttribute::IpcEventSupported,
    ] {
        assert!((0..10).contains(&driver.attribute(attribute).unwrap()), "{attribute:?}");
    }
    let info = driver.mem_get_info().unwrap();
    assert!(info.free > 0 && info.free <= info.total);
    driver.synchronize().unwrap();
    assert_eq!(millpond_driver::open(DeviceId::cuda(0)).unwrap().name(), driver.name());
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn plain_memory_holds_what_is_copied_to_it() {
    let driver = device();
    let (first, second) = (driver.mem_alloc(MIB).unwrap(), driver.mem_alloc(MIB).unwrap());
    assert!(first.is_aligned_to(256) && second.is_aligned_to(256) && first != second);
    let host = pattern(MIB);
    write(&*driver, first, &host, StreamRef::LEGACY);
    // SAFETY: both blocks are living, equally large, and not in use.
    unsafe { driver.memcpy_dtod_async(second, first, MIB, StreamRef::LEGACY) }.unwrap();
    assert!(read(&*driver, second, MIB, StreamRef::LEGACY) == host, "the copy differs");
    fill(&*driver, first.offset(KIB), 0xAB, KIB);
    let filled = read(&*driver, first, 4 * KIB, StreamRef::LEGACY);
    assert!(filled[..1024] == host[..1024] && filled[2048..] == host[2048..4096], "filled too much");
    assert!(filled[1024..2048].iter().all(|&byte| byte == 0xAB));

    let (base, bytes) = driver.mem_get_address_range(first.offset(12345)).unwrap();
    assert!(base == first && bytes >= MIB, "{base} {bytes}");
    assert_eq!(driver.pointer_kind(first.offset(1)), Ok(MemoryKind::Device));
    free(&*driver, first);
    free(&*driver, second);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn refusals_are_errors_with_cudas_codes() {
    let driver = device();
    let error = driver.mem_alloc(1 << 46).unwrap_err();
    assert_eq!((error.code(), error.call()), (DriverError::OUT_OF_MEMORY, "cuMemAlloc"));
    assert_eq!(driver.mem_alloc(0).unwrap_err().code(), DriverError::INVALID_VALUE);
    assert!(driver.mem_get_address_range(DevicePtr::new(4096)).is_err());
    // SAFETY: no allocation has this address, so the driver refuses it.
    assert!(unsafe { driver.mem_free(DevicePtr::new(4096)) }.is_err());
    for default in [StreamRef::LEGACY, StreamRef::PER_THREAD] {
        // SAFETY: the driver refuses it.
        assert!(unsafe { driver.stream_destroy(default) }.is_err());
    }
    // None of these errors was sticky.
    free(&*driver, driver.mem_alloc(256).unwrap());
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn managed_memory_is_seen_by_host_and_device() {
    let driver = device();
    let bytes = 4 * MIB;
    let ptr = driver.mem_alloc_managed(bytes).unwrap();
    assert_eq!(driver.pointer_kind(ptr), Ok(MemoryKind::Managed));
    fill(&*driver, ptr, 0x5C, bytes);
    if supports(&*driver, DeviceAttribute::ConcurrentManagedAccess) {
        let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        for advice in [
            MemAdvice::PreferDevice,
            MemAdvice::AccessedByDevice,
            MemAdvice::ReadMostly,
            MemAdvice::PreferHost,
        ] {
            // SAFETY: the block is living, and advice changes no contents.
            unsafe { driver.mem_advise(ptr, bytes, advice) }.unwrap();
        }
        for to_host in [false, true] {
            // SAFETY: the block is living and not in use.
            unsafe { driver.mem_prefetch_async(ptr, bytes, to_host, stream) }.unwrap();
            driver.stream_synchronize(stream).unwrap();
        }
        destroy(&*driver, stream);
    }
    driver.synchronize().unwrap();
    let host: *const u8 = std::ptr::with_exposed_provenance(ptr.address() as usize);
    // SAFETY: the host may use managed memory while the device is idle.
    let host = unsafe { std::slice::from_raw_parts(host, bytes as usize) };
    assert!(host.iter().all(|&byte| byte == 0x5C));
    free(&*driver, ptr);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn pinned_memory_is_the_devices_too() {
    let driver = device();
    let flags = HostFlags::default().portable(true).mapped(true);
    let host = driver.mem_host_alloc(MIB, flags).unwrap();
    assert_eq!(driver.pointer_kind(DevicePtr::new(host.0 as u64)), Ok(MemoryKind::Host));
    let mapped = driver.mem_host_get_device_pointer(host).unwrap();
    fill(&*driver, mapped, 0x3D, MIB);
    // SAFETY: the block is living, and the device is done with it.
    let bytes = unsafe { std::slice::from_raw_parts(host.as_mut_ptr(), MIB as usize) };
    assert!(bytes.iter().all(|&byte| byte == 0x3D));
    // SAFETY: the block came from this driver and is not used again.
    unsafe { driver.mem_free_host(host) }.unwrap();

    let combined = driver.mem_host_alloc(KIB, flags.write_combined(true)).unwrap();
    // SAFETY: the block came from this driver and is not used again.
    unsafe { driver.mem_free_host(combined) }.unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn registered_memory_is_pinned_until_it_is_unregistered() {
    let driver = device();
    let mut memory = vec![0_u8; 2 * MIB as usize];
    let start = memory.as_mut_ptr().align_offset(4096);
    let host = HostPtr(memory[start..].as_mut_ptr().expose_provenance());
    let address = DevicePtr::new(host.0 as u64);
    assert_eq!(driver.pointer_kind(address), Ok(MemoryKind::Unknown));
    let flags = HostFlags::default().portable(true).mapped(true);
    // SAFETY: the memory lives until it is unregistered; the driver refuses the second call.
    let (done, again) =
        unsafe { (driver.mem_host_register(host, MIB, flags), driver.mem_host_register(host, MIB, flags)) };
    assert_eq!(done, Ok(()));
    assert_eq!(again.unwrap_err().code(), DriverError::HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(driver.pointer_kind(address), Ok(MemoryKind::Host));
    fill(&*driver, driver.mem_host_get_device_pointer(host).unwrap(), 0x71, MIB);
    // SAFETY: it is registered, and the device is done with it; the driver refuses the second call.
    let (done, again) = unsafe { (driver.mem_host_unregister(host), driver.mem_host_unregister(host)) };
    assert_eq!(done, Ok(()));
    assert_eq!(again.unwrap_err().code(), DriverError::HOST_MEMORY_NOT_REGISTERED);
    assert!(memory[start..start + MIB as usize].iter().all(|&byte| byte == 0x71));
    let combined = flags.write_combined(true);
    // SAFETY: the driver refuses it.
    let refused = unsafe { driver.mem_host_register(host, MIB, combined) };
    assert_eq!(refused.unwrap_err().code(), DriverError::INVALID_VALUE);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn stream_ordered_memory_comes_from_pools() {
    let driver = device();
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    for on in [stream, StreamRef::LEGACY, StreamRef::PER_THREAD] {
        let ptr = driver.mem_alloc_async(MIB, on).unwrap();
        // SAFETY: the block is living and used only on its stream; its free is the last use.
        unsafe {
            driver.memset_d8_async(ptr, 0x19, MIB, on).unwrap();
            assert!(read(&*driver, ptr, MIB, on).iter().all(|&byte| byte == 0x19));
            assert_eq!(driver.pointer_kind(ptr), Ok(MemoryKind::Device));
            driver.mem_free_async(ptr, on).unwrap();
        }
    }
    let pool = driver.mem_pool_create(MemPoolProps::default().max_bytes(64 * MIB)).unwrap();
    assert_ne!(pool, driver.device_get_default_mem_pool().unwrap());
    let ptr = driver.mem_alloc_from_pool_async(8 * MIB, pool, stream).unwrap();
    let get = |attribute| driver.mem_pool_get_attribute(pool, attribute).unwrap();
    assert!(get(MemPoolAttribute::UsedMemCurrent) >= 8 * MIB);
    assert!(get(MemPoolAttribute::ReservedMemCurrent) >= get(MemPoolAttribute::UsedMemCurrent));
    let refused = driver.mem_alloc_from_pool_async(1024 * MIB, pool, stream).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    // SAFETY: the block came from this driver and is not used again.
    unsafe { driver.mem_free_async(ptr, stream) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(get(MemPoolAttribute::UsedMemCurrent), 0);
    assert!(get(MemPoolAttribute::UsedMemHigh) >= 8 * MIB);
    assert!(get(MemPoolAttribute::ReservedMemHigh) >= 8 * MIB);
    driver.mem_pool_set_attribute(pool, MemPoolAttribute::UsedMemHigh, 0).unwrap();
    assert_eq!(get(MemPoolAttribute::UsedMemHigh), 0);
    driver.mem_pool_trim_to(pool, 0).unwrap();
    assert_eq!(get(MemPoolAttribute::ReservedMemCurrent), 0);
    // SAFETY: no block of the pool is living.
    unsafe { driver.mem_pool_destroy(pool) }.unwrap();
    destroy(&*driver, stream);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn pool_attributes_can_be_set() {
    let driver = device();
    let pool = driver.mem_pool_create(MemPoolProps::default().handles(HandleTypes::POSIX_FD)).unwrap();
    for attribute in [
        MemPoolAttribute::ReuseFollowEventDependencies,
        MemPoolAttribute::ReuseAllowOpportunistic,
        MemPoolAttribute::ReuseAllowInternalDependencies,
    ] {
        for value in [0, 1] {
            driver.mem_pool_set_attribute(pool, attribute, value).unwrap();
            assert_eq!(driver.mem_pool_get_attribute(pool, attribute), Ok(value), "{attribute:?}");
        }
    }
    for value in [0, 5 * MIB, u64::MAX] {
        driver.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, value).unwrap();
        assert_eq!(driver.mem_pool_get_attribute(pool, MemPoolAttribute::ReleaseThreshold), Ok(value));
    }
    // SAFETY: no block came from the pool.
    unsafe { driver.mem_pool_destroy(pool) }.unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn one_handle_is_mapped_at_two_addresses() {
    let driver = CountingDriver::new(device());
    let page = driver.mem_get_allocation_granularity().unwrap();
    assert!(page.is_power_of_two() && page >= 64 * KIB, "{page}");
    let base = driver.mem_address_reserve(4 * page, page).unwrap();
    assert!(base.is_aligned_to(page));
    let handle = driver.mem_create(page, PhysicalProps::default()).unwrap();
    assert_eq!(driver.bytes_taken(), page);
    let (low, high) = (base, base.offset(2 * page));
    // SAFETY: the addresses are reserved and free, and the handle is as large as each mapping.
    unsafe {
        driver.mem_map(low, page, handle).unwrap();
        driver.mem_map(high, page, handle).unwrap();
        driver.mem_release(handle).unwrap();
        driver.mem_set_access(low, page, AccessFlags::ReadWrite, &[driver.device()]).unwrap();
        driver.mem_set_access(high, page, AccessFlags::ReadWrite, &[driver.device()]).unwrap();
    }
    assert_eq!(driver.bytes_taken(), page, "released, but mapped");
    assert_eq!(driver.pointer_kind(low), Ok(MemoryKind::Device));
    fill(&*driver, low, 0x42, page);
    assert!(read(&*driver, high, page, StreamRef::LEGACY).iter().all(|&byte| byte == 0x42));
    // SAFETY: the device is done with the mappings.
    unsafe { driver.mem_unmap(low, page) }.unwrap();
    let half = pattern(page / 2);
    write(&*driver, high, &half, StreamRef::LEGACY);
    assert!(read(&*driver, high, page / 2, StreamRef::LEGACY) == half, "the other mapping is lost");
    // SAFETY: the device is done with the mapping, and nothing else is mapped in the reservation.
    unsafe {
        driver.mem_set_access(high, page, AccessFlags::None, &[driver.device()]).unwrap();
        driver.mem_unmap(high, page).unwrap();
        assert_eq!(driver.bytes_taken(), 0);
        driver.mem_address_free(base, 4 * page).unwrap();
    }
    let counts = driver.counts();
    assert_eq!(counts.get(CallKind::MemMap).calls, 2);
    assert_eq!(counts.get(CallKind::MemUnmap).calls, 2);
    assert!(counts.iter().all(|(_, kind)| kind.failures == 0), "{counts:?}");
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn pages_made_apart_are_one_range_when_mapped_side_by_side() {
    let driver = device();
    let page = driver.mem_get_allocation_granularity().unwrap();
    let base = driver.mem_address_reserve(3 * page, 0).unwrap();
    // SAFETY: the addresses are reserved and free, and each handle is as large as its mapping.
    unsafe {
        for i in 0..3 {
            let handle = driver.mem_create(page, PhysicalProps::default()).unwrap();
            driver.mem_map(base.offset(i * page), page, handle).unwrap();
            driver.mem_release(handle).unwrap();
        }
        driver.mem_set_access(base, 3 * page, AccessFlags::ReadWrite, &[driver.device()]).unwrap();
    }
    let host = pattern(3 * page);
    write(&*driver, base, &host, StreamRef::LEGACY);
    assert!(read(&*driver, base, 3 * page, StreamRef::LEGACY) == host, "a page is lost or twice");
    // SAFETY: the device is done with the mappings.
    unsafe {
        driver.mem_unmap(base, 3 * page).unwrap();
        driver.mem_address_free(base, 3 * page).unwrap();
    }
    let odd = driver.mem_create(page + 1, PhysicalProps::default()).unwrap_err();
    assert_eq!(odd.code(), DriverError::INVALID_VALUE);
}

const HANDLE_FOR_CHILD: &str = "MILLPOND_TEST_IPC_HANDLE";

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn another_process_opens_an_allocation() {
    let driver = device();
    if let Ok(hex) = std::env::var(HANDLE_FOR_CHILD) {
        let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
        let handle = IpcMemHandle(std::array::from_fn(byte));
        let ptr = driver.ipc_open_mem_handle(&handle).unwrap();
        assert!(read(&*driver, ptr, 2 * MIB, StreamRef::LEGACY).iter().all(|&byte| byte == 0x6F));
        fill(&*driver, ptr, 0x70, 2 * MIB);
        // SAFETY: the address came from `ipc_open_mem_handle`, and the device is done with it.
        unsafe { driver.ipc_close_mem_handle(ptr) }.unwrap();
        return;
    }
    let ptr = driver.mem_alloc(2 * MIB).unwrap();
    fill(&*driver, ptr, 0x6F, 2 * MIB);
    let handle = driver.ipc_get_mem_handle(ptr).unwrap();
    let hex: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cuda_device::another_process_opens_an_allocation", "--ignored", "--nocapture"])
        .env(HANDLE_FOR_CHILD, hex)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
    assert!(read(&*driver, ptr, 2 * MIB, StreamRef::LEGACY).iter().all(|&byte| byte == 0x70));
    assert!(driver.ipc_get_mem_handle(DevicePtr::new(4096)).is_err());
    free(&*driver, ptr);
}
