//! Pinned host memory.

use std::ffi::{c_int, c_uint, c_void};

use millpond_core::driver::{HostFlags, HostPtr};
use millpond_core::{Driver, DriverError};

use super::{Api, handle, host_functions};
use crate::error::refusal;

/// All flags of `cuMemHostAlloc`.
const LAST_FLAGS: c_uint = 7;

fn host_ptr(ptr: *mut c_void) -> HostPtr {
    HostPtr(ptr.expose_provenance())
}

fn host_flags(flags: c_uint) -> HostFlags {
    HostFlags::default().portable(flags & 1 != 0).mapped(flags & 2 != 0)
}

pub(crate) unsafe extern "C" fn alloc_plain<A: Api>(ptr: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { alloc::<A>(ptr, bytes, 0) }
}

pub(crate) unsafe extern "C" fn alloc<A: Api>(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    let alloc = |driver: &dyn Driver| match flags {
        0..=LAST_FLAGS if bytes == 0 => Ok(std::ptr::null_mut()),
        0..=LAST_FLAGS => {
            let flags = host_flags(flags).write_combined(flags & 4 != 0);
            driver.mem_host_alloc(bytes as u64, flags).map(|ptr| ptr.as_mut_ptr().cast())
        }
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(ptr, alloc) }
}

pub(crate) unsafe extern "C" fn free<A: Api>(ptr: *mut c_void) -> c_int {
    A::run(|driver| match ptr.is_null() {
        true => Ok(()),
        false => {
            host_functions::wait_for_device(driver);
            // SAFETY: the caller of CUDA gives up the memory.
            unsafe { driver.mem_free_host(host_ptr(ptr)) }
        }
    })
}

pub(crate) unsafe extern "C" fn register<A: Api>(ptr: *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    A::run(|driver| {
        if ptr.is_null() || bytes == 0 {
            return Err(refusal(DriverError::INVALID_VALUE));
        }
        // SAFETY: the caller of CUDA guarantees that the memory exists until it is unregistered.
        unsafe { driver.mem_host_register(host_ptr(ptr), bytes as u64, host_flags(flags)) }
    })
}

pub(crate) unsafe extern "C" fn unregister<A: Api>(ptr: *mut c_void) -> c_int {
    // SAFETY: the caller of CUDA makes no more use of the memory as pinned.
    A::run(|driver| unsafe { driver.mem_host_unregister(host_ptr(ptr)) })
}

pub(crate) unsafe extern "C" fn get_device_pointer<A: Api>(
    device_ptr: *mut *mut c_void,
    ptr: *mut c_void,
    flags: c_uint,
) -> c_int {
    let find = |driver: &dyn Driver| match flags {
        0 => driver.mem_host_get_device_pointer(host_ptr(ptr)).map(|ptr| handle(ptr.address())),
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(device_ptr, find) }
}
