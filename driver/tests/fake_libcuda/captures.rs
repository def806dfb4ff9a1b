//! The stand-in's captures. Calls that could end a capture are refused and end it, as on an H200. With
//! `FAKE_CUDA_CAPTURE_AT_RECORD`, a capture begins on a stream just before an event is recorded there. Every
//! graph has the nodes 1, 2 and 3: a kernel, an allocation and a free.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

const CAPTURE_UNSUPPORTED: i32 = 900;
const CAPTURE_INVALIDATED: i32 = 901;
/// In this mode, a thread's calls leave captures alone.
const RELAXED: u32 = 2;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(0) };
}

/// The capturing stream, and its capture's state: 1 if active, 2 after it was invalidated.
static CAPTURE: (AtomicU64, AtomicU32) = (AtomicU64::new(0), AtomicU32::new(0));
/// The number of the most recent capture.
static CAPTURES: AtomicU64 = AtomicU64::new(0);

fn captures(stream: u64) -> bool {
    CAPTURE.1.load(SeqCst) != 0 && CAPTURE.0.load(SeqCst) == stream
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: u64, _mode: u32) -> i32 {
    CAPTURE.0.store(stream, SeqCst);
    CAPTURE.1.store(1, SeqCst);
    CAPTURES.fetch_add(1, SeqCst);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(_stream: u64, graph: *mut u64) -> i32 {
    unsafe { *graph = 0 };
    if CAPTURE.1.swap(0, SeqCst) == 1 { 0 } else { CAPTURE_INVALIDATED }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: u64,
    status: *mut u32,
    id: *mut u64,
    _graph: *mut u64,
    _dependencies: *mut *const u64,
    _count: *mut u64,
) -> i32 {
    unsafe {
        *status = if captures(stream) { CAPTURE.1.load(SeqCst) } else { 0 };
        // As in CUDA, the number is written only for an active capture.
        if *status == 1 {
            *id = CAPTURES.load(SeqCst);
        }
    }
    0
}

/// Refused for a capturing stream, whose capture it ends, as on an H200.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetId(stream: u64, id: *mut u64) -> i32 {
    if captures(stream) {
        return invalidate();
    }
    unsafe { *id = stream >> 20 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(_graph: u64, nodes: *mut u64, count: *mut usize) -> i32 {
    unsafe {
        if !nodes.is_null() {
            (0..*count).for_each(|index| *nodes.add(index) = 1 + index as u64);
        }
        *count = 3;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(node: u64, kind: *mut u32) -> i32 {
    const INVALID_VALUE: i32 = 1;
    let Some(of_node) = [0, 10, 11].get((node as usize).wrapping_sub(1)) else { return INVALID_VALUE };
    unsafe { *kind = *of_node };
    0
}

fn invalidate() -> i32 {
    CAPTURE.1.store(2, SeqCst);
    CAPTURE_UNSUPPORTED
}

/// A call that is unsafe during a capture, unless the thread is in the relaxed mode.
pub(crate) fn unsafe_call() -> Result<(), i32> {
    let is_refused = CAPTURE.1.load(SeqCst) == 1 && MODE.get() != RELAXED;
    if is_refused { Err(invalidate()) } else { Ok(()) }
}

pub(crate) fn begin_at_record(stream: u64) {
    if crate::env("FAKE_CUDA_CAPTURE_AT_RECORD", 0) == 1 {
        cuStreamBeginCapture_v2(stream, 0);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> i32 {
    unsafe { *mode = MODE.replace(*mode) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: u64, status: *mut u32) -> i32 {
    unsafe { *status = if captures(stream) { CAPTURE.1.load(SeqCst) } else { 0 } };
    0
}

/// Refused during any capture, in every mode.
pub(crate) fn wait_for_context() -> Result<(), i32> {
    if CAPTURE.1.load(SeqCst) == 0 { Ok(()) } else { Err(invalidate()) }
}
