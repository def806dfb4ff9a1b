//! A stand-in for the driver library of CUDA 11.4, as far as `cuda_fake.rs` needs one. That test compiles it.
//!
//! It has two devices, does nothing, and checks what a real driver would: that the right context is current.
//! The environment says how it fails: `FAKE_CUDA_INIT`, `FAKE_CUDA_DEVICES`, `FAKE_CUDA_ALLOC`. With
//! `--cfg empty` it is a library without any function.
#![cfg(not(empty))]
#![allow(non_snake_case)]

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;

const INVALID_CONTEXT: i32 = 201;
const INVALID_HANDLE: i32 = 400;
const NOT_READY: i32 = 600;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Handles of living streams. A new stream gets the lowest free one, hence often that of a destroyed stream.
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

fn in_context(answer: i32) -> i32 {
    if CURRENT.get() == 0 { INVALID_CONTEXT } else { answer }
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
    unsafe { *context = context_of(device) };
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

/// The address says in which context it was called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut u64, _bytes: u64) -> i32 {
    unsafe { *ptr = CURRENT.get() << 32 };
    in_context(env("FAKE_CUDA_ALLOC", 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(ptr: u64) -> i32 {
    if ptr == CURRENT.get() << 32 { 0 } else { INVALID_CONTEXT }
}

/// Only the old function is here, so a caller has to fall back on it. The host is device -1.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPrefetchAsync(_ptr: u64, _bytes: u64, device: i32, stream: u64) -> i32 {
    match (device, is_alive(stream)) {
        (_, false) => INVALID_HANDLE,
        (-1..=1, true) => in_context(0),
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
    unsafe { *event = 0x5000 + u64::from(flags) };
    in_context(0)
}

/// A real driver may crash when the stream is gone. This one says so.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(_event: u64, stream: u64) -> i32 {
    if is_alive(stream) { in_context(0) } else { INVALID_HANDLE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(_event: u64) -> i32 {
    in_context(NOT_READY)
}
