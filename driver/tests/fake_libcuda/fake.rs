//! A stand-in for the driver library of CUDA 11.4, or of CUDA 13.2 with `--cfg pools`, as far as
//! `cuda_fake.rs` needs one. That test compiles it.
//!
//! It has two devices, or `FAKE_CUDA_DEVICES`. It does no work, and checks that the right context is current,
//! as a real driver would. `fake_retains` returns how often a device's primary context was retained. Its
//! contexts can be reset, and have ids as since CUDA 12.0, unless `FAKE_CUDA_IDS` is 0. The environment also
//! selects its failures: `FAKE_CUDA_INIT`, `FAKE_CUDA_RETAIN`, `FAKE_CUDA_ALLOC`, and the variables of
//! `work.rs` and `captures.rs`. With `--cfg empty` it is a library without any functions.
#![cfg(not(empty))]
#![allow(non_snake_case)]
#![allow(unexpected_cfgs)]

#[cfg(pools)]
#[path = "captures.rs"]
mod captures;
#[cfg(pools)]
#[path = "pools.rs"]
mod pools;
#[cfg(pools)]
#[path = "structs.rs"]
mod structs;
#[path = "work.rs"]
mod work;

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const INVALID_CONTEXT: i32 = 201;
const CONTEXT_IS_DESTROYED: i32 = 709;
const NOT_SUPPORTED: i32 = 801;
const INVALID_HANDLE: i32 = 400;
const NOT_READY: i32 = 600;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Handles of living streams. A new stream gets the lowest free handle, often one that a destroyed stream
/// had.
static STREAMS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

fn env(name: &str, otherwise: i32) -> i32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

fn context_of(device: i32) -> u64 {
    0x1000 + device as u64
}

fn is_alive(stream: u64) -> bool {
    stream <= 2 || STREAMS.lock().unwrap().contains(&stream)
}

/// How often each device's primary context was created, and whether it exists.
static MADE: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
static ACTIVE: [AtomicBool; 8] = [const { AtomicBool::new(false) }; 8];
static RETAINS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

fn is_gone(context: u64) -> bool {
    let device = context.wrapping_sub(0x1000) as usize;
    MADE.get(device).is_some_and(|made| made.load(SeqCst) > 0 && !ACTIVE[device].load(SeqCst))
}

fn in_context(answer: i32) -> i32 {
    match CURRENT.get() {
        0 => INVALID_CONTEXT,
        context if is_gone(context) => CONTEXT_IS_DESTROYED,
        _ => answer,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> i32 {
    env("FAKE_CUDA_INIT", 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    unsafe { *version = 11040 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    unsafe { *count = env("FAKE_CUDA_DEVICES", 2) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    unsafe { *device = ordinal };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, _device: i32) -> i32 {
    for (i, byte) in b"Fake\0".iter().enumerate().take(len as usize) {
        unsafe { *name.add(i) = *byte as c_char };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> i32 {
    RETAINS[device as usize].fetch_add(1, SeqCst);
    #[cfg(pools)]
    if let Err(code) = captures::unsafe_call() {
        return code;
    }
    match env("FAKE_CUDA_RETAIN", 0) {
        0 => {}
        code => return code,
    }
    if !ACTIVE[device as usize].swap(true, SeqCst) {
        MADE[device as usize].fetch_add(1, SeqCst);
    }
    unsafe { *context = context_of(device) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_retains(device: i32) -> u64 {
    RETAINS[device as usize].load(SeqCst)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> i32 {
    unsafe { *can = i32::from(device != peer) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, _device: i32) -> i32 {
    // Pools have file descriptors and fabric handles.
    unsafe { *value = if attribute == 119 { 1 | 8 } else { 1 } };
    0
}

/// As on an H200, the next retain of the context gets a new one under the same handle.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(device: i32) -> i32 {
    ACTIVE[device as usize].store(false, SeqCst);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32 {
    unsafe { (*flags, *active) = (0, i32::from(ACTIVE[device as usize].load(SeqCst))) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetId(context: u64, id: *mut u64) -> i32 {
    if env("FAKE_CUDA_IDS", 1) == 0 {
        return NOT_SUPPORTED;
    }
    let context = if context == 0 { CURRENT.get() } else { context };
    let Some(made) = MADE.get(context.wrapping_sub(0x1000) as usize) else { return INVALID_CONTEXT };
    unsafe { *id = made.load(SeqCst) << 8 | context };
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
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    unsafe { *device = (CURRENT.get() & 0xf) as i32 };
    in_context(0)
}

/// The address encodes the context of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut u64, _bytes: u64) -> i32 {
    unsafe { *ptr = CURRENT.get() << 32 };
    in_context(env("FAKE_CUDA_ALLOC", 0))
}

/// A pool's block whose context was reset: it can be freed only while no context is current.
const OF_POOL: u64 = 0x9 << 40;

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(ptr: u64) -> i32 {
    let home = if ptr == OF_POOL { 0 } else { ptr >> 32 };
    if home == CURRENT.get() { 0 } else { INVALID_CONTEXT }
}

/// Only the old function exists here, so a caller must fall back to it. The host is device -1.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPrefetchAsync(_ptr: u64, _bytes: u64, device: i32, stream: u64) -> i32 {
    match (device, is_alive(stream)) {
        (_, false) => INVALID_HANDLE,
        (-1..=7, true) => in_context(0),
        _ => 101,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, ptr: u64) -> i32 {
    match (ptr >> 32, attribute) {
        (0, _) => return 1,
        (_, 2) => unsafe { *value.cast::<u32>() = 2 },
        (_, 8) => unsafe { *value.cast::<u8>() = 0 },
        _ => return 1,
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut u64, _flags: u32, _priority: i32) -> i32 {
    let mut streams = STREAMS.lock().unwrap();
    let handle = (1..).map(|n| n << 20).find(|handle| !streams.contains(handle)).unwrap();
    streams.push(handle);
    unsafe { *stream = handle };
    in_context(0)
}

/// The lowest four bits, less 1, name the stream's device. The stream was never created.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: u64, context: *mut u64) -> i32 {
    match stream & 0xf {
        0 => INVALID_HANDLE,
        device => {
            unsafe { *context = context_of(device as i32 - 1) };
            0
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: u64) -> i32 {
    let mut streams = STREAMS.lock().unwrap();
    match streams.iter().position(|handle| *handle == stream) {
        Some(at) => {
            streams.remove(at);
            0
        }
        None => INVALID_HANDLE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut u64, flags: u32) -> i32 {
    let made = MADE.get(CURRENT.get().wrapping_sub(0x1000) as usize).map_or(0, |made| made.load(SeqCst));
    unsafe { *event = made << 32 | 0x5000 + u64::from(flags) };
    in_context(0)
}

/// Needs no context, because mappings outlive it.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(_ptr: u64, _bytes: u64) -> i32 {
    0
}

/// A real driver may crash if the stream was destroyed. This one reports it.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(_event: u64, stream: u64) -> i32 {
    #[cfg(pools)]
    captures::begin_at_record(stream);
    if is_alive(stream) { in_context(0) } else { INVALID_HANDLE }
}

/// A real driver crashes if the event's context was reset. So does this one.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: u64) -> i32 {
    let context = CURRENT.get().wrapping_sub(0x1000) as usize;
    if MADE.get(context).is_some_and(|made| made.load(SeqCst) != event >> 32) {
        std::process::abort();
    }
    in_context(NOT_READY)
}
