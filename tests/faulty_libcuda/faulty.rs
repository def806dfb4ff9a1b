//! A library that stands in front of CUDA's driver library and makes chosen calls fail. The test
//! `fault_operations` compiles it as `libcuda.so.1`.
//!
//! It exports the functions that millpond looks up: the build's variable `MILLPOND_FUNCTIONS` names a file
//! with the table of `driver/src/cuda/functions.rs`. Each function either returns the planned error code, or
//! calls the function of the driver library that the variable `MILLPOND_REAL_CUDA` names. If that library
//! lacks the function, it returns millpond's own code for that.
//!
//! The library counts the objects that were created and not ended. It says that the device has [`CAPACITY`]
//! bytes of memory, so that percentages of it are small.
#![allow(improper_ctypes_definitions)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64, Ordering::SeqCst};

const CAPACITY: u64 = 256 << 20;

/// `DriverError::NO_SYMBOL`.
const NO_SYMBOL: i32 = -2;

/// Whether a function's calls are counted, and fail as planned. The others concern only the thread's or the
/// process's context, or make the test's own work.
fn is_counted(name: &str) -> bool {
    const FAMILIES: [&str; 6] =
        ["cuCtxGet", "cuCtxSet", "cuDevicePrimaryCtx", "cuGraph", "cuModule", "cuLaunchKernel"];
    let is_left_out = matches!(
        name,
        "cuInit"
            | "cuDriverGetVersion"
            | "cuDeviceGet"
            | "cuDeviceGetCount"
            | "cuDeviceGetName"
            | "cuStreamBeginCapture_v2"
            | "cuStreamEndCapture"
    );
    !is_left_out && !FAMILIES.iter().any(|family| name.starts_with(family))
}

/// The kinds of objects: allocations, events, streams.
static LIVE: [AtomicI64; 3] = [const { AtomicI64::new(0) }; 3];
const ALLOCATIONS: usize = 0;
const EVENTS: usize = 1;
const STREAMS: usize = 2;

/// What a call that succeeds does: it creates or ends an object of a kind.
enum Effect {
    Creates(usize),
    /// The first argument is the object. Ending 0 does nothing.
    Ends(usize),
    Informs,
    None,
}

fn effect(name: &str) -> Effect {
    match name {
        "cuMemAlloc_v2"
        | "cuMemAllocManaged"
        | "cuMemAllocAsync"
        | "cuMemAllocFromPoolAsync"
        | "cuMemHostAlloc"
        | "cuMemHostRegister_v2"
        | "cuMemPoolCreate"
        | "cuMemPoolImportFromShareableHandle"
        | "cuMemPoolImportPointer"
        | "cuMemAddressReserve"
        | "cuMemCreate"
        | "cuMemImportFromShareableHandle"
        | "cuIpcOpenMemHandle_v2" => Effect::Creates(ALLOCATIONS),
        "cuMemFree_v2"
        | "cuMemFreeAsync"
        | "cuMemFreeHost"
        | "cuMemHostUnregister"
        | "cuMemPoolDestroy"
        | "cuMemAddressFree"
        | "cuMemRelease"
        | "cuIpcCloseMemHandle" => Effect::Ends(ALLOCATIONS),
        "cuEventCreate" => Effect::Creates(EVENTS),
        "cuEventDestroy_v2" => Effect::Ends(EVENTS),
        "cuStreamCreateWithPriority" => Effect::Creates(STREAMS),
        "cuStreamDestroy_v2" => Effect::Ends(STREAMS),
        "cuMemGetInfo_v2" => Effect::Informs,
        _ => Effect::None,
    }
}

/// The plan: the number of the failing call, its code, and whether all later calls fail.
static FAILING: AtomicU64 = AtomicU64::new(u64::MAX);
static CODE: AtomicI32 = AtomicI32::new(0);
static IS_PERSISTENT: AtomicBool = AtomicBool::new(false);
/// The name of the function that failed first under the last plan with a failing call.
static FAILED: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
/// The counted calls so far.
static CALLS: AtomicU64 = AtomicU64::new(0);

struct Function {
    /// With a NUL at its end.
    name: &'static str,
    /// The address in the driver library; 0 if the library lacks the function.
    address: OnceLock<usize>,
    /// How many calls failed as planned since the plan was set.
    failed: AtomicU64,
}

#[link(name = "dl")]
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;

fn driver_library() -> usize {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let file = std::env::var("MILLPOND_REAL_CUDA").expect("MILLPOND_REAL_CUDA names the driver library");
        let file = CString::new(file).expect("a path has no NUL");
        let library = unsafe { dlopen(file.as_ptr(), RTLD_NOW) };
        assert!(!library.is_null(), "{:?}", unsafe { CStr::from_ptr(dlerror()) });
        library as usize
    })
}

impl Function {
    const fn new(name: &'static str) -> Self {
        Self { name, address: OnceLock::new(), failed: AtomicU64::new(0) }
    }

