//! The functions of libmillpond, loaded once.
//!
//! The library owns all pools of the process. Other users of the library in this process (PyTorch, CuPy, a C
//! program) therefore share the pools. The library stays loaded until the process ends.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The interface version that this module expects.
pub(crate) const ABI: u32 = 0;

/// The counts of a resource, laid out as `millpond_statistics`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) bytes_in_use: u64,
    pub(crate) bytes_requested: u64,
    pub(crate) peak_bytes_in_use: u64,
    pub(crate) bytes_reserved: u64,
    pub(crate) peak_bytes_reserved: u64,
    pub(crate) largest_free_block: u64,
    pub(crate) blocks_in_use: u64,
    pub(crate) blocks_free: u64,
    pub(crate) allocations: u64,
    pub(crate) deallocations: u64,
    pub(crate) misuses: u64,
}

/// The counters of a level, laid out as `millpond_level_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) current_bytes: i64,
    pub(crate) peak_bytes: i64,
    pub(crate) total_bytes: i64,
    pub(crate) current_count: i64,
    pub(crate) peak_count: i64,
    pub(crate) total_count: i64,
}

/// The properties of a driver's pool, laid out as `millpond_memory_pool_properties`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Properties {
    pub(crate) location_type: u32,
    pub(crate) location_id: i32,
    pub(crate) handle_types: u32,
    pub(crate) is_managed: bool,
    pub(crate) hw_decompress: bool,
    pub(crate) max_bytes: u64,
}

/// A handle from the library: a device or a resource.
pub(crate) type Raw = *mut c_void;
/// The type of the function that a callback resource calls to allocate a block.
pub(crate) type AllocateFunction = extern "C" fn(Raw, u64, u64, Raw) -> Raw;
/// The type of the function that a callback resource calls to free a block.
pub(crate) type DeallocateFunction = extern "C" fn(Raw, Raw, u64, u64, Raw);
/// The type of the function that `millpond_resource_failure_callback` calls.
pub(crate) type FailureFunction = extern "C" fn(Raw, u64) -> bool;
/// The type of the function that `millpond_budget_on_call_back` takes.
pub(crate) type CallBackFunction = extern "C" fn(Raw, u64);
/// The type of the function that `millpond_set_interrupt` takes.
pub(crate) type InterruptFunction = extern "C" fn() -> bool;
/// The type of the function that `millpond_malloc_unlocked` calls before it may wait.
pub(crate) type LeaveFunction = extern "C" fn() -> Raw;
/// The type of the function that `millpond_malloc_unlocked` calls after a wait.
pub(crate) type EnterFunction = extern "C" fn(Raw);
/// The type of the function that frees a callback's context.
pub(crate) type EndFunction = extern "C" fn(Raw);

/// The type of the function that captures a stack.
pub(crate) type CaptureFunction = extern "C" fn() -> u64;
/// The type of the function that takes a frame of a stack.
pub(crate) type AddFrameFunction = extern "C" fn(Raw, *const c_char, *const c_char, u64);
/// The type of the function that names the frames of a stack.
pub(crate) type FramesFunction = extern "C" fn(u64, Raw, Option<AddFrameFunction>);

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that this module calls. `millpond.h` documents the duties of their callers.
        #[derive(Debug)]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// Looks up the functions in a library.
            ///
            /// # Safety
            /// The library's functions must have these types.
            unsafe fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the caller's promise.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(concat!("millpond_", stringify!($name)).as_bytes())?,)*
                    })
                }
            }
        }
    };
}

