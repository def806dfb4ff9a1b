//! The functions that programs get instead of the driver's.
#![allow(non_snake_case, reason = "the functions have CUDA's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicPtr;

use crate::calls;
use crate::code::{Code, NOT_FOUND};
use crate::entry::Entry;

/// A stream, a context, a pool or a library in the driver's calls.
type Handle = *mut c_void;

/// Declares each function: its name in `cuGetProcAddress`, the version since which the name means it, its
/// symbol, its arguments, and its use of the driver's function.
macro_rules! entries {
    ($($base:literal $since:literal $(per_thread $per_thread:literal)?
        fn $symbol:ident($($arg:ident: $type:ty),*) |$real:ident| $body:expr;)*) => {
        /// Numbers the entries.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the entries have CUDA's names")]
        enum Number { $($symbol,)* }

        /// All functions of the driver that this library replaces.
        pub(crate) static ENTRIES: [Entry; [$(stringify!($symbol)),*].len()] = [$(
            Entry {
                symbol: {
                    const SYMBOL: &str = concat!(stringify!($symbol), "\0");
                    match CStr::from_bytes_with_nul(SYMBOL.as_bytes()) {
                        Ok(symbol) => symbol,
                        Err(_) => panic!("an identifier has no null"),
                    }
                },
                base: $base.as_bytes(),
                since: $since,
                per_thread: false $(|| $per_thread)?,
                ours: $symbol as *const c_void,
                real: AtomicPtr::new(std::ptr::null_mut()),
            },
        )*];

        $(
            /// # Safety
            /// As CUDA documents for the function.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($arg: $type),*) -> Code {
                let real = ENTRIES[Number::$symbol as usize].real();
                if real.is_null() {
                    return NOT_FOUND;
                }
                // SAFETY: the driver's function of this name has this type.
                let $real = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Code>(real)
                };
                // SAFETY: the driver's function has the same contract, and the caller keeps it.
                let $real = || unsafe { $real($($arg),*) };
                $body
            }
        )*
    };
}

/// The flag of `cuGetProcAddress` that asks for functions on the calling thread's default stream.
const PER_THREAD: u64 = 2;

/// Replaces an address that `cuGetProcAddress` found by this library's function.
///
/// # Safety
/// `symbol` is null or a C string, and `found` is null or points to a valid pointer.
unsafe fn replace(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) {
    if symbol.is_null() || found.is_null() {
        return;
    }
    // SAFETY: the caller passes a C string.
    let base = unsafe { CStr::from_ptr(symbol) }.to_bytes();
    // SAFETY: the caller passes a pointer that the driver has written.
    let place = unsafe { &mut *found };
    let entry = ENTRIES.iter().filter(|entry| entry.base == base && entry.since <= version);
    let entry = entry.max_by_key(|entry| (entry.per_thread == (flags & PER_THREAD != 0), entry.since));
    if let Some(entry) = entry.filter(|_| !place.is_null()) {
        // A library that looks its own functions up finds this library's.
        if *place != entry.ours() {
            entry.keep(*place);
        }
        *place = entry.ours();
    }
}

