//! The same two functions with C++ exceptions for errors: PyTorch and CuPy take a null pointer for a block.
//!
//! The exceptions are thrown by the C++ library that the process has loaded, so that this library needs none,
//! nor a C++ compiler.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::LazyLock;

use crate::framework;
use crate::status::{Status, guarded, millpond_error_message};

/// `std::__throw_runtime_error`
type ThrowRuntimeError = unsafe extern "C-unwind" fn(*const c_char);
/// `std::__throw_bad_alloc`
type ThrowBadAlloc = unsafe extern "C-unwind" fn();

struct Throwers {
    runtime_error: ThrowRuntimeError,
    bad_alloc: ThrowBadAlloc,
}

/// The functions of the process's C++ library. `None` where there is none: then no framework in C++ is there
/// either.
static THROWERS: LazyLock<Option<Throwers>> = LazyLock::new(|| {
    // SAFETY: the library runs no code of ours when it is loaded.
    let library = unsafe { libloading::Library::new("libstdc++.so.6") }.ok()?;
    // SAFETY: the types are those of the C++ ABI of GCC, which names them so.
    let throwers = unsafe {
        Throwers {
            runtime_error: *library.get(b"_ZSt21__throw_runtime_errorPKc\0").ok()?,
            bad_alloc: *library.get(b"_ZSt17__throw_bad_allocv\0").ok()?,
        }
    };
    std::mem::forget(library); // loaded until the process ends
    Some(throwers)
});

/// `millpond_malloc`, but throws `std::runtime_error` with the text of the error.
///
/// # Safety
/// As for `millpond_malloc`; the caller is C++, or lets its exceptions pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_malloc_or_throw(
    bytes: usize,
    device: i32,
    stream: *mut c_void,
) -> *mut c_void {
    let mut ptr = null_mut();
    if allocate(&mut ptr, bytes, device, stream) != Status::Ok {
        throw_runtime_error();
    }
    ptr
}

/// Allocates for CuPy's `CFunctionAllocator`, on the legacy default stream; throws `std::bad_alloc` if memory
/// is out, which CuPy makes a `MemoryError`. `parameter` is not used.
///
/// # Safety
/// As for `millpond_malloc`; the caller is C++, or lets its exceptions pass.
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

/// Frees a block of `millpond_cupy_malloc`.
///
/// # Safety
/// As for `millpond_free`.
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

fn throwers() -> Option<&'static Throwers> {
    catch_unwind(AssertUnwindSafe(|| THROWERS.as_ref())).ok().flatten()
}

// An exception leaves these frames, and those of the callers, without dropping anything: they hold nothing.

pub(crate) fn throw_runtime_error() {
    if let Some(throwers) = throwers() {
        // SAFETY: the text is the thread's own, and the exception copies it.
        unsafe { (throwers.runtime_error)(millpond_error_message()) }
    }
}

fn throw_bad_alloc() {
    if let Some(throwers) = throwers() {
        // SAFETY: the function takes nothing.
        unsafe { (throwers.bad_alloc)() }
    }
}
