//! A stand-in for libcuda with several devices (`FAKE_CUDA_DEVICES`, or else 4), which `test_devices.py`
//! loads.
//!
//! Memory is host memory, and work is done when it is submitted. `fake_retains` returns the number of retains
//! of a device's primary context. A call without a context, or with another device's stream, fails as in
//! CUDA. Virtual memory and CUDA's own pools are missing.
#![allow(non_snake_case)]
#![allow(unexpected_cfgs)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_CONTEXT: i32 = 201;
const INVALID_HANDLE: i32 = 400;
const TOTAL_BYTES: u64 = 8 << 30;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

static RETAINS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
/// The size and the device of each block.
static BLOCKS: Mutex<BTreeMap<u64, (u64, u64)>> = Mutex::new(BTreeMap::new());
/// The device of each stream.
static STREAMS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0x100);

fn device_of(context: u64) -> Option<u64> {
    context.checked_sub(0x1000).filter(|device| *device < 8)
}

/// Runs the body with the device of the current context.
fn in_context(body: impl FnOnce(u64) -> i32) -> i32 {
    match device_of(CURRENT.get()) {
        Some(device) if RETAINS[device as usize].load(SeqCst) > 0 => body(device),
        _ => INVALID_CONTEXT,
    }
}

/// Runs the body if the stream belongs to the current context.
fn on_stream(stream: u64, body: impl FnOnce() -> i32) -> i32 {
    in_context(|device| {
        let of_device = stream <= 2 || STREAMS.lock().unwrap().get(&stream) == Some(&device);
        if of_device { body() } else { INVALID_HANDLE }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_retains(device: i32) -> u64 {
    RETAINS[device as usize].load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    unsafe { *version = 12080 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    let named = std::env::var("FAKE_CUDA_DEVICES").ok();
    unsafe { *count = named.and_then(|count| count.parse().ok()).unwrap_or(4) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    unsafe { *device = ordinal };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) -> i32 {
    let text = format!("Fake {device}\0");
    for (i, byte) in text.bytes().enumerate().take(len as usize) {
        unsafe { *name.add(i) = byte as c_char };
    }
    0
}

/// No device has virtual memory, pools or the like.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, _attribute: u32, _device: i32) -> i32 {
    unsafe { *value = 0 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> i32 {
    unsafe { *can = i32::from(device != peer) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> i32 {
    RETAINS[device as usize].fetch_add(1, SeqCst);
    unsafe { *context = 0x1000 + device as u64 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32 {
    unsafe { (*flags, *active) = (0, i32::from(RETAINS[device as usize].load(SeqCst) > 0)) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetId(context: u64, id: *mut u64) -> i32 {
    let context = if context == 0 { CURRENT.get() } else { context };
    unsafe { *id = context };
    if device_of(context).is_some() { 0 } else { INVALID_CONTEXT }
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
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    in_context(|current| {
        unsafe { *device = current as i32 };
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> i32 {
    in_context(|_| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut u64, total: *mut u64) -> i32 {
    in_context(|device| {
        let blocks = BLOCKS.lock().unwrap();
        let used: u64 = blocks.values().filter(|block| block.1 == device).map(|block| block.0).sum();
        unsafe { (*free, *total) = (TOTAL_BYTES - used, TOTAL_BYTES) };
        0
    })
}

fn layout(bytes: u64) -> Option<Layout> {
    Layout::from_size_align(bytes as usize, 512).ok().filter(|layout| layout.size() > 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut u64, bytes: u64) -> i32 {
    in_context(|device| {
        let Some(layout) = layout(bytes).filter(|_| bytes <= TOTAL_BYTES) else { return OUT_OF_MEMORY };
        let block = unsafe { alloc_zeroed(layout) };
        if block.is_null() {
            return OUT_OF_MEMORY;
        }
        BLOCKS.lock().unwrap().insert(block as u64, (bytes, device));
        unsafe { *ptr = block as u64 };
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(ptr: u64) -> i32 {
    in_context(|device| match BLOCKS.lock().unwrap().remove(&ptr) {
        Some((bytes, owner)) if owner == device => {
            unsafe { dealloc(ptr as *mut u8, layout(bytes).unwrap()) };
            0
        }
        _ => INVALID_VALUE,
    })
}

/// Answers only for device memory. Other addresses are an invalid value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, ptr: u64) -> i32 {
    let blocks = BLOCKS.lock().unwrap();
    let known = blocks.range(..=ptr).next_back().filter(|(base, block)| ptr < *base + block.0);
    let Some((_, block)) = known else { return INVALID_VALUE };
    match attribute {
        2 => unsafe { *value.cast::<u32>() = 2 },
        8 => unsafe { *value.cast::<u8>() = 0 },
        9 => unsafe { *value.cast::<u32>() = block.1 as u32 },
        _ => return INVALID_VALUE,
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut u64, _flags: u32, _priority: i32) -> i32 {
    in_context(|device| {
        let handle = NEXT.fetch_add(1, SeqCst);
        STREAMS.lock().unwrap().insert(handle, device);
        unsafe { *stream = handle };
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: u64) -> i32 {
    if STREAMS.lock().unwrap().remove(&stream).is_some() { 0 } else { INVALID_HANDLE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: u64, context: *mut u64) -> i32 {
    match STREAMS.lock().unwrap().get(&stream) {
        Some(device) => {
            unsafe { *context = 0x1000 + device };
            0
        }
        None => INVALID_HANDLE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetId(stream: u64, id: *mut u64) -> i32 {
    unsafe { *id = stream };
    on_stream(stream, || 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: u64) -> i32 {
    on_stream(stream, || 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: u64) -> i32 {
    on_stream(stream, || 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: u64, _event: u64, _flags: u32) -> i32 {
    on_stream(stream, || 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: u64, status: *mut u32) -> i32 {
    unsafe { *status = 0 };
    on_stream(stream, || 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(_mode: *mut u32) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut u64, _flags: u32) -> i32 {
    unsafe { *event = NEXT.fetch_add(1, SeqCst) };
    in_context(|_| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(_event: u64) -> i32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(_event: u64, stream: u64) -> i32 {
    on_stream(stream, || 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(_event: u64) -> i32 {
    in_context(|_| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(_event: u64) -> i32 {
    in_context(|_| 0)
}

fn copy(dst: u64, src: u64, bytes: u64, stream: u64) -> i32 {
    on_stream(stream, || {
        unsafe { (dst as *mut u8).copy_from(src as *const u8, bytes as usize) };
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, bytes: u64, stream: u64) -> i32 {
    copy(dst, src as u64, bytes, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, bytes: u64, stream: u64) -> i32 {
    copy(dst as u64, src, bytes, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: u64, stream: u64) -> i32 {
    copy(dst, src, bytes, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(dst: u64, value: u8, bytes: u64, stream: u64) -> i32 {
    on_stream(stream, || {
        unsafe { (dst as *mut u8).write_bytes(value, bytes as usize) };
        0
    })
}
