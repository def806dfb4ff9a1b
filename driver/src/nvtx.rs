//! Tells a memory checker which parts of a pool's memory are in use, through the memory interface of NVTX.
//! NVIDIA's compute-sanitizer is such a checker.
//!
//! A checker names its library in the environment variable `NVTX_INJECTION64_PATH`. This module loads the
//! library, and asks it for the functions of NVTX's memory extension (`nvToolsExtMem.h`, version 1.2). NVTX
//! is an interface of structures and function pointers, so no C compiler and no header is needed. A tool
//! without these functions, such as a profiler, is not a checker.
//!
//! The pools of millpond call the checker themselves. A program needs this module only for a pool of its own.

use std::ffi::{OsString, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;
use millpond_core::environment;
use millpond_core::{DeviceId, DevicePtr};

use crate::CurrentDeviceGuard;

/// The environment variable that names the library of a tool.
const VARIABLE: &str =
    if cfg!(target_pointer_width = "64") { "NVTX_INJECTION64_PATH" } else { "NVTX_INJECTION32_PATH" };
/// `NVTX_VERSION`.
const NVTX_VERSION: u16 = 3;
/// `NVTX_EXT_MODULEID_MEM`.
const MEMORY_MODULE: u16 = 1;
/// `NVTX_EXT_COMPATID_MEM`.
const COMPATIBILITY: u16 = 0x0102;
/// `NVTX_EXT_MEM_SLOT_COUNT`.
const SLOTS: usize = 63;
/// `NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR`.
const SUB_ALLOCATOR: u32 = 1;
/// `NVTX_MEM_TYPE_VIRTUAL_ADDRESS`.
const VIRTUAL_ADDRESS: u32 = 1;
/// `NVTX_MEM_REGION_REF_TYPE_POINTER`.
const BY_POINTER: u32 = 1;

/// `nvtxExtModuleSegment_t`.
#[repr(C)]
struct ModuleSegment {
    id: usize,
    slot_count: usize,
    slots: *mut Slot,
}

/// `nvtxExtModuleInfo_t`.
#[repr(C)]
struct ModuleInfo {
    version: u16,
    struct_size: u16,
    module: u16,
    compatibility: u16,
    segment_count: usize,
    segments: *mut ModuleSegment,
    get_export_function: *const c_void,
    extension_info: *const c_void,
}

/// `nvtxMemVirtualRangeDesc_t`.
#[repr(C)]
struct Range {
    bytes: usize,
    ptr: *const c_void,
}

/// `nvtxMemHeapDesc_t`.
#[repr(C)]
struct HeapDescription {
    compatibility: u16,
    struct_size: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    range_size: usize,
    range: *const Range,
    category: u32,
    message_type: u32,
    message: *const c_void,
}

/// `nvtxMemRegionsRegisterBatch_t`.
#[repr(C)]
struct RegisterBatch {
    compatibility: u16,
    struct_size: u16,
    kind: u32,
    heap: *const c_void,
    count: usize,
    range_size: usize,
    ranges: *const Range,
    handles: *mut c_void,
}

/// `nvtxMemRegionsUnregisterBatch_t`.
#[repr(C)]
struct UnregisterBatch {
    compatibility: u16,
    struct_size: u16,
    ref_type: u32,
    count: usize,
    ref_size: usize,
    refs: *const *const c_void,
}

/// A function of a tool, or null.
type Slot = *const c_void;
type Domain = *const c_void;
type Initialize = unsafe extern "C" fn(*mut ModuleInfo) -> c_int;
type RegisterHeap = unsafe extern "C" fn(Domain, *const HeapDescription) -> *const c_void;
type RegisterRegions = unsafe extern "C" fn(Domain, *const RegisterBatch);
type UnregisterRegions = unsafe extern "C" fn(Domain, *const UnregisterBatch);

/// A memory checker that is attached to this process.
#[derive(Clone, Copy, Debug)]
pub struct MemoryChecker {
    register_heap: RegisterHeap,
    register_regions: RegisterRegions,
    unregister_regions: UnregisterRegions,
}

/// Memory in which a checker allows access only to registered regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckedHeap(*const c_void);

// SAFETY: only the checker reads through the handle, and NVTX may be called from any thread.
unsafe impl Send for CheckedHeap {}
// SAFETY: as above.
unsafe impl Sync for CheckedHeap {}

/// A stand-in for a checker exports this symbol. It gets the calls of simulated devices, and no others.
const OF_SIMULATED_DEVICES: &str = "MillpondChecksSimulatedDevices";

impl MemoryChecker {
    /// Returns the checker that is attached to this process, if it checks the memory of this device. The
    /// first call loads the checker's library. If the device is a CUDA device, it must be open:
    /// compute-sanitizer ends a process that calls NVTX before it initialises CUDA.
    pub fn attached(device: DeviceId) -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<&'static Library>> = OnceLock::new();
        static ATTACHED: OnceLock<Option<MemoryChecker>> = OnceLock::new();
        let library = (*LIBRARY.get_or_init(|| environment::variable(VARIABLE).and_then(open)))?;
        // SAFETY: the symbol is only looked up.
        let is_stand_in = unsafe { library.get::<*const c_void>(OF_SIMULATED_DEVICES) }.is_ok();
        let is_its_device = if is_stand_in { device.is_sim() } else { device.is_cuda() };
        if is_its_device { ATTACHED.get_or_init(|| Self::of_library(library)).as_ref() } else { None }
    }

    fn of_library(library: &Library) -> Option<Self> {
        // SAFETY: this is the function's type in `nvtxExtTypes.h`.
        let initialize = unsafe { library.get::<Initialize>("InitializeInjectionNvtxExtension") }.ok()?;
        // The tool may keep the addresses of the slots, as in a program that uses NVTX's headers.
        let slots: &'static mut [Slot; SLOTS] = Box::leak(Box::new([ptr::null(); SLOTS]));
        let mut segment = ModuleSegment { id: 1, slot_count: SLOTS, slots: slots.as_mut_ptr() };
        let mut module = ModuleInfo {
            version: NVTX_VERSION,
            struct_size: size_of::<ModuleInfo>() as u16,
            module: MEMORY_MODULE,
            compatibility: COMPATIBILITY,
            segment_count: 1,
            segments: &raw mut segment,
            get_export_function: ptr::null(),
            extension_info: ptr::null(),
        };
        // SAFETY: the description is the one that NVTX's headers make; the tool reads it during the call.
        if unsafe { initialize(&raw mut module) } == 0 {
            return None;
        }
        let [heap, _, _, regions, _, end_of_regions, ..] = *slots;
        let is_checker = [heap, regions, end_of_regions].iter().all(|slot| !slot.is_null());
        // SAFETY: the tool filled the slots with functions of these types, which `nvToolsExtMem.h` declares
        // in this order.
        is_checker.then(|| unsafe {
            Self {
                register_heap: mem::transmute::<Slot, RegisterHeap>(heap),
                register_regions: mem::transmute::<Slot, RegisterRegions>(regions),
                unregister_regions: mem::transmute::<Slot, UnregisterRegions>(end_of_regions),
            }
        })
    }

    /// Registers an allocation as a heap: from now on, the checker reports each access that lies outside of
    /// the heap's regions. The heap ends when the memory is freed. `None` if the checker refuses the memory.
    ///
    /// compute-sanitizer accepts whole allocations of device memory, managed memory and pinned memory. For
    /// other memory, such as mapped pages, it prints a warning and counts it as an error.
    pub fn register_heap(&self, device: DeviceId, base: DevicePtr, bytes: u64) -> Option<CheckedHeap> {
        let _context = context(device);
        let range = range(base, bytes);
        let description = HeapDescription {
            compatibility: COMPATIBILITY,
            struct_size: size_of::<HeapDescription>() as u16,
            reserved: 0,
            usage: SUB_ALLOCATOR,
            kind: VIRTUAL_ADDRESS,
            range_size: size_of::<Range>(),
            range: &raw const range,
            category: 0,
            message_type: 0,
            message: ptr::null(),
        };
        // SAFETY: the tool only reads the description, and only during the call.
        let heap = unsafe { (self.register_heap)(ptr::null(), &raw const description) };
        // A loader without a tool returns all ones in some versions of NVTX.
        (!heap.is_null() && heap.addr() != usize::MAX).then_some(CheckedHeap(heap))
    }

    /// Registers a region of a heap: the checker allows access to its bytes.
    pub fn register(&self, device: DeviceId, heap: CheckedHeap, ptr: DevicePtr, bytes: u64) {
        let _context = context(device);
        let range = range(ptr, bytes);
        let batch = RegisterBatch {
            compatibility: COMPATIBILITY,
            struct_size: size_of::<RegisterBatch>() as u16,
            kind: VIRTUAL_ADDRESS,
            heap: heap.0,
            count: 1,
            range_size: size_of::<Range>(),
            ranges: &raw const range,
            handles: ptr::null_mut(),
        };
        // SAFETY: the tool only reads the description, and only during the call.
        unsafe { (self.register_regions)(ptr::null(), &raw const batch) }
    }

    /// Unregisters the region that starts at `ptr`. compute-sanitizer still allows the accesses of work that
    /// was submitted before this call.
    pub fn unregister(&self, device: DeviceId, ptr: DevicePtr) {
        let _context = context(device);
        let region = pointer(ptr);
        let batch = UnregisterBatch {
            compatibility: COMPATIBILITY,
            struct_size: size_of::<UnregisterBatch>() as u16,
            ref_type: BY_POINTER,
            count: 1,
            ref_size: size_of::<*const c_void>(),
            refs: &raw const region,
        };
        // SAFETY: the tool only reads the description, and only during the call.
        unsafe { (self.unregister_regions)(ptr::null(), &raw const batch) }
    }
}

/// Makes the device's context current: compute-sanitizer refuses calls without one.
fn context(device: DeviceId) -> Option<CurrentDeviceGuard> {
    if device.is_cuda() { CurrentDeviceGuard::new(device).ok() } else { None }
}

/// Loads the library of a tool. It is never unloaded, since the tool may have started threads.
fn open(path: OsString) -> Option<&'static Library> {
    // SAFETY: a tool's library may be loaded at any time.
    let loaded = unsafe { Library::new(&path) }.inspect_err(|error| {
        tracing::warn!(target: "millpond::nvtx", ?path, %error, "cannot load the library of an NVTX tool");
    });
    loaded.ok().map(|library| &*Box::leak(Box::new(library)))
}

fn range(base: DevicePtr, bytes: u64) -> Range {
    Range { bytes: bytes as usize, ptr: pointer(base) }
}

fn pointer(ptr: DevicePtr) -> *const c_void {
    ptr::without_provenance(ptr.address() as usize)
}
