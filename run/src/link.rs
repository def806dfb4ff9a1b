//! Finds glibc's `dlsym` and the driver's functions.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The type of `dlsym`.
pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The versions that `dlsym` has had in glibc.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

/// Returns glibc's `dlsym`.
pub(crate) fn real_dlsym() -> Dlsym {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut real = REAL.load(Ordering::Acquire);
    if real.is_null() {
        let find = |version: &CStr| {
            // SAFETY: the names are C strings.
            unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) }
        };
        let found = VERSIONS.map(find).into_iter().find(|found| !found.is_null());
        real = found.unwrap_or(finds_nothing as *mut c_void);
        REAL.store(real, Ordering::Release);
    }
    // SAFETY: the address belongs to `dlsym`, or to a function with its type.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) }
}

extern "C" fn finds_nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    null_mut()
}

/// Returns a function of the driver; null if the process has not loaded the driver.
pub(crate) fn of_driver(symbol: &CStr) -> *mut c_void {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name is a C string. The flags load nothing, so no foreign code runs. The handle is never
    // closed, so the address stays valid.
    unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), flags);
        if driver.is_null() { null_mut() } else { real_dlsym()(driver, symbol.as_ptr()) }
    }
}
