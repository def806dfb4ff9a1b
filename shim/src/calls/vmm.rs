//! Virtual memory management: reserved addresses, physical memory and mappings.

use std::ffi::{c_int, c_ulonglong, c_void};

use millpond_core::driver::{DriverResult, PhysicalHandle, PhysicalProps};
use millpond_core::{Driver, DriverError};

use super::{Api, Driving, device_ptr, for_each_access, handle};
use crate::abi::{AccessDesc, PhysicalProp};
use crate::error::refusal;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const POSIX_FD: c_int = 1;

fn invalid_value() -> DriverError {
    refusal(DriverError::INVALID_VALUE)
}

/// The properties that a program asks for; only pinned memory of the device has any.
///
/// # Safety
/// `props` is null or points to `CUmemAllocationProp`.
unsafe fn wanted(driver: &dyn Driver, props: *const PhysicalProp) -> DriverResult<PhysicalProps> {
    // SAFETY: the caller's promise.
    let props = unsafe { props.as_ref() }.ok_or_else(invalid_value)?;
    if props.kind != 1 {
        return Err(invalid_value());
    }
    props.location.as_device(driver)?;
    match props.handles {
        0 | POSIX_FD => {
            Ok(PhysicalProps::default().share_fd(props.handles == POSIX_FD).rdma(props.rdma != 0))
        }
        _ => Err(refusal(DriverError::NOT_SUPPORTED)),
    }
}

pub(crate) unsafe extern "C" fn get_granularity(
    bytes: *mut usize,
    props: *const PhysicalProp,
    option: c_int,
) -> c_int {
    let find = |driver: &dyn Driver| {
        // SAFETY: CUDA's contract for the arguments.
        unsafe { wanted(driver, props) }?;
        if !(0..=1).contains(&option) {
            return Err(invalid_value());
        }
        Ok(driver.mem_get_allocation_granularity()? as usize)
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer_of(0, bytes, find) }
}

/// The wanted address is a hint, which is not followed.
pub(crate) unsafe extern "C" fn reserve(
    ptr: *mut *mut c_void,
    bytes: usize,
    alignment: usize,
    _wanted: *mut c_void,
    flags: c_ulonglong,
) -> c_int {
    let reserve = |driver: &dyn Driver| match flags {
        0 => Ok(handle(driver.mem_address_reserve(bytes as u64, alignment as u64)?.address())),
        _ => Err(invalid_value()),
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer_of(0, ptr, reserve) }
}

pub(crate) unsafe extern "C" fn free_addresses(ptr: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller of CUDA gives up the addresses.
    Driving::run_of(0, |driver| unsafe { driver.mem_address_free(device_ptr(ptr), bytes as u64) })
}

pub(crate) unsafe extern "C" fn create(
    created: *mut u64,
    bytes: usize,
    props: *const PhysicalProp,
    flags: c_ulonglong,
) -> c_int {
    let create = |driver: &dyn Driver| {
        // SAFETY: CUDA's contract for the arguments.
        let props = unsafe { wanted(driver, props) }?;
        if flags != 0 {
            return Err(invalid_value());
        }
        Ok(driver.mem_create(bytes as u64, props)?.0)
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer_of(0, created, create) }
}

pub(crate) unsafe extern "C" fn release(released: u64) -> c_int {
    // SAFETY: the caller of CUDA gives up the memory.
    Driving::run_of(0, |driver| unsafe { driver.mem_release(PhysicalHandle(released)) })
}

/// As in CUDA 13, a mapping holds all of the memory.
pub(crate) unsafe extern "C" fn map(
    ptr: *mut c_void,
    bytes: usize,
    offset: usize,
    mapped: u64,
    flags: c_ulonglong,
) -> c_int {
    Driving::run_of(0, |driver| {
        if offset != 0 || flags != 0 {
            return Err(invalid_value());
        }
        // SAFETY: the caller of CUDA guarantees that the addresses are reserved and unused.
        unsafe { driver.mem_map(device_ptr(ptr), bytes as u64, PhysicalHandle(mapped)) }
    })
}

pub(crate) unsafe extern "C" fn unmap(ptr: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller of CUDA no longer uses the mapping.
    Driving::run_of(0, |driver| unsafe { driver.mem_unmap(device_ptr(ptr), bytes as u64) })
}

pub(crate) unsafe extern "C" fn set_access(
    ptr: *mut c_void,
    bytes: usize,
    access: *const AccessDesc,
    count: usize,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    Driving::run_of(0, |driver| unsafe {
        for_each_access((access, count), |flags, at| {
            driver.mem_set_access(device_ptr(ptr), bytes as u64, flags, &[at.as_device(driver)?])
        })
    })
}
