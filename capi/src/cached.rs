//! Serves blocks only from the calling thread's cache, for callers that hold a lock, such as Python's GIL.
//!
//! These calls never wait, and the only driver call that they make reads the current context. So the caller
//! may hold a lock that a driver call, a function of the program or another thread needs. If a call returns
//! `false`, it has done nothing. In that case, release the lock, and make the ordinary call.

use std::ffi::c_void;
use std::ptr::null_mut;

use millpond_core::{Error, Layout};
use millpond_resources::registry;

use crate::device::device_ptr;
use crate::framework;
use crate::history;
use crate::process::is_copy;
use crate::resource::Resource;
use crate::status::{default_stream, guarded, guarded_or};

/// Releases the caller's lock before a call that may wait, as `PyEval_SaveThread` does. Returns the state
/// that the caller needs to take the lock again.
pub type LeaveFunction = extern "C" fn() -> *mut c_void;
/// Takes the lock again after the call, as `PyEval_RestoreThread` does.
pub type EnterFunction = extern "C" fn(*mut c_void);

/// Runs `wait` without the caller's lock. Takes the lock again, even after a panic.
fn without_lock(leave: LeaveFunction, enter: EnterFunction, wait: impl FnOnce()) {
    let state = leave();
    guarded_or((), wait);
    enter(state);
}

/// Works like `millpond_malloc`, for a caller that holds a lock. If the thread's cache has a block, the call
/// returns the block at once. Otherwise the call releases the lock while it works.
///
/// # Safety
/// The rules of `millpond_malloc` hold. Both functions can be called and do not unwind.
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

/// Works like `millpond_free`, for a caller that holds a lock, as `millpond_malloc_unlocked` does.
///
/// # Safety
/// The rules of `millpond_free` hold. Both functions can be called and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free_unlocked(
    ptr: *mut c_void,
    leave: LeaveFunction,
    enter: EnterFunction,
) {
    let unlocked = |wait: &mut dyn FnMut()| without_lock(leave, enter, wait);
    // The log may be a pipe, and its reader may need the caller's lock.
    let refused = |error: &Error| without_lock(leave, enter, || framework::refused(error));
    guarded(|| framework::free_unlocked(ptr, unlocked).inspect_err(refused));
}

/// Allocates a block from the calling thread's cache for a default stream (0, 1 or 2). Returns `false` in
/// three cases: the cache has no such block; the outermost layer is not a pool; `if_default` is set, and the
/// resource is not the default resource of the thread's current device.
///
/// # Safety
/// `resource` is a handle from this library; `ptr` is valid for writes.
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
        if let Some(block) = block {
            history::asked(&*resource.0, &Ok(block), bytes, stream);
        }
        // SAFETY: the caller's promise.
        block
            .inspect(|block| unsafe { ptr.write(std::ptr::without_provenance_mut(block.address() as usize)) })
            .is_some()
    })
}

/// Frees a block into the calling thread's cache for a default stream (0, 1 or 2). If the cache does not
/// accept the block, returns `false`, and the block is still live.
///
/// # Safety
/// The rules of `millpond_deallocate` hold, with no alignment. If the function returns `false`, the block is
/// still live.
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
        // The free would be recorded as an event, even if the cache does not accept the block.
        if history::recorder().is_some() {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { pool.deallocate_cached(device_ptr(ptr), Layout::new(bytes), stream) }
    })
}
