//! Questions to the driver: the current device, its free memory, and the memory of a new context.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::code::Code;
use crate::link::of_driver;

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NO_CAPTURE: c_int = 0;

/// The bytes of a device's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// Declares functions of the driver that this library calls.
macro_rules! driver {
    ($($name:ident($($arg:ident: $type:ty),*) = $symbol:literal;)*) => {$(
        /// Calls the driver's function. Returns `None` if it is missing or fails.
        fn $name($($arg: $type),*) -> Option<()> {
            static FOUND: OnceLock<Option<unsafe extern "C" fn($($type),*) -> Code>> = OnceLock::new();
            let found = FOUND.get_or_init(|| {
                let found = of_driver($symbol);
                // SAFETY: the driver's function of this name has this type.
                (!found.is_null()).then(|| unsafe { std::mem::transmute(found) })
            });
            // SAFETY: the arguments are numbers, or places that are writable during the call.
            let code = unsafe { found.as_ref()?($($arg),*) };
            (code == 0).then_some(())
        }
    )*};
}

driver! {
    ctx_get_current(context: *mut u64) = c"cuCtxGetCurrent";
    ctx_get_device(device: *mut c_int) = c"cuCtxGetDevice";
    ctx_push_current(context: u64) = c"cuCtxPushCurrent_v2";
    ctx_pop_current(context: *mut u64) = c"cuCtxPopCurrent_v2";
    mem_get_info(free: *mut u64, total: *mut u64) = c"cuMemGetInfo_v2";
    stream_is_capturing(stream: *mut c_void, status: *mut c_int) = c"cuStreamIsCapturing";
    device_get_uuid(uuid: *mut [u8; 16], device: c_int) = c"cuDeviceGetUuid";
    primary_ctx_get_state(device: c_int, flags: *mut c_uint, active: *mut c_int)
        = c"cuDevicePrimaryCtxGetState";
}

/// Returns the current context and its device; `None` without a context.
pub(crate) fn current() -> Option<(u64, c_int)> {
    let (mut context, mut device) = (0, 0);
    ctx_get_current(&raw mut context)?;
    ctx_get_device(&raw mut device)?;
    Some((context, device))
}

/// Returns the memory of the current device, and of all its processes.
pub(crate) fn info() -> Option<Info> {
    let (mut free, mut total) = (0, 0);
    mem_get_info(&raw mut free, &raw mut total)?;
    Some(Info { free, total })
}

/// Returns the memory of a context's device.
pub(crate) fn info_in(context: u64) -> Option<Info> {
    ctx_push_current(context)?;
    let (info, mut popped) = (info(), 0);
    ctx_pop_current(&raw mut popped)?;
    info
}

/// Returns whether a stream captures a graph. Its allocations take no memory of their own.
pub(crate) fn is_capturing(stream: *mut c_void) -> bool {
    let mut status = NO_CAPTURE;
    stream_is_capturing(stream, &raw mut status).is_some() && status != NO_CAPTURE
}

/// Returns whether a device's primary context exists.
pub(crate) fn has_primary_context(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 0);
    primary_ctx_get_state(device, &raw mut flags, &raw mut active).is_some() && active != 0
}

/// Returns the bytes that all processes take on a device. Works without a context. Returns `None` without
/// NVIDIA's management library, which the driver installs.
pub(crate) fn taken_without_context(device: c_int) -> Option<u64> {
    /// `nvmlMemory_t`.
    #[repr(C)]
    #[derive(Default)]
    struct Memory {
        total: u64,
        free: u64,
        used: u64,
    }
    type ByUuid = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> Code;
    type GetMemory = unsafe extern "C" fn(*mut c_void, *mut Memory) -> Code;
    static LIBRARY: OnceLock<Option<(ByUuid, GetMemory)>> = OnceLock::new();
    let (by_uuid, get_memory) = (*LIBRARY.get_or_init(|| {
        // SAFETY: the names are C strings, the functions have the types that NVIDIA documents, and the
        // library is never closed.
        unsafe {
            let library = libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY);
            if library.is_null() {
                return None;
            }
            let function = |name: &CStr| {
                let found = libc::dlsym(library, name.as_ptr());
                (!found.is_null()).then_some(found)
            };
            let init: unsafe extern "C" fn() -> Code = std::mem::transmute(function(c"nvmlInit_v2")?);
            let by_uuid: ByUuid = std::mem::transmute(function(c"nvmlDeviceGetHandleByUUID")?);
            let get_memory: GetMemory = std::mem::transmute(function(c"nvmlDeviceGetMemoryInfo")?);
            (init() == 0).then_some((by_uuid, get_memory))
        }
    }))?;
    let mut uuid = [0; 16];
    device_get_uuid(&raw mut uuid, device)?;
    let mut name = String::from("GPU");
    for (at, byte) in uuid.iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&at) { "-" } else { "" };
        name += &format!("{dash}{byte:02x}");
    }
    name.push('\0');
    let (mut handle, mut memory) = (std::ptr::null_mut(), Memory::default());
    // SAFETY: the name ends with a null, and the places are writable.
    let is_known = unsafe {
        by_uuid(name.as_ptr().cast(), &raw mut handle) == 0 && get_memory(handle, &raw mut memory) == 0
    };
    is_known.then_some(memory.used)
}
