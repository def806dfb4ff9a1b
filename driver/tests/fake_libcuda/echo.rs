//! A stand-in for libcuda that does nothing. It notes each call with its arguments, and has answers that no
//! other library has, so that a test can compare both. `cuda_calls.rs` compiles it.
//!
//! A test reads the notes with `echo_calls`, and chooses with `echo_refuse` which functions fail. The notes
//! leave out results, and functions that find a device or its context. Numbers are hexadecimal, except signed
//! ones. The two lowest bits of a stream's handle are the state of its capture.
#![allow(non_snake_case)]

mod structs;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

use structs::{Access, Location, PoolProps};

const INVALID_CONTEXT: i32 = 201;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The functions that fail, and their codes.
static REFUSED: Mutex<BTreeMap<String, i32>> = Mutex::new(BTreeMap::new());
static WORK: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// These functions need no current context.
const WITHOUT_CONTEXT: [&str; 6] = [
    "cuDriverGetVersion",
    "cuDeviceGetAttribute",
    "cuDeviceCanAccessPeer",
    "cuMemGetAllocationGranularity",
    "cuThreadExchangeStreamCaptureMode",
    "cuGraphDestroy",
];

/// Passes the calls since the last time to `take`, one in a line.
#[unsafe(no_mangle)]
pub extern "C" fn echo_calls(take: extern "C" fn(*const u8, usize)) {
    let calls = std::mem::take(&mut *CALLS.lock().unwrap()).join("\n");
    take(calls.as_ptr(), calls.len());
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn echo_refuse(name: *const c_char, code: i32) {
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    REFUSED.lock().unwrap().insert(name.to_owned(), code);
}

/// Notes a call, and returns the code with which it fails.
fn note(name: &str, arguments: &[Option<String>]) -> i32 {
    let arguments: String = arguments.iter().flatten().map(|argument| format!(" {argument}")).collect();
    CALLS.lock().unwrap().push(format!("{name}{arguments}"));
    if CURRENT.get() == 0 && !WITHOUT_CONTEXT.contains(&name) {
        return INVALID_CONTEXT;
    }
    refused(name)
}

/// Returns the code with which a function fails.
fn refused(name: &str) -> i32 {
    REFUSED.lock().unwrap().get(name).copied().unwrap_or(0)
}

/// An argument as the notes have it.
trait Said {
    fn said(&self) -> Option<String>;
}

macro_rules! said {
    ($($type:ty: $this:ident => $said:expr;)*) => {$(
        impl Said for $type {
            fn said(&self) -> Option<String> {
                let $this = self;
                $said
            }
        }
    )*};
}

/// A place for a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Said for Out<T> {
    fn said(&self) -> Option<String> {
        None
    }
}

/// A structure that the call reads.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Said> Said for In<T> {
    fn said(&self) -> Option<String> {
        unsafe { &*self.0 }.said()
    }
}

/// Opaque bytes, all the same.
#[repr(C)]
pub struct Bytes([u8; 64]);

#[repr(C)]
pub struct PhysicalProps {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

said! {
    i32: number => Some(number.to_string());
    u8: number => Some(format!("{number:x}"));
    u32: number => Some(format!("{number:x}"));
    u64: number => Some(format!("{number:x}"));
    *mut c_void: address => Some(format!("{:x}", address.addr()));
    *const c_char: text => Some(unsafe { CStr::from_ptr(*text) }.to_str().unwrap().to_owned());
    Bytes: bytes => Some(format!("{:x}..{:x}", bytes.0[0], bytes.0[63]));
    Location: place => Some(format!("{}@{}", place.kind, place.id));
    Access: access => Some(format!("{}:{}", access.location.said()?, access.flags));
    PoolProps: props => {
        let PoolProps { kind, handle_types, location, win32, max_size, usage, reserved } = props;
        let zeros = win32.is_null() && reserved == &[0; 54];
        Some(format!("{kind},{handle_types},{},{max_size},{usage},{zeros}", location.said()?))
    };
    PhysicalProps: props => {
        let PhysicalProps { kind, handle_types, location, win32, compression, rdma, usage, reserved } = props;
        let zeros = win32.is_null() && (compression, usage, reserved) == (&0, &0, &[0; 4]);
        Some(format!("{kind},{handle_types},{},{rdma},{zeros}", location.said()?))
    };
}

/// Functions with their arguments and results.
macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) $(=> $($out:ident = $value:expr),+)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            let code = note(stringify!($name), &[$($arg.said()),*]);
            if code == 0 {
                $($(unsafe { *$out.0 = $value };)+)?
            }
            code
        }
    )*};
}