entries! {
    "cuGetProcAddress" 11030
    fn cuGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64)
    |real| {
        let code = real();
        if code == 0 {
            // SAFETY: the driver has read the name and written the address.
            unsafe { replace(symbol, found, version, flags) };
        }
        code
    };
    "cuGetProcAddress" 12000
    fn cuGetProcAddress_v2(
        symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int
    )
    |real| {
        let code = real();
        if code == 0 {
            // SAFETY: the driver has read the name and written the address.
            unsafe { replace(symbol, found, version, flags) };
        }
        code
    };

    "cuMemAlloc" 3020 fn cuMemAlloc_v2(ptr: *mut u64, bytes: usize)
    |real| calls::allocate(ptr, bytes, false, real);
    "cuMemAllocManaged" 6000 fn cuMemAllocManaged(ptr: *mut u64, bytes: usize, flags: c_uint)
    |real| calls::allocate(ptr, bytes, true, real);
    "cuMemAllocPitch" 3020
    fn cuMemAllocPitch_v2(ptr: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint)
    |real| calls::allocate_pitch(ptr, pitch, width, height, real);
    "cuMemFree" 3020 fn cuMemFree_v2(ptr: u64)
    |real| calls::free(ptr, None, real);
    "cuMemAllocAsync" 11020 fn cuMemAllocAsync(ptr: *mut u64, bytes: usize, stream: Handle)
    |real| calls::allocate_async(ptr, bytes, stream, real);
    "cuMemAllocAsync" 11020 per_thread true
    fn cuMemAllocAsync_ptsz(ptr: *mut u64, bytes: usize, stream: Handle)
    |real| calls::allocate_async(ptr, bytes, calls::per_thread(stream), real);
    "cuMemAllocFromPoolAsync" 11020
    fn cuMemAllocFromPoolAsync(ptr: *mut u64, bytes: usize, pool: Handle, stream: Handle)
    |real| calls::allocate_async(ptr, bytes, stream, real);
    "cuMemAllocFromPoolAsync" 11020 per_thread true
    fn cuMemAllocFromPoolAsync_ptsz(ptr: *mut u64, bytes: usize, pool: Handle, stream: Handle)
    |real| calls::allocate_async(ptr, bytes, calls::per_thread(stream), real);
    "cuMemFreeAsync" 11020 fn cuMemFreeAsync(ptr: u64, stream: Handle)
    |real| calls::free(ptr, Some(stream), real);
    "cuMemFreeAsync" 11020 per_thread true fn cuMemFreeAsync_ptsz(ptr: u64, stream: Handle)
    |real| calls::free(ptr, Some(calls::per_thread(stream)), real);

    "cuMemCreate" 10020 fn cuMemCreate(handle: *mut u64, bytes: usize, props: *const c_void, flags: u64)
    |real| calls::create(handle, bytes, props, real);
    "cuMemRelease" 10020 fn cuMemRelease(handle: u64)
    |real| calls::release(handle, real);
    "cuMemRetainAllocationHandle" 11000 fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void)
    |real| calls::retain(handle, real);
    "cuMemMap" 10020 fn cuMemMap(ptr: u64, bytes: usize, offset: usize, handle: u64, flags: u64)
    |real| calls::map(ptr, bytes, handle, real);
    "cuMemUnmap" 10020 fn cuMemUnmap(ptr: u64, bytes: usize)
    |real| calls::unmap(ptr, bytes, real);

    "cuStreamBeginCapture" 10010 fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int)
    |real| calls::begin_capture(real);
    "cuStreamBeginCapture" 10010 per_thread true
    fn cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_int)
    |real| calls::begin_capture(real);
    "cuStreamBeginCaptureToGraph" 12030
    fn cuStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, dependencies: *const Handle, data: *const c_void, n: usize, mode: c_int
    )
    |real| calls::begin_capture(real);
    "cuStreamBeginCaptureToGraph" 12030 per_thread true
    fn cuStreamBeginCaptureToGraph_ptsz(
        stream: Handle, graph: Handle, dependencies: *const Handle, data: *const c_void, n: usize, mode: c_int
    )
    |real| calls::begin_capture(real);
    "cuStreamEndCapture" 10000 fn cuStreamEndCapture(stream: Handle, graph: *mut Handle)
    |real| calls::end_capture(real);
    "cuStreamEndCapture" 10000 per_thread true
    fn cuStreamEndCapture_ptsz(stream: Handle, graph: *mut Handle)
    |real| calls::end_capture(real);

    "cuMemGetInfo" 3020 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize)
    |real| calls::info(free, total, real);
    "cuMemGetAddressRange" 3020 fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, ptr: u64)
    |real| calls::range(base, bytes, ptr, real);
    "cuDeviceTotalMem" 3020 fn cuDeviceTotalMem_v2(total: *mut usize, device: c_int)
    |real| calls::total(total, real);

    "cuIpcGetMemHandle" 4010 fn cuIpcGetMemHandle(handle: *mut c_void, ptr: u64)
    |real| calls::share(ptr, real);

    "cuDevicePrimaryCtxRetain" 7000 fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int)
    |real| calls::retain_primary(context, device, real);
    "cuCtxCreate" 3020 fn cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: c_int)
    |real| calls::create_context(context, device, real);
    "cuCtxCreate" 11040
    fn cuCtxCreate_v3(context: *mut Handle, params: *mut c_void, n: c_int, flags: c_uint, device: c_int)
    |real| calls::create_context(context, device, real);
    "cuCtxCreate" 12050
    fn cuCtxCreate_v4(context: *mut Handle, params: *mut c_void, flags: c_uint, device: c_int)
    |real| calls::create_context(context, device, real);
    "cuDevicePrimaryCtxReset" 11000 fn cuDevicePrimaryCtxReset_v2(device: c_int)
    |real| calls::reset(device, real);
    "cuDevicePrimaryCtxRelease" 11000 fn cuDevicePrimaryCtxRelease_v2(device: c_int)
    |real| calls::release_primary(device, real);
    "cuCtxDestroy" 4000 fn cuCtxDestroy_v2(context: Handle)
    |real| calls::destroy(context, real);

    "cuModuleLoad" 2000 fn cuModuleLoad(module: *mut Handle, file: *const c_char)
    |real| calls::load(real);
    "cuModuleLoadData" 2000 fn cuModuleLoadData(module: *mut Handle, image: *const c_void)
    |real| calls::load(real);
    "cuModuleLoadDataEx" 2010
    fn cuModuleLoadDataEx(
        module: *mut Handle, image: *const c_void, n: c_uint, options: *mut c_int, values: *mut Handle
    )
    |real| calls::load(real);
    "cuModuleLoadFatBinary" 2000 fn cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void)
    |real| calls::load(real);
    "cuLibraryLoadData" 12000
    fn cuLibraryLoadData(
        library: *mut Handle, code: *const c_void, jit: *mut c_int, jit_values: *mut Handle, jit_n: c_uint,
        options: *mut c_int, values: *mut Handle, n: c_uint
    )
    |real| calls::load(real);
    "cuLibraryLoadFromFile" 12000
    fn cuLibraryLoadFromFile(
        library: *mut Handle, file: *const c_char, jit: *mut c_int, jit_values: *mut Handle, jit_n: c_uint,
        options: *mut c_int, values: *mut Handle, n: c_uint
    )
    |real| calls::load(real);
}
