//! A stand-in for libcuda and libcublas that checks the order of streams, as far as `cudarc_fake.rs` needs.
//! That test compiles it.
//!
//! Work runs when it is submitted, in memory of the host. Clocks of streams, events and the host tell which
//! work a real device could run at the same time. These are problems: two unordered uses of a block if one of
//! them writes or frees, a free of no block, and a call without a context. `fake_problems` returns them.
#![allow(non_snake_case)]
#![allow(unexpected_cfgs)]

use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_CONTEXT: i32 = 201;
const NOT_FOUND: i32 = 500;
const CONTEXT: u64 = 0x1000;
const POOLS_SUPPORTED: i32 = 115;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// The key of the thread's per-thread default stream.
    static PER_THREAD: u64 = NEXT.fetch_add(1, SeqCst);
}

/// The numbers of streams and events; default streams have lower numbers.
static NEXT: AtomicU64 = AtomicU64::new(0x100);
/// The number of the next events whose creation fails.
static FAILING_EVENTS: AtomicU64 = AtomicU64::new(0);
static WAS_RESET: AtomicBool = AtomicBool::new(false);
/// The first event that a reset has not ended.
static FIRST_AFTER_RESET: AtomicU64 = AtomicU64::new(0);
static FREES: AtomicU64 = AtomicU64::new(0);
/// How often the host waited for a stream or for the device.
static HOST_WAITS: AtomicU64 = AtomicU64::new(0);
static DEVICE: Mutex<Device> = Mutex::new(Device::new());

/// How far each stream had advanced.
#[derive(Clone)]
struct Clock(BTreeMap<u64, u64>);

impl Clock {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn merge(&mut self, other: &Self) {
        for (&stream, &time) in &other.0 {
            let own = self.0.entry(stream).or_default();
            *own = time.max(*own);
        }
    }

    fn is_before(&self, other: &Self) -> bool {
        self.0.iter().all(|(stream, time)| other.0.get(stream).is_some_and(|other| time <= other))
    }
}

struct Block {
    bytes: u64,
    reads: Clock,
    writes: Clock,
}

struct Device {
    host: Clock,
    streams: BTreeMap<u64, Clock>,
    events: BTreeMap<u64, Clock>,
    blocks: BTreeMap<u64, Block>,
    problems: String,
}

impl Device {
    const fn new() -> Self {
        Self {
            host: Clock::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            blocks: BTreeMap::new(),
            problems: String::new(),
        }
    }

    fn problem(&mut self, text: String) {
        self.problems += &text;
        self.problems.push('\n');
    }

    fn stream(&mut self, key: u64) -> &mut Clock {
        let host = self.host.clone();
        let clock = self.streams.entry(key).or_insert(Clock::new());
        clock.merge(&host);
        clock
    }

    /// Records a use of the memory at an address by work that is submitted now.
    fn use_memory(&mut self, ptr: u64, bytes: u64, key: u64, is_write: bool) {
        let clock = self.stream(key);
        *clock.0.entry(key).or_default() += 1;
        let now = clock.clone();
        let Some((base, block)) = self.blocks.range_mut(..=ptr).next_back() else {
            return self.problem(format!("{ptr:#x} is in no block"));
        };
        let is_inside = ptr + bytes <= base + block.bytes;
        let is_ordered = block.writes.is_before(&now) && (!is_write || block.reads.is_before(&now));
        let uses = if is_write { &mut block.writes } else { &mut block.reads };
        uses.merge(&Clock(BTreeMap::from([(key, now.0[&key])])));
        if !is_inside {
            self.problem(format!("{bytes} bytes at {ptr:#x} are in no block"));
        }
        if !is_ordered {
            let what = if is_write { "written" } else { "read" };
            self.problem(format!("{ptr:#x} is {what} on stream {key:#x} without waiting for another"));
        }
    }

    fn wait_for_all(&mut self) {
        for clock in self.streams.values() {
            self.host.merge(clock);
        }
    }
}

/// Returns the stream that a handle names on this thread.
fn key_of(stream: u64) -> u64 {
    match stream {
        0 | 1 => 0,
        2 => PER_THREAD.with(|key| *key),
        _ => stream,
    }
}

/// Runs the body if a context is current.
fn in_context(body: impl FnOnce(&mut Device) -> i32) -> i32 {
    let mut device = DEVICE.lock().unwrap();
    if CURRENT.get() == CONTEXT {
        return body(&mut device);
    }
    device.problem("a call without a context".to_owned());
    INVALID_CONTEXT
}