functions! {
    string_free: fn(*mut c_char);
    version: fn() -> *const c_char;
    error_message: fn() -> *const c_char;
    error_driver_code: fn() -> i32;
    error_report: fn() -> *const c_char;
    error_report_json: fn() -> *const c_char;
    device_open: fn(*const c_char, *mut Raw) -> i32;
    device_find: fn(u32, bool, *mut Raw) -> i32;
    device_current: fn(*mut Raw) -> i32;
    device_free: fn(Raw);
    device_ordinal: fn(Raw) -> i32;
    device_is_simulated: fn(Raw) -> bool;
    device_name: fn(Raw, *mut *mut c_char) -> i32;
    device_memory_info: fn(Raw, *mut u64, *mut u64) -> i32;
    device_synchronize: fn(Raw) -> i32;
    stream_device: fn(Raw, *mut Raw) -> i32;
    stream_create: fn(Raw, bool, *mut Raw) -> i32;
    stream_destroy: fn(Raw, Raw) -> i32;
    stream_synchronize: fn(Raw, Raw) -> i32;
    stream_query: fn(Raw, Raw, *mut bool) -> i32;
    stream_wait: fn(Raw, Raw, Raw) -> i32;
    stream_id: fn(Raw, Raw, *mut u64) -> i32;
    stream_follow: fn(Raw, Raw, Raw) -> i32;
    stream_follow_if_alive: fn(Raw, Raw, Raw, u64) -> i32;
    device_wait: fn(Raw) -> i32;
    stream_synchronize_beside_captures: fn(Raw, Raw) -> i32;
    oracle_device: fn(u64, u64, *mut Raw) -> i32;
    oracle_watch: fn(Raw, *mut Raw) -> i32;
    oracle_capture: fn(Raw, Raw, bool) -> i32;
    oracle_violations: fn(Raw, *mut *mut c_char) -> i32;
    copy_to_device: fn(Raw, Raw, Raw, u64, Raw) -> i32;
    copy_to_host: fn(Raw, Raw, Raw, u64, Raw) -> i32;
    copy_on_device: fn(Raw, Raw, Raw, u64, Raw) -> i32;
    copy_from_anywhere: fn(Raw, Raw, Raw, u64, Raw) -> i32;
    copy_from_device: fn(Raw, Raw, Raw, Raw, u64, Raw) -> i32;
    fill: fn(Raw, Raw, u8, u64, Raw) -> i32;
    prefetch: fn(Raw, Raw, u64, bool, Raw) -> i32;
    resource_new: fn(Raw, *const c_char, *mut Raw) -> i32;
    resource_layer: fn(Raw, *const c_char, *mut Raw) -> i32;
    resource_layer_file: fn(Raw, *const c_char, *const c_char, *const c_char, *mut Raw) -> i32;
    resource_upstream: fn(Raw, *mut Raw) -> i32;
    resource_name: fn(Raw, *mut *mut c_char) -> i32;
    layers_json: fn(*mut *mut c_char) -> i32;
    parse_size: fn(*const c_char, *mut u64, *mut f64) -> i32;
    binning_bin: fn(Raw, usize, *mut usize, *mut u64, *mut Raw) -> i32;
    logging_file: fn(Raw, *mut *mut c_char) -> i32;
    resource_free: fn(Raw);
    resource_text: fn(Raw, *mut *mut c_char) -> i32;
    resource_device: fn(Raw, *mut Raw) -> i32;
    resource_is_equal: fn(Raw, Raw) -> bool;
    resource_accessibility: fn(Raw, *mut bool, *mut bool) -> i32;
    resource_memory_info: fn(Raw, *mut u64, *mut u64) -> i32;
    resource_trim: fn(Raw, u64, *mut u64) -> i32;
    resource_statistics: fn(Raw, *mut Statistics) -> i32;
    resource_memory_report: fn(Raw, bool, *mut *mut c_char) -> i32;
    metrics_register: fn(Raw, *const c_char) -> i32;
    metrics_text: fn(*mut *mut c_char) -> i32;
    metrics_json: fn(*const c_char, *mut *mut c_char) -> i32;
    resource_block_at: fn(Raw, Raw, *mut *mut c_char) -> i32;
    resource_clear_counters: fn(Raw) -> i32;
    resource_callback: fn(Raw, AllocateFunction, DeallocateFunction, Raw, EndFunction, *mut Raw) -> i32;
    resource_failure_callback: fn(Raw, FailureFunction, Raw, EndFunction, *mut Raw) -> i32;
    budget_on_call_back: fn(Raw, Option<CallBackFunction>, Raw, EndFunction) -> i32;
    resource_owners: fn(Raw) -> usize;
    set_interrupt: fn(InterruptFunction);
    resource_binning: fn(Raw, *const u64, *const Raw, usize, *mut Raw) -> i32;
    resource_async_view: fn(Raw, Raw, *mut Raw) -> i32;
    memory_pool_new: fn(Raw, *const Properties, *mut Raw) -> i32;
    memory_pool_current: fn(Raw, *mut Raw) -> i32;
    memory_pool_default_for: fn(Raw, u32, i32, bool, *mut Raw) -> i32;
    memory_pool_from_raw: fn(Raw, Raw, *mut Raw) -> i32;
    memory_pool_of_resource: fn(Raw, *mut Raw) -> i32;
    memory_pool_free: fn(Raw);
    memory_pool_resource: fn(Raw, *mut Raw) -> i32;
    memory_pool_set_current: fn(Raw) -> i32;
    memory_pool_raw: fn(Raw, *mut Raw) -> i32;
    memory_pool_device: fn(Raw, *mut Raw) -> i32;
    memory_pool_is_imported: fn(Raw) -> bool;
    memory_pool_get_properties: fn(Raw, *mut Properties) -> i32;
    memory_pool_get_attribute: fn(Raw, u32, *mut u64) -> i32;
    memory_pool_set_attribute: fn(Raw, u32, u64) -> i32;
    memory_pool_trim: fn(Raw, u64, *mut u64) -> i32;
    memory_pool_get_access: fn(Raw, Raw, *mut u32) -> i32;
    memory_pool_set_access: fn(Raw, Raw, u32) -> i32;
    memory_pool_get_host_access: fn(Raw, u32, i32, *mut u32) -> i32;
    memory_pool_set_host_access: fn(Raw, u32, i32, u32) -> i32;
    memory_pool_export_fd: fn(Raw, *mut i32) -> i32;
    memory_pool_import_fd: fn(Raw, i32, *mut Raw) -> i32;
    memory_pool_export_fabric: fn(Raw, *mut u8) -> i32;
    memory_pool_import_fabric: fn(Raw, *const u8, *mut Raw) -> i32;
    memory_pool_export_pointer: fn(Raw, Raw, *mut u8) -> i32;
    memory_pool_import_pointer: fn(Raw, *const u8, *mut Raw, *mut Raw) -> i32;
    imported_allocation_free_on: fn(Raw, Raw) -> i32;
    imported_allocation_free: fn(Raw);
    graph_memory: fn(Raw, *mut [u64; 4]) -> i32;
    graph_memory_reset_highs: fn(Raw) -> i32;
    graph_memory_trim: fn(Raw) -> i32;
    async_pool: fn(Raw, *mut Raw) -> i32;
    limiting_counts: fn(Raw, *mut u64, *mut u64) -> i32;
    statistics_counters: fn(Raw, *mut Counters) -> i32;
    statistics_push: fn(Raw, *mut Counters) -> i32;
    statistics_pop: fn(Raw, *mut Counters) -> i32;
    tracking_outstanding: fn(Raw, *mut u64, *mut *mut c_char) -> i32;
    logging_flush: fn(Raw) -> i32;
    set_stack_source: fn(CaptureFunction, FramesFunction);
    record_history: fn(usize, i32, u32, bool) -> i32;
    stop_history: fn() -> i32;
    memory_snapshot: fn(Raw, *mut *mut u8, *mut usize) -> i32;
    bytes_free: fn(*mut u8, usize);
    allocate: fn(Raw, u64, u64, Raw, *mut Raw) -> i32;
    deallocate: fn(Raw, Raw, u64, u64, Raw) -> i32;
    allocate_cached: fn(Raw, bool, u64, Raw, *mut Raw) -> bool;
    deallocate_cached: fn(Raw, Raw, u64, Raw) -> bool;
    malloc_unlocked: fn(usize, i32, Raw, LeaveFunction, EnterFunction) -> Raw;
    free_unlocked: fn(Raw, LeaveFunction, EnterFunction);
    get_per_device_resource: fn(Raw, *mut Raw) -> i32;
    get_current_device_resource: fn(*mut Raw) -> i32;
    set_per_device_resource: fn(Raw, *mut Raw) -> i32;
    reset_per_device_resource: fn(Raw) -> i32;
}