calls! {
    cuDriverGetVersion(version: Out<i32>) => version = 13579;
    cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32)
        => value = 0x1_0008 | (attribute as i32) << 4;
    cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) => can = i32::from(device != 0x33);
    cuCtxSynchronize();

    cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) => free = 3, total = 5;
    cuMemAlloc_v2(ptr: Out<u64>, bytes: u64) => ptr = 0xa1;
    cuMemAllocManaged(ptr: Out<u64>, bytes: u64, flags: u32) => ptr = 0xa2;
    cuMemFree_v2(ptr: u64);
    cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<u64>, ptr: u64) => base = 0xa3, bytes = 0xa4;
    cuMemPrefetchAsync(ptr: u64, bytes: u64, device: i32, stream: u64);
    cuMemPrefetchAsync_v2(ptr: u64, bytes: u64, to: Location, flags: u32, stream: u64);
    cuMemAdvise(ptr: u64, bytes: u64, advice: u32, device: i32);
    cuMemAdvise_v2(ptr: u64, bytes: u64, advice: u32, location: Location);

    cuMemHostAlloc(ptr: Out<u64>, bytes: u64, flags: u32) => ptr = 0xa5;
    cuMemHostRegister_v2(ptr: *mut c_void, bytes: u64, flags: u32);
    cuMemHostUnregister(ptr: *mut c_void);
    cuMemHostGetDevicePointer_v2(out: Out<u64>, ptr: *mut c_void, flags: u32) => out = 0xa6;

    cuMemAllocAsync(ptr: Out<u64>, bytes: u64, stream: u64) => ptr = 0xa7;
    cuMemAllocFromPoolAsync(ptr: Out<u64>, bytes: u64, pool: u64, stream: u64) => ptr = 0xa8;
    cuMemFreeAsync(ptr: u64, stream: u64);
    cuMemPoolCreate(pool: Out<u64>, props: In<PoolProps>) => pool = 0xb1;
    cuMemPoolDestroy(pool: u64);
    cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) => pool = 0xb2;
    cuDeviceGetMemPool(pool: Out<u64>, device: i32) => pool = 0xb3;
    cuDeviceSetMemPool(device: i32, pool: u64);
    cuMemGetDefaultMemPool(pool: Out<u64>, location: In<Location>, kind: u32) => pool = 0xb4;
    cuMemGetMemPool(pool: Out<u64>, location: In<Location>, kind: u32) => pool = 0xb5;
    cuMemSetMemPool(location: In<Location>, kind: u32, pool: u64);
    cuMemPoolTrimTo(pool: u64, keep_bytes: u64);
    cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u64>) => value = 0xb6;
    cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: Out<u64>) => value = 0xb7;
    cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: In<u64>);
    cuDeviceGraphMemTrim(device: i32);
    cuMemPoolSetAccess(pool: u64, access: In<Access>, count: u64);
    cuMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<Location>) => flags = 1;
    cuMemPoolExportPointer(data: Out<Bytes>, ptr: u64) => data = Bytes([0xda; 64]);
    cuMemPoolImportPointer(ptr: Out<u64>, pool: u64, data: In<Bytes>) => ptr = 0xba;

    cuMemGetAllocationGranularity(bytes: Out<u64>, props: In<PhysicalProps>, option: u32) => bytes = 0xc1;
    cuMemAddressReserve(ptr: Out<u64>, bytes: u64, alignment: u64, hint: u64, flags: u64) => ptr = 0xc2;
    cuMemAddressFree(ptr: u64, bytes: u64);
    cuMemCreate(handle: Out<u64>, bytes: u64, props: In<PhysicalProps>, flags: u64) => handle = 0xc3;
    cuMemRelease(handle: u64);
    cuMemExportToShareableHandle(fd: Out<i32>, handle: u64, kind: u32, flags: u64) => fd = 0xc4;
    cuMemImportFromShareableHandle(handle: Out<u64>, os_handle: *mut c_void, kind: u32) => handle = 0xc5;
    cuMemMap(ptr: u64, bytes: u64, offset: u64, handle: u64, flags: u64);
    cuMemUnmap(ptr: u64, bytes: u64);
    cuMemSetAccess(ptr: u64, bytes: u64, access: In<Access>, count: u64);

    cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32)
        => stream = 0xd0 | u64::from(priority as u32 & 3);
    cuStreamDestroy_v2(stream: u64);
    cuStreamGetId(stream: u64, id: Out<u64>) => id = stream << 4;
    cuStreamSynchronize(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    cuStreamIsCapturing(stream: u64, status: Out<u32>) => status = stream as u32 & 3;
    cuStreamBeginCapture_v2(stream: u64, mode: u32);
    cuStreamEndCapture(stream: u64, graph: Out<u64>) => graph = 0xe1;
    cuGraphDestroy(graph: u64);
    cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, flags: u64) => exec = 0xe2;
    cuGraphLaunch(exec: u64, stream: u64);
    cuGraphExecDestroy(exec: u64);
    cuThreadExchangeStreamCaptureMode(mode: Exchanged) => mode = 1;

    cuEventCreate(event: Out<u64>, flags: u32) => event = 0xf1;
    cuEventDestroy_v2(event: u64);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);

    cuMemcpyAsync(dst: u64, src: u64, bytes: u64, stream: u64);
    cuMemcpyHtoDAsync_v2(dst: u64, src: *mut c_void, bytes: u64, stream: u64);
    cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, bytes: u64, stream: u64);
    cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: u64, stream: u64);
    cuMemcpyPeerAsync(dst: u64, to: u64, src: u64, from: u64, bytes: u64, stream: u64);
    cuMemsetD8Async(dst: u64, value: u8, bytes: u64, stream: u64);

    cuIpcGetMemHandle(handle: Out<Bytes>, ptr: u64) => handle = Bytes([0x1c; 64]);
    cuIpcOpenMemHandle_v2(ptr: Out<u64>, handle: Bytes, flags: u32) => ptr = 0xf2;
    cuIpcCloseMemHandle(ptr: u64);

    cuModuleUnload(module: u64);
    cuModuleGetFunction(function: Out<u64>, module: u64, name: *const c_char) => function = 0xf4;
}

