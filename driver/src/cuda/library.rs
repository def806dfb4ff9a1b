//! Finds and initialises the driver library once per process.

use std::error::Error;
use std::sync::OnceLock;

use libloading::Library;
use millpond_core::driver::{DriverError, DriverResult};

use super::functions::Functions;

/// The initialised driver.
pub(super) struct Cuda {
    pub(super) functions: Functions,
    /// At least 1.
    pub(super) device_count: u32,
}

/// The versioned name comes first: the other may be a toolkit's stub, which can do nothing.
const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so", "libcuda.dylib"] };

/// The driver, or the reason why it cannot be loaded. The first call decides for the rest of the process.
pub(super) fn cuda() -> Result<&'static Cuda, &'static DriverError> {
    static CUDA: OnceLock<DriverResult<Cuda>> = OnceLock::new();
    CUDA.get_or_init(load).as_ref()
}

fn load() -> DriverResult<Cuda> {
    // The declarations use 64 bits for handles, device pointers and sizes.
    if cfg!(not(target_pointer_width = "64")) {
        return Err(no_library("millpond uses CUDA only from 64-bit programs".to_owned()));
    }
    let functions = Functions::look_up(open_library()?);
    // SAFETY: 0 is the only valid flag value.
    unsafe { functions.init(0) }?;
    let mut count = 0;
    // SAFETY: `count` takes the result.
    unsafe { functions.device_get_count(&raw mut count) }?;
    match u32::try_from(count) {
        Ok(device_count @ 1..) => Ok(Cuda { functions, device_count }),
        _ => Err(DriverError::new(DriverError::NO_DEVICE, "cuDeviceGetCount")),
    }
}

/// Loads the library and never unloads it: the driver's threads and exit handlers outlive any use here.
fn open_library() -> DriverResult<&'static Library> {
    let mut reasons = Vec::new();
    for name in NAMES {
        match open(name) {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(error) => reasons.push(reason(&error)),
        }
    }
    // An installed driver has the first name.
    Err(no_library(reasons.swap_remove(0)))
}

#[cfg(not(windows))]
fn open(name: &str) -> Result<Library, libloading::Error> {
    // SAFETY: the driver's initialisers may run on any thread at any time.
    unsafe { Library::new(name) }
}

/// The driver's installer puts it into the system's folder. Windows would search other folders first, such as
/// the program's, where others may be allowed to put a file of this name.
#[cfg(windows)]
fn open(name: &str) -> Result<Library, libloading::Error> {
    use libloading::os::windows::{LOAD_LIBRARY_SEARCH_SYSTEM32, Library as OfWindows};

    // SAFETY: the driver's initialisers may run on any thread at any time.
    unsafe { OfWindows::load_with_flags(name, LOAD_LIBRARY_SEARCH_SYSTEM32) }.map(Library::from)
}

/// The linker's reason, which `libloading` keeps out of its own text.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

fn no_library(reason: String) -> DriverError {
    DriverError::new(DriverError::NO_LIBRARY, "loading the driver").with_detail(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_reason_of_the_linker() {
        // SAFETY: there is no such library, so that none of its code runs.
        let error = unsafe { Library::new("libmillpond-no-such-library.so") }.unwrap_err();
        assert!(reason(&error).contains("libmillpond-no-such-library.so"), "{}", reason(&error));
    }
}
