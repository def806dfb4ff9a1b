//! The memory-manager plug-in interface (NBEP 7), for Numba's device memory.

use std::ffi::c_void;
use std::sync::Arc;

use millpond_core::Error;
use millpond_core::driver::IpcMemHandle;
use millpond_plugin::{DeferCleanup, MemoryManager, MemoryPointer, MillpondMemoryManager};

use crate::device::Device;
use crate::status::{Status, borrowed, end, guarded, guarded_or, put, put_handle, stream_of};

/// A memory manager over the default resource of its device, whichever that is when it first allocates.
#[derive(Debug)]
pub struct Manager(Arc<MillpondMemoryManager>);

/// Memory of a manager. A manager's reset ends the memory, and leaves the handle to be freed.
#[derive(Debug)]
pub struct Memory(MemoryPointer);

/// Cleanup that is deferred until this is freed.
#[derive(Debug)]
pub struct Deferral(#[expect(dead_code, reason = "its end is what counts")] DeferCleanup);

/// Makes a memory manager over the device's default resource.
///
/// # Safety
/// `device` is a handle of this library's; `manager` may be written.
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

/// Ends a handle. Memory of the manager stays until it is freed. Does nothing for null.
///
/// # Safety
/// `manager` is null, or a handle of this library's that ends here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_free(manager: *mut Manager) {
    // SAFETY: the caller's promise.
    unsafe { end(manager) }
}

/// Makes the manager ready, again after a reset.
///
/// # Safety
/// `manager` is a handle of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_initialize(manager: *const Manager) -> Status {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { borrowed(manager, "the manager") }?.0.initialize())
}

/// Allocates on `stream`, and returns the address and what frees it. No bytes are a null address.
///
/// # Safety
/// `manager` is a handle of this library's; the stream is alive and of its device; both results may be
/// written.
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

/// Frees memory, on any thread, also after a reset of the manager or of the device's context. Does nothing
/// for null.
///
/// # Safety
/// `memory` is null, or a handle of this library's that ends here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_free(memory: *mut Memory) {
    // SAFETY: the caller's promise.
    unsafe { end(memory) }
}

/// Whether the memory is there, and no reset has ended it; `false` for null.
///
/// # Safety
/// `memory` is null or a handle of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_is_live(memory: *const Memory) -> bool {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory.as_ref() };
    guarded_or(false, || memory.is_some_and(|memory| memory.0.is_live()))
}

/// Announces that work on `stream` uses the memory, so that it goes back only after that work.
///
/// # Safety
/// Both are handles of this library's; the stream is alive and of the device.
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

/// The free bytes, with what the manager's stack could hand out again, and the total bytes.
///
/// # Safety
/// `manager` is a handle of this library's; both numbers may be written.
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

/// CUDA's legacy handle of the memory for another process: 64 bytes, and where the memory starts inside of
/// what the handle names.
///
/// # Safety
/// Both are handles of this library's; 64 bytes may be written at `handle`, and a number at `offset`.
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
            return Err(Error::invalid_argument("the place for the handle is a null pointer"));
        }
        let IpcMemHandle(bytes) = made.handle();
        // SAFETY: the caller's promise.
        unsafe {
            handle.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
            put(offset, made.offset())
        }
    })
}

/// Ends all memory of the manager.
///
/// # Safety
/// `manager` is a handle of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_manager_reset(manager: *const Manager) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { borrowed(manager, "the manager") }?.0.reset();
        Ok(())
    })
}

/// Puts cleanup off until `millpond_deferral_free`: memory that is freed meanwhile is kept.
///
/// # Safety
/// `manager` is a handle of this library's; `deferral` may be written.
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
/// `deferral` is null, or a handle of this library's that ends here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_deferral_free(deferral: *mut Deferral) {
    // SAFETY: the caller's promise.
    unsafe { end(deferral) }
}