/// A place that the call reads before it writes the result.
#[repr(transparent)]
pub struct Exchanged(*mut u32);

impl Said for Exchanged {
    fn said(&self) -> Option<String> {
        unsafe { *self.0 }.said()
    }
}

/// The address holds the results: the type of memory, whether it is managed, and the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, ptr: u64) -> i32 {
    let code = note("cuPointerGetAttribute", &[attribute.said(), ptr.said()]);
    unsafe {
        match attribute {
            _ if code != 0 => {}
            2 => *value.cast::<u32>() = ptr as u32 & 0xf,
            8 => *value.cast::<u8>() = (ptr >> 4) as u8 & 0xf,
            _ => *value.cast::<u64>() = ptr >> 8,
        }
    }
    code
}

/// The reuse policies are an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: *mut c_void) -> i32 {
    let value =
        unsafe { if attribute < 4 { (*value.cast::<u32>()).said() } else { (*value.cast::<u64>()).said() } };
    note("cuMemPoolSetAttribute", &[pool.said(), attribute.said(), value])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolExportToShareableHandle(
    out: *mut c_void,
    pool: u64,
    kind: u32,
    flags: u64,
) -> i32 {
    let code = note("cuMemPoolExportToShareableHandle", &[pool.said(), kind.said(), flags.said()]);
    unsafe {
        match kind {
            _ if code != 0 => {}
            1 => *out.cast::<i32>() = 0xb8,
            _ => *out.cast::<Bytes>() = Bytes([0xfa; 64]),
        }
    }
    code
}