static API: OnceLock<Api> = OnceLock::new();

/// Loads the library and registers `is_interrupted` for its waits. A second call changes nothing.
///
/// # Errors
/// The text says why the library cannot be used.
pub(crate) fn load(path: &Path, is_interrupted: InterruptFunction) -> Result<(), String> {
    if API.get().is_some() {
        return Ok(());
    }
    let explain = |error: libloading::Error| {
        // The linker's reason is not in the error's own text.
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        format!("{} cannot be loaded: {reason}", path.display())
    };
    // SAFETY: libmillpond's initialisers have no side effects; the caller names that library.
    let library = unsafe { libloading::Library::new(path) }.map_err(explain)?;
    let is_none = |_| format!("{} is not libmillpond: check MILLPOND_LIBRARY", path.display());
    // SAFETY: the function has had this type in all versions.
    let version = unsafe {
        let ask = library.get::<unsafe extern "C" fn() -> u32>(b"millpond_abi_version").map_err(is_none)?;
        ask()
    };
    if version != ABI {
        return Err(format!(
            "{} has interface version {version}, but this package needs version {ABI}: use the libmillpond \
             of the package's own version",
            path.display()
        ));
    }
    // SAFETY: libraries of this version have this interface.
    let api = unsafe { Api::of(&library) }.map_err(explain)?;
    // SAFETY: the function may be called on any thread, and does not unwind.
    unsafe { (api.set_interrupt)(is_interrupted) };
    let _ = API.set(api);
    // The library must stay loaded, because blocks may be freed at any time until the process ends.
    std::mem::forget(library);
    forks();
    Ok(())
}

