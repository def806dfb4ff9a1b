//! Memory and pools for other processes: file descriptors, and CUDA's older handles.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use millpond_core::driver::{DriverResult, FabricHandle, IpcMemHandle, MemPoolPtrData, PhysicalHandle};
use millpond_core::{Driver, DriverError};

use super::pools::pool;
use super::vmm::POSIX_FD;
use super::{Api, Driving, Handle, device_ptr, handle};
use crate::abi::Opaque;
use crate::error::refusal;

/// `CU_MEM_HANDLE_TYPE_FABRIC`.
const FABRIC: c_int = 8;

/// Refuses handles other than file descriptors.
fn only_descriptors(kind: c_int, flags: c_ulonglong) -> DriverResult<()> {
    match (kind, flags) {
        (POSIX_FD, 0) => Ok(()),
        (2 | 4 | FABRIC, 0) => Err(refusal(DriverError::NOT_SUPPORTED)),
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    }
}

/// CUDA takes a descriptor as a pointer, which must not be null.
fn descriptor(os_handle: *mut c_void) -> DriverResult<c_int> {
    let fd = c_int::try_from(os_handle.addr()).ok().filter(|fd| *fd != 0);
    fd.ok_or_else(|| refusal(DriverError::INVALID_VALUE))
}

pub(crate) unsafe extern "C" fn export_memory(
    os_handle: *mut c_void,
    exported: u64,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    let export = |driver: &dyn Driver| {
        only_descriptors(kind, flags)?;
        driver.mem_export_to_fd(PhysicalHandle(exported))
    };
    // SAFETY: CUDA's contract: the place takes a descriptor, which is an `int`.
    unsafe { Driving::answer_of(0, os_handle.cast(), export) }
}

pub(crate) unsafe extern "C" fn import_memory(
    imported: *mut u64,
    os_handle: *mut c_void,
    kind: c_int,
) -> c_int {
    let import = |driver: &dyn Driver| {
        only_descriptors(kind, 0)?;
        Ok(driver.mem_import_from_fd(descriptor(os_handle)?)?.0)
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer_of(0, imported, import) }
}

pub(crate) unsafe extern "C" fn export_pool<A: Api>(
    os_handle: *mut c_void,
    exported: Handle,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    let export = |driver: &dyn Driver| {
        only_descriptors(kind, flags)?;
        driver.mem_pool_export_to_fd(pool(exported))
    };
    let to_fabric = |driver: &dyn Driver| Ok(Opaque(driver.mem_pool_export_to_fabric(pool(exported))?.0));
    // SAFETY: CUDA's contract: the place takes a fabric handle, or a descriptor, which is an `int`.
    unsafe {
        match (kind, flags) {
            (FABRIC, 0) => A::answer_of(0, os_handle.cast(), to_fabric),
            _ => A::answer_of(0, os_handle.cast(), export),
        }
    }
}

pub(crate) unsafe extern "C" fn import_pool<A: Api>(
    imported: *mut Handle,
    os_handle: *mut c_void,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    let import = |driver: &dyn Driver| {
        if (kind, flags) == (FABRIC, 0) {
            // SAFETY: CUDA's contract for the arguments.
            let fabric = unsafe { os_handle.cast::<Opaque>().as_ref() };
            let fabric = fabric.ok_or_else(|| refusal(DriverError::INVALID_VALUE))?;
            return Ok(handle(driver.mem_pool_import_from_fabric(&FabricHandle(fabric.0))?.0));
        }
        only_descriptors(kind, flags)?;
        Ok(handle(driver.mem_pool_import_from_fd(descriptor(os_handle)?)?.0))
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(0, imported, import) }
}

pub(crate) unsafe extern "C" fn export_pointer<A: Api>(data: *mut Opaque, ptr: *mut c_void) -> c_int {
    let export = |driver: &dyn Driver| Ok(Opaque(driver.mem_pool_export_pointer(device_ptr(ptr))?.0));
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(0, data, export) }
}

pub(crate) unsafe extern "C" fn import_pointer<A: Api>(
    ptr: *mut *mut c_void,
    imported: Handle,
    data: *const Opaque,
) -> c_int {
    let import = |driver: &dyn Driver| {
        // SAFETY: CUDA's contract for the arguments.
        let data = unsafe { data.as_ref() }.ok_or_else(|| refusal(DriverError::INVALID_VALUE))?;
        let found = driver.mem_pool_import_pointer(pool(imported), &MemPoolPtrData(data.0))?;
        Ok(handle(found.address()))
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(0, ptr, import) }
}

pub(crate) unsafe extern "C" fn ipc_get<A: Api>(exported: *mut Opaque, ptr: *mut c_void) -> c_int {
    let export = |driver: &dyn Driver| Ok(Opaque(driver.ipc_get_mem_handle(device_ptr(ptr))?.0));
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(exported, export) }
}

pub(crate) unsafe extern "C" fn ipc_open<A: Api>(
    ptr: *mut *mut c_void,
    exported: Opaque,
    flags: c_uint,
) -> c_int {
    let open = |driver: &dyn Driver| match flags {
        1 => Ok(handle(driver.ipc_open_mem_handle(&IpcMemHandle(exported.0))?.address())),
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(ptr, open) }
}

pub(crate) unsafe extern "C" fn ipc_close<A: Api>(ptr: *mut c_void) -> c_int {
    // SAFETY: the caller of CUDA no longer uses the memory.
    A::run(|driver| unsafe { driver.ipc_close_mem_handle(device_ptr(ptr)) })
}
