//! The stand-in's pools: they check their arguments and return numbers computed from them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::structs::{Access, Location, PoolProps};

const INVALID_VALUE: i32 = 1;

static CURRENT: AtomicU64 = AtomicU64::new(0);
static ACCESS: AtomicU32 = AtomicU32::new(0);

/// The kind of memory, the kind of place, and the place's number, as hexadecimal digits.
fn digits(kind: u32, location: &Location) -> u64 {
    u64::from(kind) << 12 | u64::from(location.kind) << 8 | location.id as u64
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(pool: *mut u64, props: *const PoolProps) -> i32 {
    let props = unsafe { &*props };
    if !props.win32.is_null() || props.reserved != [0; 54] {
        return INVALID_VALUE;
    }
    let described = u64::from(props.usage) << 32 | u64::from(props.handle_types) << 24;
    unsafe { *pool = described | digits(props.kind, &props.location) << 8 | props.max_size };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut u64, _device: i32) -> i32 {
    unsafe { *pool = CURRENT.load(SeqCst) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceSetMemPool(_device: i32, pool: u64) -> i32 {
    CURRENT.store(pool, SeqCst);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetDefaultMemPool(pool: *mut u64, location: *mut Location, kind: u32) -> i32 {
    unsafe { *pool = 0xd_0000 | digits(kind, &*location) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetMemPool(pool: *mut u64, location: *mut Location, kind: u32) -> i32 {
    unsafe { *pool = 0xc_0000 | digits(kind, &*location) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetMemPool(location: *mut Location, kind: u32, pool: u64) -> i32 {
    if digits(kind, unsafe { &*location }) != 0x1101 {
        return INVALID_VALUE;
    }
    CURRENT.store(pool, SeqCst);
    0
}

fn is_int(attribute: u32) -> bool {
    matches!(attribute, 1..=3 | 9..=12 | 14)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(_pool: u64, attribute: u32, value: *mut c_void) -> i32 {
    match attribute {
        1..=14 if is_int(attribute) => unsafe { *value.cast::<u32>() = !0xff | attribute },
        1..=14 => unsafe { *value.cast::<u64>() = !0xff | u64::from(attribute) },
        _ => return INVALID_VALUE,
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(_pool: u64, attribute: u32, value: *mut c_void) -> i32 {
    match attribute {
        1..=3 if unsafe { *value.cast::<u32>() } <= 1 => 0,
        4 if unsafe { *value.cast::<u64>() } == u64::MAX => 0,
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAccess(_pool: u64, access: *const Access, count: u64) -> i32 {
    let access = unsafe { &*access };
    match (count, access.location.kind, access.location.id) {
        (1, 1, 1) => ACCESS.store(access.flags, SeqCst),
        // A place of the host as it should be described.
        (1, 2, 0) | (1, 3, 7) | (1, 4, 0) => {}
        _ => return INVALID_VALUE,
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAccess(flags: *mut u32, _pool: u64, location: *mut Location) -> i32 {
    let location = unsafe { &*location };
    unsafe {
        *flags = match (location.kind, location.id) {
            (1, 1) => ACCESS.load(SeqCst),
            (3, 7) => 1,
            _ => 3,
        }
    };
    0
}

/// As CUDA answers for the memory of a pool on the host.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(_dst: u64, _src: *const c_void, _bytes: u64, _stream: u64) -> i32 {
    INVALID_VALUE
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(_dst: u64, _src: u64, _bytes: u64, _stream: u64) -> i32 {
    INVALID_VALUE
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(_dst: u64, _to: u64, _src: u64, _from: u64, _bytes: u64, _s: u64) -> i32 {
    INVALID_VALUE
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(_dst: *mut c_void, _src: u64, _bytes: u64, _stream: u64) -> i32 {
    INVALID_VALUE
}

/// Copies the host's memory, and nothing to or from address 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(dst: *mut u8, src: *const u8, bytes: usize, _stream: u64) -> i32 {
    if dst.addr() == 1 || src.addr() == 1 {
        return 2;
    }
    unsafe { dst.copy_from(src, bytes) };
    0
}
