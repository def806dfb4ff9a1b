//! Throws C++ exceptions through the C++ library of the process.
//!
//! So libmillpond itself links no C++ library, and its build needs no C++ compiler.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use crate::status::millpond_error_message;

/// `std::__throw_runtime_error`
type ThrowRuntimeError = unsafe extern "C-unwind" fn(*const c_char);
/// `std::__throw_bad_alloc`
type ThrowBadAlloc = unsafe extern "C-unwind" fn();

struct Throwers {
    runtime_error: ThrowRuntimeError,
    bad_alloc: ThrowBadAlloc,
}

/// The functions of the process's C++ library. `None` if the process has no C++ library, and so no C++
/// framework.
static THROWERS: LazyLock<Option<Throwers>> = LazyLock::new(|| {
    // SAFETY: the library runs no code of ours when it is loaded.
    let library = unsafe { libloading::Library::new("libstdc++.so.6") }.ok()?;
    // SAFETY: these are the types that GCC's C++ ABI gives to these names.
    let throwers = unsafe {
        Throwers {
            runtime_error: *library.get(b"_ZSt21__throw_runtime_errorPKc\0").ok()?,
            bad_alloc: *library.get(b"_ZSt17__throw_bad_allocv\0").ok()?,
        }
    };
    std::mem::forget(library); // keeps it loaded until the process ends
    Some(throwers)
});

fn throwers() -> Option<&'static Throwers> {
    catch_unwind(AssertUnwindSafe(|| THROWERS.as_ref())).ok().flatten()
}

// An exception leaves these frames and their callers' frames without dropping anything, so the frames own
// nothing.

/// Throws `std::runtime_error` with the text of the thread's last error. Returns if there is no C++ library.
pub(crate) fn throw_runtime_error() {
    if let Some(throwers) = throwers() {
        // SAFETY: the text is the thread's own, and the exception copies it.
        unsafe { (throwers.runtime_error)(millpond_error_message()) }
    }
}

/// Throws `std::bad_alloc`. Returns if there is no C++ library.
pub(crate) fn throw_bad_alloc() {
    if let Some(throwers) = throwers() {
        // SAFETY: the function takes nothing.
        unsafe { (throwers.bad_alloc)() }
    }
}