/// A file descriptor is passed as a pointer, and a fabric handle through one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportFromShareableHandle(
    pool: *mut u64,
    os_handle: *mut c_void,
    kind: u32,
    flags: u64,
) -> i32 {
    let handle = if kind == 1 { os_handle.said() } else { unsafe { &*os_handle.cast::<Bytes>() }.said() };
    let code = note("cuMemPoolImportFromShareableHandle", &[handle, kind.said(), flags.said()]);
    if code == 0 {
        unsafe { *pool = 0xb9 };
    }
    code
}

/// The number of a stream's capture is its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: u64,
    status: *mut u32,
    id: *mut u64,
    _graph: *mut u64,
    _dependencies: *mut *const u64,
    _count: *mut u64,
) -> i32 {
    let code = note("cuStreamGetCaptureInfo_v2", &[stream.said()]);
    if code == 0 {
        unsafe { (*status, *id) = (stream as u32 & 3, stream) };
    }
    code
}

/// Work runs on a thread of its own until memory is freed.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(stream: u64, work: extern "C" fn(*mut c_void), data: *mut c_void) -> i32 {
    let code = note("cuLaunchHostFunc", &[stream.said()]);
    if code == 0 {
        let data = data as usize;
        WORK.lock().unwrap().push(thread::spawn(move || work(data as *mut c_void)));
    }
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(ptr: *mut c_void) -> i32 {
    let work = std::mem::take(&mut *WORK.lock().unwrap());
    work.into_iter().for_each(|one| one.join().unwrap());
    note("cuMemFreeHost", &[ptr.said()])
}

/// The log of wrong PTX needs all of its place. Other errors have no log.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut u64,
    image: *const c_char,
    count: u32,
    options: *mut [u32; 2],
    values: *mut [*mut c_void; 2],
) -> i32 {
    const INVALID_PTX: i32 = 218;
    let code = note("cuModuleLoadDataEx", &[image.said(), count.said()]);
    match (code, unsafe { (*options, *values) }) {
        (0, _) => unsafe { *module = 0xf3 },
        (INVALID_PTX, ([5, 6], [log, size])) => unsafe { log.cast::<u8>().write_bytes(b'L', size.addr()) },
        _ => {}
    }
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: u64,
    args: *mut c_void,
    extra: *mut c_void,
) -> i32 {
    let sizes = [grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes].map(|size| size.said());
    let pointers = [Some((!args.is_null()).to_string()), extra.said()];
    note("cuLaunchKernel", &[&[function.said()][..], &sizes, &[stream.said()], &pointers].concat())
}

// --- The devices and their contexts; not noted ---

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    unsafe { *count = 4 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    unsafe { *device = 0x30 + ordinal };
    0
}

/// The name needs all of its place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, _device: i32) -> i32 {
    unsafe { name.cast::<u8>().write_bytes(b'E', len as usize) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> i32 {
    unsafe { *context = 0x1000 + device as u64 };
    refused("cuDevicePrimaryCtxRetain")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: i32) -> i32 {
    0
}

/// All contexts are active, except the context of `cuda:1`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32 {
    unsafe { (*flags, *active) = (0, i32::from(device != 0x31)) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetId(context: u64, id: *mut u64) -> i32 {
    unsafe { *id = if context == 0 { CURRENT.get() } else { context } };
    refused("cuCtxGetId")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut u64) -> i32 {
    unsafe { *context = CURRENT.get() };
    refused("cuCtxGetCurrent")
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> i32 {
    match refused("cuCtxSetCurrent") {
        0 => CURRENT.set(context),
        code => return code,
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    unsafe { *device = CURRENT.get() as i32 - 0x1000 };
    0
}