/// Moves the problems to `into`, and returns their size in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_problems(into: *mut u8, capacity: usize) -> usize {
    let problems = std::mem::take(&mut DEVICE.lock().unwrap().problems);
    let len = problems.len().min(capacity);
    unsafe { into.copy_from_nonoverlapping(problems.as_ptr(), len) };
    len
}

/// Returns how many blocks were freed by `cuMemFreeAsync`.
#[unsafe(no_mangle)]
pub extern "C" fn fake_frees() -> u64 {
    FREES.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_host_waits() -> u64 {
    HOST_WAITS.load(SeqCst)
}

/// Returns whether the next work of `then` waits for the last work of `first`.
#[unsafe(no_mangle)]
pub extern "C" fn fake_is_ordered(first: u64, then: u64) -> bool {
    let mut device = DEVICE.lock().unwrap();
    let (first, then) = (key_of(first), key_of(then));
    let last = device.stream(first).0.get(&first).copied().unwrap_or(0);
    device.stream(then).0.get(&first).copied().unwrap_or(0) >= last
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_fail_events(count: u64) {
    FAILING_EVENTS.store(count, SeqCst);
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    unsafe { *count = 1 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    unsafe { *device = ordinal };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, _len: i32, _device: i32) -> i32 {
    unsafe { *name = 0 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, _device: i32) -> i32 {
    unsafe { *value = i32::from(attribute == POOLS_SUPPORTED) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_code: i32, text: *mut *const c_char) -> i32 {
    unsafe { *text = c"a made-up error".as_ptr() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, _device: i32) -> i32 {
    WAS_RESET.store(false, SeqCst);
    unsafe { *context = CONTEXT };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(_device: i32, flags: *mut u32, active: *mut i32) -> i32 {
    unsafe { (*flags, *active) = (0, i32::from(!WAS_RESET.load(SeqCst))) };
    0
}

/// The context counts as reset until it is retained again.
#[unsafe(no_mangle)]
pub extern "C" fn fake_reset() {
    FIRST_AFTER_RESET.store(NEXT.load(SeqCst), SeqCst);
    WAS_RESET.store(true, SeqCst);
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: i32) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut u64) -> i32 {
    unsafe { *context = CURRENT.get() };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> i32 {
    CURRENT.set(context);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> i32 {
    in_context(|device| {
        HOST_WAITS.fetch_add(1, SeqCst);
        device.wait_for_all();
        0
    })
}

unsafe fn new_stream(stream: *mut u64) -> i32 {
    unsafe { *stream = NEXT.fetch_add(1, SeqCst) };
    in_context(|_| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut u64, _flags: u32) -> i32 {
    unsafe { new_stream(stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut u64, _flags: u32, _priority: i32) -> i32 {
    unsafe { new_stream(stream) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(_stream: u64) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: u64) -> i32 {
    in_context(|device| {
        HOST_WAITS.fetch_add(1, SeqCst);
        let clock = device.stream(key_of(stream)).clone();
        device.host.merge(&clock);
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) -> i32 {
    in_context(|device| {
        let recorded = device.events.get(&event).cloned();
        device.stream(key_of(stream)).merge(&recorded.unwrap_or(Clock::new()));
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut u64, _flags: u32) -> i32 {
    if FAILING_EVENTS.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
        return OUT_OF_MEMORY;
    }
    unsafe { *event = NEXT.fetch_add(1, SeqCst) };
    in_context(|_| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: u64, stream: u64) -> i32 {
    in_context(|device| {
        let clock = device.stream(key_of(stream)).clone();
        device.events.insert(event, clock);
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> i32 {
    let mut device = DEVICE.lock().unwrap();
    device.events.remove(&event);
    if event < FIRST_AFTER_RESET.load(SeqCst) {
        device.problem("an event is destroyed that ended with its context".to_owned());
    }
    0
}

fn new_block(bytes: u64) -> u64 {
    // SAFETY: the size is not zero. The memory is never freed, so no later block has the same address.
    unsafe { alloc_zeroed(Layout::from_size_align(bytes.max(1) as usize, 256).unwrap()) as u64 }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut u64, bytes: u64) -> i32 {
    in_context(|device| {
        let base = new_block(bytes);
        device.blocks.insert(base, Block { bytes, reads: Clock::new(), writes: Clock::new() });
        unsafe { *ptr = base };
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(ptr: u64) -> i32 {
    in_context(|device| {
        device.wait_for_all();
        if device.blocks.remove(&ptr).is_some() { 0 } else { INVALID_VALUE }
    })
}

/// The block may be used only on this stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(ptr: *mut u64, bytes: u64, stream: u64) -> i32 {
    if bytes == 0 {
        return INVALID_VALUE;
    }
    let code = unsafe { cuMemAlloc_v2(ptr, bytes) };
    if code == 0 {
        in_context(|device| {
            device.use_memory(unsafe { *ptr }, bytes, key_of(stream), true);
            0
        })
    } else {
        code
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(ptr: u64, stream: u64) -> i32 {
    in_context(|device| {
        if !device.blocks.contains_key(&ptr) {
            device.problem(format!("{ptr:#x} is freed, which is no block"));
            return INVALID_VALUE;
        }
        device.use_memory(ptr, 0, key_of(stream), true);
        device.blocks.remove(&ptr);
        FREES.fetch_add(1, SeqCst);
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut u64, total: *mut u64) -> i32 {
    unsafe { (*free, *total) = (1 << 30, 1 << 30) };
    in_context(|_| 0)
}

unsafe fn copy(to: u64, from: u64, bytes: u64) {
    unsafe { (to as *mut u8).copy_from(from as *const u8, bytes as usize) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: u64, stream: u64) -> i32 {
    in_context(|device| {
        device.use_memory(to, bytes, key_of(stream), true);
        unsafe { copy(to, from, bytes) };
        0
    })
}

/// Host memory is pageable here, so the host waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: u64, stream: u64) -> i32 {
    in_context(|device| {
        device.use_memory(from, bytes, key_of(stream), false);
        unsafe { copy(to, from, bytes) };
        let clock = device.stream(key_of(stream)).clone();
        device.host.merge(&clock);
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: u64, stream: u64) -> i32 {
    in_context(|device| {
        device.use_memory(from, bytes, key_of(stream), false);
        device.use_memory(to, bytes, key_of(stream), true);
        unsafe { copy(to, from, bytes) };
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: u64, stream: u64) -> i32 {
    in_context(|device| {
        device.use_memory(to, bytes, key_of(stream), true);
        unsafe { (to as *mut u8).write_bytes(value, bytes as usize) };
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut u64, _image: *const c_void) -> i32 {
    unsafe { *module = 1 };
    in_context(|_| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(_module: u64) -> i32 {
    0
}

/// There are two kernels: `twice(values: *mut f32, count: u32)`, and `look`, which only reads them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut u64, _module: u64, name: *const c_char) -> i32 {
    let kernels = [c"twice", c"look"];
    let found = kernels.iter().position(|kernel| unsafe { CStr::from_ptr(name) } == *kernel);
    unsafe { *function = found.unwrap_or(0) as u64 + 1 };
    if found.is_some() { 0 } else { NOT_FOUND }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    _x: u32,
    _y: u32,
    _z: u32,
    _bx: u32,
    _by: u32,
    _bz: u32,
    _shared: u32,
    stream: u64,
    arguments: *const *const c_void,
    _extra: *const c_void,
) -> i32 {
    in_context(|device| {
        let values = unsafe { **arguments.cast::<*const u64>() };
        let count = unsafe { **arguments.add(1).cast::<*const u32>() };
        let is_write = function == 1;
        device.use_memory(values, u64::from(count) * 4, key_of(stream), is_write);
        if !is_write {
            return 0;
        }
        for at in 0..count as usize {
            unsafe { *(values as *mut f32).add(at) *= 2.0 };
        }
        0
    })
}

/// The stream of the only handle.
static BLAS_STREAM: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut u64) -> i32 {
    unsafe { *handle = 1 };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(_handle: u64) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(_handle: u64, stream: u64) -> i32 {
    BLAS_STREAM.store(stream, SeqCst);
    0
}

/// Column-major; neither matrix is transposed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSgemm_v2(
    _handle: u64,
    _transpose_a: u32,
    _transpose_b: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const f32,
    a: u64,
    lda: i32,
    b: u64,
    ldb: i32,
    beta: *const f32,
    c: u64,
    ldc: i32,
) -> i32 {
    in_context(|device| {
        let key = key_of(BLAS_STREAM.load(SeqCst));
        let [m, n, k, lda, ldb, ldc] = [m, n, k, lda, ldb, ldc].map(|size| size as usize);
        device.use_memory(a, (lda * k * 4) as u64, key, false);
        device.use_memory(b, (ldb * n * 4) as u64, key, false);
        device.use_memory(c, (ldc * n * 4) as u64, key, true);
        let at = |matrix: u64, index: usize| unsafe { *(matrix as *const f32).add(index) };
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let sum: f32 = (0..k).map(|i| at(a, i * lda + row) * at(b, column * ldb + i)).sum();
            let place = column * ldc + row;
            unsafe { *(c as *mut f32).add(place) = *alpha * sum + *beta * at(c, place) };
        }
        0
    })
}
