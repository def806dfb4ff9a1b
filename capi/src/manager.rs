//! The memory-manager plug-in interface (NBEP 7), for Numba's device memory.

use std::ffi::c_void;
use std::sync::Arc;

use millpond_core::Error;
use millpond_core::driver::IpcMemHandle;
use millpond_plugin::{DeferCleanup, MemoryManager, MemoryPointer, MillpondMemoryManager};

use crate::device::Device;
use crate::status::{Status, borrowed, end, guarded, guarded_or, put, put_handle, stream_of};

/// A memory manager. It uses the resource that is its device's default at the manager's first allocation.
#[derive(Debug)]
pub struct Manager(Arc<MillpondMemoryManager>);

/// Memory of a manager. A reset of the manager frees the memory, but the handle must still be freed.
#[derive(Debug)]
pub struct Memory(MemoryPointer);

/// While this handle exists, the manager defers its cleanup.
#[derive(Debug)]
pub struct Deferral(#[expect(dead_code, reason = "its end is what counts")] DeferCleanup);

/// Makes a memory manager on the device's default resource.
///
/// # Safety
/// `device` is a handle from this library; `manager` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_new(device: *const Device, manager: *mut *mut Manager) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { borrowed(device, "the device") }?;
        let made = MillpondMemoryManager::over_default(device.0.clone());
        // SAFETY: the caller's promise.
        unsafe { put_handle(manager, Manager(Arc::new(made))) }
    })
}

/// Frees the handle of a manager. Memory from the manager stays valid until it is freed. Does nothing for
/// null.
///
/// # Safety
/// `manager` is null, or a handle from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_free(manager: *mut Manager) {
    // SAFETY: the caller's promise.
    unsafe { end(manager) }
}

/// Prepares the manager. Call this function again after a reset.
///
/// # Safety
/// `manager` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_initialize(manager: *const Manager) -> Status {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { borrowed(manager, "the manager") }?.0.initialize())
}

/// Allocates on `stream`. Returns the address, and the handle that frees the memory. The address is null for
/// 0 bytes.
///
/// # Safety
/// `manager` is a handle from this library. The stream is alive and belongs to the manager's device. Both
/// results are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_allocate(
    manager: *const Manager,
    bytes: u64,
    stream: *mut c_void,
    address: *mut u64,
    memory: *mut *mut Memory,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let manager = unsafe { borrowed(manager, "the manager") }?;
        let stream = stream_of(&manager.0.driver()?, stream)?;
        let made = millpond_plugin::with_stream(stream, || manager.0.memalloc(bytes))?;
        let ptr = made.device_pointer();
        // SAFETY: the caller's promise.
        unsafe {
            put(address, ptr.address())?;
            put_handle(memory, Memory(made))
        }
    })
}

/// Frees memory. Works on any thread, also after a reset of the manager or of the device's context. Does
/// nothing for null.
///
/// # Safety
/// `memory` is null, or a handle from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_free(memory: *mut Memory) {
    // SAFETY: the caller's promise.
    unsafe { end(memory) }
}

/// Returns whether the memory is valid. Returns `false` after a reset of the manager or of the device's
/// context, and for null.
///
/// # Safety
/// `memory` is null or a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_is_live(memory: *const Memory) -> bool {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory.as_ref() };
    guarded_or(false, || memory.is_some_and(|memory| memory.0.is_live()))
}

/// Announces that work on `stream` uses the memory. After the program frees the memory, the library reuses it
/// only when that work is done.
///
/// # Safety
/// `manager` and `memory` are handles from this library. The stream is alive and belongs to the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_record_stream(
    manager: *const Manager,
    memory: *const Memory,
    stream: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (manager, memory) =
            unsafe { (borrowed(manager, "the manager")?, borrowed(memory, "the memory")?) };
        let stream = stream_of(&manager.0.driver()?, stream)?;
        manager.0.record_stream(&memory.0, stream)
    })
}

/// Writes the free bytes, including the memory that the manager's stack could reuse, and the total bytes.
///
/// # Safety
/// `manager` is a handle from this library; both numbers are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_memory_info(
    manager: *const Manager,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let info = unsafe { borrowed(manager, "the manager") }?.0.get_memory_info()?;
        // SAFETY: the caller's promise.
        unsafe {
            put(free_bytes, info.free)?;
            put(total_bytes, info.total)
        }
    })
}

/// Writes CUDA's legacy handle (64 bytes), through which another process can open the memory. Also writes the
/// offset of the memory from the start of the allocation that the handle names.
///
/// # Safety
/// `manager` and `memory` are handles from this library. `handle` is valid for writes of 64 bytes, and
/// `offset` for writes of a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_ipc_handle(
    manager: *const Manager,
    memory: *const Memory,
    handle: *mut u8,
    offset: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (manager, memory) =
            unsafe { (borrowed(manager, "the manager")?, borrowed(memory, "the memory")?) };
        let made = manager.0.get_ipc_handle(&memory.0)?;
        if handle.is_null() {
            return Err(Error::invalid_argument("the pointer for the IPC handle is a null pointer"));
        }
        let IpcMemHandle(bytes) = made.handle();
        // SAFETY: the caller's promise.
        unsafe {
            handle.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
            put(offset, made.offset())
        }
    })
}

/// Frees all memory of the manager.
///
/// # Safety
/// `manager` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_reset(manager: *const Manager) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { borrowed(manager, "the manager") }?.0.reset();
        Ok(())
    })
}

/// Defers the manager's cleanup until `millpond_deferral_free`: freed memory is kept until that call.
///
/// # Safety
/// `manager` is a handle from this library; `deferral` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_defer(
    manager: *const Manager,
    deferral: *mut *mut Deferral,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let manager = unsafe { borrowed(manager, "the manager") }?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(deferral, Deferral(manager.0.defer_cleanup())) }
    })
}

/// Ends a deferral. Does nothing for null.
///
/// # Safety
/// `deferral` is null, or a handle from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_deferral_free(deferral: *mut Deferral) {
    // SAFETY: the caller's promise.
    unsafe { end(deferral) }
}
