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

/// Returns whether an address belongs to the driver. The driver then stays loaded until the process ends.
pub(crate) fn is_of_driver(address: *mut c_void) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the place is writable, zeros are a valid value of it, and the dynamic linker returns null or a
    // C string. The flags load nothing.
    unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return false;
        }
        let name = info.assume_init().dli_fname;
        if name.is_null() {
            return false;
        }
        let is_driver = CStr::from_ptr(name).to_bytes().windows(10).any(|part| part == b"libcuda.so");
        if is_driver {
            libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        }
        is_driver
    }
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
