//! The table of entry points, and the exported functions, which call through it.
#![allow(non_snake_case, reason = "the functions have CUDA's names")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::runtime::{self, Handle};

/// Declares each entry point once: its place in the table, our own function behind it, and the export.
macro_rules! entry_points {
    ($(fn $module:ident::$name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        /// A function for each entry point.
        ///
        /// The exports of the library call through a table. [`EntryPoints::OWN`] has the functions of this
        /// crate, which work on the calling thread's driver.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[non_exhaustive]
        pub struct EntryPoints {
            /// The size of the table in bytes, by which a library knows a table of its own version.
            pub bytes: usize,
            $(
                #[doc = concat!("`", stringify!($name), "` of CUDA's runtime.")]
                pub $name: unsafe extern "C" fn($($kind),*) -> $result,
            )*
        }

        impl EntryPoints {
            /// The functions of this crate.
            pub const OWN: &Self = &Self {
                bytes: size_of::<Self>(),
                $($name: runtime::$module::$name,)*
            };
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                // SAFETY: the table's function has this entry point's contract, so the caller keeps it.
                unsafe { (installed().$name)($($argument),*) }
            }
        )*
    };
}

entry_points! {
    fn device::cudaGetDeviceCount(count: *mut c_int) -> c_int;
    fn device::cudaGetDevice(device: *mut c_int) -> c_int;
    fn device::cudaSetDevice(device: c_int) -> c_int;
    fn device::cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int;
    fn device::cudaDeviceSynchronize() -> c_int;
    fn device::cudaRuntimeGetVersion(version: *mut c_int) -> c_int;
    fn device::cudaDriverGetVersion(version: *mut c_int) -> c_int;
    fn device::cudaGetLastError() -> c_int;
    fn device::cudaPeekAtLastError() -> c_int;
    fn device::cudaGetErrorName(error: c_int) -> *const c_char;
    fn device::cudaGetErrorString(error: c_int) -> *const c_char;
    fn memory::cudaMalloc(ptr: *mut *mut c_void, bytes: usize) -> c_int;
    fn memory::cudaMallocManaged(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int;
    fn memory::cudaFree(ptr: *mut c_void) -> c_int;
    fn memory::cudaMallocHost(ptr: *mut *mut c_void, bytes: usize) -> c_int;
    fn memory::cudaHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int;
    fn memory::cudaFreeHost(ptr: *mut c_void) -> c_int;
    fn memory::cudaMemGetInfo(free: *mut usize, total: *mut usize) -> c_int;
    fn memory::cudaPointerGetAttributes(attributes: *mut c_void, ptr: *const c_void) -> c_int;
    fn memory::cudaMemcpy(dst: *mut c_void, src: *const c_void, bytes: usize, kind: c_int) -> c_int;
    fn memory::cudaMemcpyAsync(
        dst: *mut c_void, src: *const c_void, bytes: usize, kind: c_int, stream: Handle
    ) -> c_int;
    fn memory::cudaMemset(ptr: *mut c_void, value: c_int, bytes: usize) -> c_int;
    fn memory::cudaMemsetAsync(ptr: *mut c_void, value: c_int, bytes: usize, stream: Handle) -> c_int;
    fn pools::cudaMallocAsync(ptr: *mut *mut c_void, bytes: usize, stream: Handle) -> c_int;
    fn pools::cudaMallocFromPoolAsync(
        ptr: *mut *mut c_void, bytes: usize, pool: Handle, stream: Handle
    ) -> c_int;
    fn pools::cudaFreeAsync(ptr: *mut c_void, stream: Handle) -> c_int;
    fn pools::cudaMemPoolCreate(pool: *mut Handle, props: *const c_void) -> c_int;
    fn pools::cudaMemPoolDestroy(pool: Handle) -> c_int;
    fn pools::cudaMemPoolTrimTo(pool: Handle, keep_bytes: usize) -> c_int;
    fn pools::cudaMemPoolSetAttribute(pool: Handle, attribute: c_int, value: *mut c_void) -> c_int;
    fn pools::cudaMemPoolGetAttribute(pool: Handle, attribute: c_int, value: *mut c_void) -> c_int;
    fn pools::cudaDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int) -> c_int;
    fn pools::cudaDeviceGetMemPool(pool: *mut Handle, device: c_int) -> c_int;
    fn pools::cudaDeviceSetMemPool(device: c_int, pool: Handle) -> c_int;
    fn order::cudaStreamCreate(stream: *mut Handle) -> c_int;
    fn order::cudaStreamCreateWithFlags(stream: *mut Handle, flags: c_uint) -> c_int;
    fn order::cudaStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) -> c_int;
    fn order::cudaStreamDestroy(stream: Handle) -> c_int;
    fn order::cudaStreamSynchronize(stream: Handle) -> c_int;
    fn order::cudaStreamQuery(stream: Handle) -> c_int;
    fn order::cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> c_int;
    fn order::cudaStreamGetId(stream: Handle, id: *mut u64) -> c_int;
    fn order::cudaStreamIsCapturing(stream: Handle, status: *mut c_int) -> c_int;
    fn order::cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int;
    fn order::cudaEventCreate(event: *mut Handle) -> c_int;
    fn order::cudaEventCreateWithFlags(event: *mut Handle, flags: c_uint) -> c_int;
    fn order::cudaEventDestroy(event: Handle) -> c_int;
    fn order::cudaEventRecord(event: Handle, stream: Handle) -> c_int;
    fn order::cudaEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) -> c_int;
    fn order::cudaEventQuery(event: Handle) -> c_int;
    fn order::cudaEventSynchronize(event: Handle) -> c_int;
}

