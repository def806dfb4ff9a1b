//! Blocks from the calling thread's cache alone, for callers that hold a lock such as Python's.
//!
//! These calls neither wait for others nor call the driver for more than the current context, so that they
//! may be made under a lock that a driver call, a function of the program's, or another thread needs. A call
//! that returns `false` has done nothing: release that lock and make the ordinary call.

use std::ffi::c_void;
use std::ptr::null_mut;

use millpond_core::{Error, Layout};
use millpond_resources::registry;

use crate::device::device_ptr;
use crate::framework;
use crate::process::is_copy;
use crate::resource::Resource;
use crate::status::{default_stream, guarded, guarded_or};

/// Releases a lock of the caller's before a call that may wait; returns what the caller needs to take it
/// again, as `PyEval_SaveThread`.
pub type LeaveFunction = extern "C" fn() -> *mut c_void;
/// Takes that lock again after the call, as `PyEval_RestoreThread`.
pub type EnterFunction = extern "C" fn(*mut c_void);

/// Runs what may wait without the caller's lock, which is taken again also after a panic.
fn without_lock(leave: LeaveFunction, enter: EnterFunction, wait: impl FnOnce()) {
    let state = leave();
    guarded_or((), wait);
    enter(state);
}

/// `millpond_malloc` for a caller that holds a lock: a block that the thread has cached is handed out at
/// once, and for all else the lock is released meanwhile.
///
/// # Safety
/// As for `millpond_malloc`; both functions may be called, and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_malloc_unlocked(
    bytes: usize,
    device: i32,
    stream: *mut c_void,
    leave: LeaveFunction,
    enter: EnterFunction,
) -> *mut c_void {
    let unlocked = |wait: &mut dyn FnMut()| without_lock(leave, enter, wait);
    let (mut ptr, mut is_done) = (null_mut(), false);
    guarded(|| match framework::allocate_cached(bytes as u64, device, stream, unlocked) {
        Some(outcome) => {
            is_done = true;
            outcome.map(|block| ptr = block)
        }
        None => Ok(()),
    });
    if is_done {
        return ptr;
    }
    let state = leave();
    // SAFETY: the caller's promise.
    let ptr = unsafe { framework::millpond_malloc(bytes, device, stream) };
    enter(state);
    ptr
}

/// `millpond_free` for a caller that holds a lock, in the same way.
///
/// # Safety
/// As for `millpond_free`; both functions may be called, and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free_unlocked(
    ptr: *mut c_void,
    leave: LeaveFunction,
    enter: EnterFunction,
) {
    let unlocked = |wait: &mut dyn FnMut()| without_lock(leave, enter, wait);
    // The log may be a pipe that is read under the caller's lock.
    let refused = |error: &Error| without_lock(leave, enter, || framework::refused(error));
    guarded(|| framework::free_unlocked(ptr, unlocked).inspect_err(refused));
}

/// Hands out a block that the calling thread has cached for a default stream (0, 1 or 2). `false` if it has
/// none, if the outermost layer is no pool, or if `if_default` is set and the resource is not (or no longer)
/// the default of the thread's current device.
///
/// # Safety
/// `resource` is a handle of this library's; `ptr` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_allocate_cached(
    resource: *const Resource,
    if_default: bool,
    bytes: u64,
    stream: *mut c_void,
    ptr: *mut *mut c_void,
) -> bool {
    guarded_or(false, || {
        // SAFETY: the caller's promise.
        let Some(resource) = unsafe { resource.as_ref() }.filter(|_| !is_copy()) else { return false };
        let (Some(pool), Some(stream), false) = (resource.pool(), default_stream(stream), ptr.is_null())
        else {
            return false;
        };
        if if_default
            && !millpond_driver::current_device()
                .is_ok_and(|device| registry::is_per_device_resource(device, &resource.0))
        {
            return false;
        }
        let block = pool.allocate_cached(Layout::new(bytes), stream);
        // SAFETY: the caller's promise.
        block
            .inspect(|block| unsafe { ptr.write(std::ptr::without_provenance_mut(block.address() as usize)) })
            .is_some()
    })
}

/// Takes a block back into the calling thread's cache for a default stream (0, 1 or 2). `false` if the cache
/// does not take it: the block is still handed out then.
///
/// # Safety
/// As for `millpond_deallocate`, with no alignment; if it returns `false`, the block has not come back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_deallocate_cached(
    resource: *const Resource,
    ptr: *mut c_void,
    bytes: u64,
    stream: *mut c_void,
) -> bool {
    guarded_or(false, || {
        // SAFETY: the caller's promise.
        let Some(resource) = unsafe { resource.as_ref() }.filter(|_| !is_copy()) else { return false };
        let Some((pool, stream)) = resource.pool().zip(default_stream(stream)) else { return false };
        // SAFETY: the caller's promise.
        unsafe { pool.deallocate_cached(device_ptr(ptr), Layout::new(bytes), stream) }
    })
}
