//! A function that replaces one of the driver's.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::link::of_driver;

/// One function of the driver.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The name of the symbol.
    pub(crate) symbol: &'static CStr,
    /// The name in calls of `cuGetProcAddress`.
    pub(crate) base: &'static [u8],
    /// The first version of CUDA for which that name means this symbol.
    pub(crate) since: c_int,
    /// Whether its null stream is the calling thread's default stream.
    pub(crate) per_thread: bool,
    /// The address of this library's function.
    pub(crate) ours: *const c_void,
    /// The driver's function, once it is known.
    pub(crate) real: AtomicPtr<c_void>,
}

// SAFETY: `ours` is the address of a function.
unsafe impl Sync for Entry {}

impl Entry {
    /// Returns the address of this library's function.
    pub(crate) fn ours(&self) -> *mut c_void {
        self.ours.cast_mut()
    }

    /// Returns the driver's function; null if the process has not loaded the driver.
    pub(crate) fn real(&self) -> *mut c_void {
        match self.real.load(Ordering::Acquire) {
            real if real.is_null() => {
                let real = of_driver(self.symbol);
                self.keep(real);
                real
            }
            real => real,
        }
    }

    /// Keeps the first address that is found for the driver's function.
    pub(crate) fn keep(&self, real: *mut c_void) {
        let _ = self.real.compare_exchange(null_mut(), real, Ordering::AcqRel, Ordering::Acquire);
    }
}