/// The table behind this library's exports; null means this library's own.
static INSTALLED: AtomicPtr<EntryPoints> = AtomicPtr::new(std::ptr::null_mut());

fn installed() -> &'static EntryPoints {
    // SAFETY: `millpond_shim_install` stores only tables that live as long as the process.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }.unwrap_or(EntryPoints::OWN)
}

/// Puts another table behind the exports. Returns whether the table has this library's version.
///
/// # Safety
/// `table` is null or points to a table that lives as long as the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_shim_install(table: *const EntryPoints) -> bool {
    // SAFETY: the caller guarantees that the table is valid.
    let fits = unsafe { table.as_ref() }.is_none_or(|table| table.bytes == size_of::<EntryPoints>());
    if fits {
        INSTALLED.store(table.cast_mut(), Ordering::Release);
    }
    fits
}

/// The opened library, whose exports call this program's functions.
#[derive(Debug)]
pub struct Shim {
    _library: libloading::os::unix::Library,
}

impl Shim {
    /// The file name of the library.
    pub const FILE: &str = "libmillpond_shim.so";

    /// Opens the library for all libraries that this process opens later, and lets its exports call
    /// [`EntryPoints::OWN`] of this program.
    ///
    /// # Errors
    /// If the file cannot be opened, or if another version of this crate built it.
    pub fn open(file: &Path) -> Result<Self, String> {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        let failed = |error: libloading::Error| format!("{}: {error}", file.display());
        // SAFETY: the library is built from this crate, and opening it runs no code of ours.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.map_err(failed)?;
        type Install = unsafe extern "C" fn(*const EntryPoints) -> bool;
        // SAFETY: the library exports this function with this type.
        let install = unsafe { library.get::<Install>("millpond_shim_install") }.map_err(failed)?;
        // SAFETY: the table is a constant.
        if unsafe { install(EntryPoints::OWN) } {
            return Ok(Self { _library: library });
        }
        Err(format!("{}: another version of millpond-shim built this library", file.display()))
    }

    /// Opens the library that Cargo built next to this program.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn next_to_program() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program's file: {error}"))?;
        let folders = program.ancestors().skip(1).take(2);
        let found = folders.map(|folder| folder.join(Self::FILE)).find(|file| file.exists());
        let file = found.ok_or_else(|| format!("{} is not next to {}", Self::FILE, program.display()))?;
        Self::open(&file)
    }
}
