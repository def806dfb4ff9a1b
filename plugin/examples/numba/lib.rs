//! Shows how to offer the plug-in interface to Python: C functions for Numba's device memory, which
//! `millpond_numba.py` calls through ctypes.
//!
//! A function that fails returns null or `false`, and [`millpond_error`] gives the reason. No call unwinds
//! into C.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use millpond_core::stack::LayerTable;
use millpond_core::{DeviceId, Result};
use millpond_plugin::{
    DeferCleanup, MEMORY_MANAGER_VARIABLE, MemoryManager, MemoryPointer, MillpondMemoryManager,
    get_memory_manager, set_memory_manager,
};

/// The stack, unless the environment names another one. CUDA can share plain memory with other processes, but
/// not mapped pages.
const DEFAULT_STACK: &str = "cuda+pool:pages=off";

/// The manager of one device. It lives as long as the process.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "it is the manager alone")]
pub struct Manager(pub Arc<dyn MemoryManager>);

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn remember(text: &str, is_out_of_memory: bool) {
    // The first letter tells Python which exception to raise.
    let text = format!("{}{text}", if is_out_of_memory { 'M' } else { 'E' }).replace('\0', " ");
    LAST_ERROR.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str)).unwrap_or("?")
}

/// Runs `body`. If it fails, stores the error and returns `None`.
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Some(value),
        Ok(Err(error)) => {
            remember(&error.to_string(), error.is_out_of_memory());
            None
        }
        Err(panic) => {
            remember(&format!("millpond panicked: {}", panic_text(&*panic)), false);
            None
        }
    }
}

fn default_manager() -> Result<()> {
    static ONCE: Once = Once::new();
    let mut outcome = Ok(());
    ONCE.call_once(|| {
        if std::env::var_os(MEMORY_MANAGER_VARIABLE).is_none() {
            let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied());
            outcome = DEFAULT_STACK
                .parse()
                .and_then(|stack| set_memory_manager(MillpondMemoryManager::factory(stack, layers)));
        }
    });
    outcome
}

/// Returns the reason of the last failure on this thread: `M` (out of memory) or `E`, then the text. The text
/// is valid until the next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error() -> *const c_char {
    LAST_ERROR.with_borrow(|last| last.as_ptr())
}

/// Returns the manager of a CUDA device. The first call for a device makes it.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_manager(device: u32) -> *const Manager {
    let manager = guarded(|| {
        default_manager()?;
        get_memory_manager(DeviceId::cuda(device))
    });
    manager.map_or(std::ptr::null(), |manager| Box::into_raw(Box::new(Manager(manager))))
}

/// Makes the manager ready. Call it again after a reset.
///
/// # Safety
/// `manager` is from [`millpond_manager`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_initialize(manager: *const Manager) -> bool {
    // SAFETY: managers are never freed.
    let manager = unsafe { &*manager };
    guarded(|| manager.0.initialize()).is_some()
}

/// Allocates memory and writes its address. Free it with [`millpond_free`].
///
/// # Safety
/// `manager` is from [`millpond_manager`]; `address` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_alloc(
    manager: *const Manager,
    bytes: u64,
    address: *mut u64,
) -> *mut MemoryPointer {
    // SAFETY: managers are never freed.
    let manager = unsafe { &*manager };
    let Some(memory) = guarded(|| manager.0.memalloc(bytes)) else { return std::ptr::null_mut() };
    // SAFETY: the caller's promise.
    unsafe { address.write(memory.device_pointer().address()) };
    Box::into_raw(Box::new(memory))
}

/// Frees memory; does nothing if a reset has already freed it.
///
/// # Safety
/// `memory` is from [`millpond_alloc`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free(memory: *mut MemoryPointer) {
    // SAFETY: the caller's promise.
    let memory = unsafe { Box::from_raw(memory) };
    guarded(|| {
        drop(memory);
        Ok(())
    });
}

/// Writes the free and total bytes to `info`.
///
/// # Safety
/// `manager` is from [`millpond_manager`]; `info` is valid for writes of two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_info(manager: *const Manager, info: *mut u64) -> bool {
    // SAFETY: managers are never freed.
    let manager = unsafe { &*manager };
    let Some(memory) = guarded(|| manager.0.get_memory_info()) else { return false };
    // SAFETY: the caller's promise.
    unsafe {
        info.write(memory.free);
        info.add(1).write(memory.total);
    }
    true
}

/// Ends all memory of the manager.
///
/// # Safety
/// `manager` is from [`millpond_manager`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_reset(manager: *const Manager) {
    // SAFETY: managers are never freed.
    let manager = unsafe { &*manager };
    guarded(|| {
        manager.0.reset();
        Ok(())
    });
}

/// Defers cleanup until a call of [`millpond_resume`].
///
/// # Safety
/// `manager` is from [`millpond_manager`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_defer(manager: *const Manager) -> *mut DeferCleanup {
    // SAFETY: managers are never freed.
    let manager = unsafe { &*manager };
    let guard = guarded(|| Ok(manager.0.defer_cleanup()));
    guard.map_or(std::ptr::null_mut(), |guard| Box::into_raw(Box::new(guard)))
}

/// Ends a deferral.
///
/// # Safety
/// `guard` is from [`millpond_defer`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resume(guard: *mut DeferCleanup) {
    // SAFETY: the caller's promise.
    let guard = unsafe { Box::from_raw(guard) };
    guarded(|| {
        drop(guard);
        Ok(())
    });
}
