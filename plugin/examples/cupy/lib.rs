//! Runs the contract of NBEP 7 over CuPy's memory pool on a GPU. `contract.py` loads this library, and passes
//! CuPy's functions to it.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millpond_core::{DeviceId, DevicePtr, Error, ErrorKind, Result, StreamRef};

#[path = "../../tests/it/common.rs"]
#[allow(dead_code)] // the tests use all of it
mod common;
#[path = "../../tests/it/cupy.rs"]
mod cupy;

/// The calls of CuPy's pool, as Python's ctypes passes them. They can be called on any thread.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(clippy::exhaustive_structs, reason = "its layout is the interface")]
pub struct Functions {
    /// Allocates `bytes` for the stream with this handle. Writes the block's number and address, and returns
    /// 0. Returns 1 if there is too little memory, and 2 for another failure.
    pub malloc: extern "C" fn(bytes: u64, stream: u64, block: *mut [u64; 2]) -> i32,
    /// Frees the block with this number.
    pub free: extern "C" fn(block: u64),
    /// Frees all blocks that are not in use.
    pub free_all_blocks: extern "C" fn(),
    /// Returns the free bytes of the pool.
    pub free_bytes: extern "C" fn() -> u64,
    /// Returns all bytes of the pool.
    pub total_bytes: extern "C" fn() -> u64,
    /// Receives the name of a clause, and the reason of its failure or null.
    pub report: extern "C" fn(name: *const c_char, failure: *const c_char),
}

impl cupy::Pool for Functions {
    fn malloc(&self, bytes: u64, stream: StreamRef) -> Result<Option<(u64, DevicePtr)>> {
        let mut block = [0; 2];
        match (self.malloc)(bytes, stream.handle(), &raw mut block) {
            0 => Ok(Some((block[0], DevicePtr::new(block[1])))),
            1 => Ok(None),
            _ => {
                Err(Error::new(ErrorKind::Driver, "CuPy failed to allocate; its exception is printed above"))
            }
        }
    }

    fn free(&self, block: u64) {
        (self.free)(block);
    }

    fn free_all_blocks(&self) {
        (self.free_all_blocks)();
    }

    fn free_bytes(&self) -> u64 {
        (self.free_bytes)()
    }

    fn total_bytes(&self) -> u64 {
        (self.total_bytes)()
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str)).unwrap_or("?")
}

/// Runs every clause on a CUDA device, and reports each one. Returns the number of clauses that failed.
///
/// # Safety
/// `functions` is valid, and its functions stay callable as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_contract(functions: *const Functions, device: u32) -> u32 {
    // SAFETY: the caller's promise.
    let functions = unsafe { *functions };
    let report = |name: &str, failure: Option<&str>| {
        let [name, failure] = [Some(name), failure]
            .map(|text| text.map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default()));
        let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        (functions.report)(pointer(&name), pointer(&failure));
    };
    let driver = match millpond_driver::open(DeviceId::cuda(device)) {
        Ok(driver) => driver,
        Err(error) => {
            report("opening the device", Some(&error.to_string()));
            return 1;
        }
    };
    let bench = cupy::bench(driver, Arc::new(functions));
    let mut failed = 0;
    for (name, clause) in common::CLAUSES {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            clause(&bench);
            assert_eq!(common::misuses(), 0);
        }));
        report(name, outcome.as_ref().err().map(|panic| panic_text(&**panic)));
        failed += u32::from(outcome.is_err());
    }
    failed
}