    /// Returns the planned code of this call, if it fails.
    fn planned(&self) -> Option<i32> {
        if !is_counted(self.name.trim_end_matches('\0')) {
            return None;
        }
        let (call, failing) = (CALLS.fetch_add(1, SeqCst), FAILING.load(SeqCst));
        let fails = call == failing || (call > failing && IS_PERSISTENT.load(SeqCst));
        fails.then(|| {
            self.failed.fetch_add(1, SeqCst);
            if call == failing {
                FAILED.store(self.name.as_ptr().cast_mut().cast(), SeqCst);
            }
            CODE.load(SeqCst)
        })
    }

    fn address(&self) -> usize {
        *self.address.get_or_init(|| unsafe {
            dlsym(driver_library() as *mut c_void, self.name.as_ptr().cast()) as usize
        })
    }

    /// Makes the call. `arguments` are its arguments as numbers.
    fn call(&self, arguments: &[u64], call: impl FnOnce(usize) -> i32) -> i32 {
        if let Some(code) = self.planned() {
            return code;
        }
        let code = match self.address() {
            0 => NO_SYMBOL,
            address => call(address),
        };
        if code == 0 {
            self.note(arguments);
        }
        code
    }

    fn note(&self, arguments: &[u64]) {
        match effect(self.name.trim_end_matches('\0')) {
            Effect::Creates(kind) => _ = LIVE[kind].fetch_add(1, SeqCst),
            Effect::Ends(kind) if arguments[0] != 0 => _ = LIVE[kind].fetch_sub(1, SeqCst),
            Effect::Informs => {
                for place in arguments.iter().map(|argument| *argument as *mut u64) {
                    unsafe { *place = CAPACITY.min(*place) };
                }
            }
            Effect::Ends(_) | Effect::None => {}
        }
    }
}

/// The value of an argument of at most eight bytes, as a number.
fn number<T>(argument: &T) -> u64 {
    let (mut number, bytes) = (0_u64, size_of::<T>().min(size_of::<u64>()));
    unsafe { std::ptr::from_ref(argument).cast::<u8>().copy_to((&raw mut number).cast(), bytes) };
    number
}

/// Sets the plan: the call with this number from now, counted from 0, fails with this code. A negative number
/// makes no call fail.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_faults_plan(call: i64, code: i32, is_persistent: bool) {
    FUNCTIONS.iter().for_each(|function| function.failed.store(0, SeqCst));
    if call >= 0 {
        FAILED.store(std::ptr::null_mut(), SeqCst);
    }
    CODE.store(code, SeqCst);
    IS_PERSISTENT.store(is_persistent, SeqCst);
    FAILING.store(u64::try_from(call).map_or(u64::MAX, |call| CALLS.load(SeqCst) + call), SeqCst);
}

/// Returns the number of counted calls so far.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_faults_calls() -> u64 {
    CALLS.load(SeqCst)
}

/// Returns how many calls of the function failed as planned since the plan was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_faults_failed(name: *const c_char) -> u64 {
    let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    let name = std::str::from_utf8(name).expect("names are ASCII");
    FUNCTIONS[position(name)].failed.load(SeqCst)
}

/// Returns the name of the function that failed as planned; null if none has.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_faults_name() -> *const c_char {
    FAILED.load(SeqCst)
}

/// Returns the living objects of a kind.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_faults_live(kind: usize) -> i64 {
    LIVE[kind].load(SeqCst)
}

/// The position of a name in the table.
const fn position(name: &str) -> usize {
    let mut at = 0;
    while !is_same(NAMES[at].as_bytes(), name.as_bytes()) {
        at += 1;
    }
    at
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

macro_rules! functions {
    ($($method:ident($($arg:ident: $type:ty),*) = $name:literal $($suffix:literal)?;)*) => {
        const NAMES: &[&str] = &[$(concat!($name $(, $suffix)?, "\0")),*];
        static FUNCTIONS: [Function; NAMES.len()] = [$(Function::new(concat!($name $(, $suffix)?, "\0"))),*];
        $(
            #[unsafe(export_name = concat!($name $(, $suffix)?))]
            pub unsafe extern "C" fn $method($($arg: $type),*) -> i32 {
                let function = &FUNCTIONS[const { position(concat!($name $(, $suffix)?, "\0")) }];
                function.call(&[$(number(&$arg)),*], |address| {
                    type Real = unsafe extern "C" fn($($type),*) -> i32;
                    unsafe { std::mem::transmute::<usize, Real>(address)($($arg),*) }
                })
            }
        )*
    };
}

// The arguments that are passed by value have the size that `driver/src/cuda/abi.rs` gives them. The others
// are behind pointers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location(u32, i32);
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle([u8; 64]);
pub type AllocationProp = c_void;
pub type AccessDesc = c_void;
pub type PoolProps = c_void;
pub type PtrExportData = c_void;

include!(env!("MILLPOND_FUNCTIONS"));