/// Returns the loaded library.
#[inline]
pub(crate) fn api() -> &'static Api {
    API.get().expect("importing the module has loaded the library")
}

/// The number of forks between the process that first loaded the library and this one.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

fn forks() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler only counts.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Returns the generation of this process. A forked child has another generation than its parent, and must
/// not touch its parent's memory.
#[inline]
pub(crate) fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed)
}

/// A separate value for each process. A forked child must not use its parent's locks: a thread that does not
/// exist in the child may hold them.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(pub(crate) [T; 8]);

impl<T> PerProcess<T> {
    #[inline]
    pub(crate) fn get(&self) -> &T {
        &self.0[generation() % self.0.len()]
    }
}

/// Copies a text that the library allocated, and frees it.
pub(crate) fn take_text(text: *mut c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: every caller got the text from the library, and passes it on once.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        (api().string_free)(text);
        copy
    }
}

/// Copies bytes that the library allocated, such as a path, and frees them. Returns `None` for null.
pub(crate) fn take_bytes(text: *mut c_char) -> Option<Vec<u8>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: every caller got the text from the library, and passes it on once.
    unsafe {
        let copy = CStr::from_ptr(text).to_bytes().to_vec();
        (api().string_free)(text);
        Some(copy)
    }
}

/// Converts a text from the program to a C string.
///
/// # Errors
/// `ValueError` if the text has a zero byte, with Python's own message for paths.
pub(crate) fn c_argument(text: impl Into<Vec<u8>>) -> PyResult<CString> {
    CString::new(text).map_err(|_| PyValueError::new_err("embedded null byte"))
}

/// Converts a text to a C string. A zero byte becomes a space.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}
