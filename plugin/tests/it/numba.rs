//! Tests the C functions of examples/numba on a simulated device.

#[path = "../../examples/numba/lib.rs"]
#[allow(unreachable_pub, clippy::module_inception)] // a library of the same name there
mod numba;

use std::ffi::CStr;
use std::ptr;

use millpond_driver::sim::{SimConfig, SimDevice};
use numba::*;

use crate::common::{Bench, MIB};

/// Returns the manager as a pointer for C.
fn manager() -> *const Manager {
    let bench = Bench::stack(SimDevice::new(SimConfig::h200()), "cuda+pool:pages=off");
    Box::into_raw(Box::new(Manager(bench.manager())))
}

fn alloc(manager: *const Manager, bytes: u64) -> (*mut millpond_plugin::MemoryPointer, u64) {
    let mut address = 0;
    // SAFETY: the manager is from above.
    (unsafe { millpond_alloc(manager, bytes, &raw mut address) }, address)
}

fn free_bytes(manager: *const Manager) -> u64 {
    let mut info = [0; 2];
    // SAFETY: the manager is from above, and there is room for two numbers.
    assert!(unsafe { millpond_memory_info(manager, info.as_mut_ptr()) });
    assert!(info[0] <= info[1]);
    info[0]
}

fn error() -> String {
    // SAFETY: the text is valid until the next call that fails.
    unsafe { CStr::from_ptr(millpond_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn memory_comes_from_the_stack_and_goes_back() {
    let manager = manager();
    let before = free_bytes(manager);
    let (memory, address) = alloc(manager, 3 * MIB);
    assert!(!memory.is_null() && address != 0);
    assert!(free_bytes(manager) <= before - 3 * MIB);
    // SAFETY: the pointer is from above and is not used again.
    unsafe { millpond_free(memory) };
    assert_eq!(free_bytes(manager), before);
    let (again, same) = alloc(manager, 3 * MIB);
    assert_eq!(same, address, "the pool kept the block");
    // SAFETY: the pointer is from above and is not used again.
    unsafe { millpond_free(again) };
}

#[test]
fn cleanup_that_is_put_off_comes_with_the_end_of_the_deferral() {
    let manager = manager();
    let (memory, _) = alloc(manager, MIB);
    let held = free_bytes(manager);
    // SAFETY: all of these are from this manager, and each is freed once.
    unsafe {
        let guard = millpond_defer(manager);
        millpond_free(memory);
        assert_eq!(free_bytes(manager), held);
        millpond_resume(guard);
    }
    assert!(free_bytes(manager) > held);
}

#[test]
fn a_pointer_that_outlives_a_reset_frees_nothing() {
    let manager = manager();
    let (stale, _) = alloc(manager, MIB);
    // SAFETY: the managers and pointers are from above, and each pointer is freed once.
    unsafe {
        millpond_reset(manager);
        assert!(millpond_initialize(manager));
        let (memory, _) = alloc(manager, MIB);
        let held = free_bytes(manager);
        millpond_free(stale);
        assert_eq!(free_bytes(manager), held);
        millpond_free(memory);
    }
}

#[test]
fn what_is_wrong_is_told_with_the_kind_of_error_first() {
    let (memory, _) = alloc(manager(), 1 << 50);
    assert_eq!(memory, ptr::null_mut());
    assert!(error().starts_with('M') && error().len() > 20, "{}", error());
}
