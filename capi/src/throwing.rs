//! `malloc` functions that throw C++ exceptions, because PyTorch and CuPy would use a null pointer as a
//! block.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::exception::{throw_bad_alloc, throw_runtime_error};
use crate::framework;
use crate::status::{Status, begin_last_message, guarded};

/// Works like `millpond_malloc`, but throws `std::runtime_error` with the text of the error. If there is no
/// memory, the text begins with PyTorch's own words, `CUDA out of memory.`. Some libraries look for these
/// words, and retry with a smaller batch.
///
/// # Safety
/// The rules of `millpond_malloc` hold. The caller is C++, or lets C++ exceptions pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_malloc_or_throw(
    bytes: usize,
    device: i32,
    stream: *mut c_void,
) -> *mut c_void {
    let mut ptr = null_mut();
    match allocate(&mut ptr, bytes, device, stream) {
        Status::Ok => {}
        Status::OutOfMemory => {
            begin_last_message("CUDA out of memory. ");
            throw_runtime_error();
        }
        _ => throw_runtime_error(),
    }
    ptr
}

/// Allocates for CuPy's `CFunctionAllocator`, on the legacy default stream. If there is no memory, throws
/// `std::bad_alloc`, which CuPy turns into a `MemoryError`. `parameter` is not used.
///
/// # Safety
/// The rules of `millpond_malloc` hold. The caller is C++, or lets C++ exceptions pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_cupy_malloc(
    parameter: *mut c_void,
    bytes: usize,
    device: i32,
) -> *mut c_void {
    let _ = parameter;
    let mut ptr = null_mut();
    match allocate(&mut ptr, bytes, device, null_mut()) {
        Status::Ok => {}
        Status::OutOfMemory => throw_bad_alloc(),
        _ => throw_runtime_error(),
    }
    ptr
}

/// Frees a block that `millpond_cupy_malloc` allocated.
///
/// # Safety
/// The rules of `millpond_free` hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_cupy_free(parameter: *mut c_void, ptr: *mut c_void, device: i32) {
    let _ = parameter;
    // SAFETY: the caller's promise.
    unsafe { framework::millpond_free(ptr, 0, device, null_mut()) }
}

fn allocate(ptr: &mut *mut c_void, bytes: usize, device: i32, stream: *mut c_void) -> Status {
    guarded(|| {
        *ptr = framework::allocate(bytes as u64, device, stream)?;
        Ok(())
    })
}
