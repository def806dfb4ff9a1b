//! The driver's pools between processes: file descriptors and fabric handles of pools, and descriptions of
//! blocks.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::ptr::without_provenance_mut;

use millpond_core::driver::{FabricHandle, MemPoolPtrData};
use millpond_core::{DevicePtr, Error};
use millpond_resources::memory_pool;

use crate::device::{Device, device_ptr, with_device};
use crate::memory_pool::{MemoryPool, with_pool};
use crate::status::{Status, borrowed, end, guarded_here, put, put_handle, stream_of};

/// A block of another process, opened in this process. The handle keeps the imported pool.
#[derive(Debug)]
pub struct ImportedAllocation(Option<memory_pool::ImportedAllocation>, memory_pool::MemoryPool);

/// Writes a file descriptor with which another process can import the pool (with
/// `millpond_memory_pool_import_fd`). The caller owns the descriptor. The pool must have been made with the
/// handle type 1.
///
/// # Safety
/// `pool` is a handle from this library; `fd` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_export_fd(pool: *const MemoryPool, fd: *mut i32) -> Status {
    with_pool(pool, |pool| {
        let exported = pool.export_fd()?;
        // SAFETY: the caller's promise. If the pointer is null, `exported` closes the descriptor.
        unsafe { put(fd, exported.as_raw_fd()) }?;
        let _ = exported.into_raw_fd();
        Ok(())
    })
}

/// Imports a pool of another process, the exporter. The caller still owns the descriptor. The imported pool
/// cannot allocate, be trimmed or be current. It opens blocks with `millpond_memory_pool_import_pointer`.
///
/// # Safety
/// `device` is a handle from this library; `fd` is an open file descriptor; `pool` is valid for writes. This
/// process uses a block only after the exporter's allocation is done on the device. It frees the block, and
/// its work on the block is done, before the exporter frees the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_import_fd(
    device: *const Device,
    fd: i32,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_device(device, |driver| {
        if fd < 0 {
            return Err(Error::invalid_argument(format!("{fd} is no file descriptor")));
        }
        // SAFETY: the caller's promise.
        let imported =
            unsafe { memory_pool::MemoryPool::import_fd(driver.clone(), BorrowedFd::borrow_raw(fd)) }?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(pool, MemoryPool(imported)) }
    })
}

/// Writes the 64 bytes of a fabric handle with which another process can import the pool (with
/// `millpond_memory_pool_import_fabric`), also on another machine of the same NVLink domain. The pool must
/// have been made with the handle type 8.
///
/// # Safety
/// `pool` is a handle from this library; 64 bytes can be written to `handle`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_export_fabric(
    pool: *const MemoryPool,
    handle: *mut u8,
) -> Status {
    with_pool(pool, |pool| {
        let exported = pool.export_fabric()?;
        // SAFETY: the caller's promise.
        unsafe { put(handle.cast::<[u8; 64]>(), exported.0) }
    })
}

/// Imports a pool of another process, as `millpond_memory_pool_import_fd` does, from the 64 bytes of
/// `millpond_memory_pool_export_fabric`. Returns `MILLPOND_STATUS_UNSUPPORTED` if this process cannot open
/// the exporter's IMEX channel.
///
/// # Safety
/// `device` is a handle from this library; 64 bytes can be read from `handle`; `pool` is valid for writes.
/// The rules of `millpond_memory_pool_import_fd` for blocks hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_import_fabric(
    device: *const Device,
    handle: *const u8,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_device(device, |driver| {
        // SAFETY: the caller's promise.
        let handle = *unsafe { borrowed(handle.cast::<[u8; 64]>(), "the fabric handle") }?;
        // SAFETY: the caller's promise.
        let imported =
            unsafe { memory_pool::MemoryPool::import_fabric(driver.clone(), &FabricHandle(handle)) }?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(pool, MemoryPool(imported)) }
    })
}

/// Writes 64 bytes that describe a block of the pool to a process that imported the pool.
///
/// # Safety
/// `pool` is a handle from this library; 64 bytes can be written to `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_export_pointer(
    pool: *const MemoryPool,
    block: *mut c_void,
    data: *mut u8,
) -> Status {
    with_pool(pool, |pool| {
        let exported = pool.export_pointer(device_ptr(block))?;
        // SAFETY: the caller's promise.
        unsafe { put(data.cast::<[u8; 64]>(), exported.0) }
    })
}

/// Opens a block of an imported pool, from the 64 bytes of `millpond_memory_pool_export_pointer`. Writes a
/// handle that the caller owns, and the block's address in this process.
///
/// # Safety
/// `pool` is a handle from this library; 64 bytes can be read from `data`; the results are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_import_pointer(
    pool: *const MemoryPool,
    data: *const u8,
    allocation: *mut *mut ImportedAllocation,
    address: *mut *mut c_void,
) -> Status {
    with_pool(pool, |pool| {
        // SAFETY: the caller's promise.
        let data = *unsafe { borrowed(data.cast::<[u8; 64]>(), "the data of the block") }?;
        let opened = pool.import_pointer(&MemPoolPtrData(data))?;
        let at: DevicePtr = opened.device_pointer();
        // SAFETY: the caller's promise.
        unsafe {
            put(address, without_provenance_mut(at.address() as usize))?;
            put_handle(allocation, ImportedAllocation(Some(opened), pool.clone()))
        }
    })
}

/// Frees an imported block in this process in stream order. After the stream's work is done, this process may
/// tell the exporter so. The handle must still be freed. After an error, and on a second call, the block is
/// already free.
///
/// # Safety
/// `allocation` is a handle from this library that no other thread uses; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_imported_allocation_free_on(
    allocation: *mut ImportedAllocation,
    stream: *mut c_void,
) -> Status {
    guarded_here(|| {
        // SAFETY: the caller's promise.
        let allocation = unsafe { allocation.as_mut() };
        let allocation =
            allocation.ok_or_else(|| Error::invalid_argument("the allocation is a null pointer"))?;
        let stream = stream_of(allocation.1.driver(), stream)?;
        allocation.0.take().map_or(Ok(()), |block| block.free_on(stream))
    })
}

/// Frees the handle of an imported block. If the block is not free, waits for the device and then frees it.
/// Does nothing for null.
///
/// # Safety
/// `allocation` is null, or a handle from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_imported_allocation_free(allocation: *mut ImportedAllocation) {
    // SAFETY: the caller's promise.
    unsafe { end(allocation) }
}
