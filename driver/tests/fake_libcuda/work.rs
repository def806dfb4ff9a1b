//! The stand-in's work consists of host functions. Freeing its pinned memory waits for that work. With
//! `FAKE_CUDA_FREE_MS`, the free waits for nothing and takes that many milliseconds. A launch takes
//! `FAKE_CUDA_LAUNCH_MS`. `fake_waits` returns how often a caller waited for the whole context.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

static WORK: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());
static WAITS: AtomicU64 = AtomicU64::new(0);

/// Waits for all work.
fn finish() {
    let work = std::mem::take(&mut *WORK.lock().unwrap());
    work.into_iter().for_each(|one| one.join().unwrap());
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, _flags: u32) -> i32 {
    unsafe { *ptr = Box::leak(vec![0_u8; bytes].into_boxed_slice()).as_mut_ptr().cast() };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(_ptr: *mut c_void) -> i32 {
    match crate::env("FAKE_CUDA_FREE_MS", -1) {
        -1 => finish(),
        ms => thread::sleep(Duration::from_millis(ms as u64)),
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(
    _stream: u64,
    function: extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> i32 {
    let data = data as usize;
    WORK.lock().unwrap().push(thread::spawn(move || function(data as *mut c_void)));
    thread::sleep(Duration::from_millis(crate::env("FAKE_CUDA_LAUNCH_MS", 0) as u64));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(_stream: u64) -> i32 {
    finish();
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> i32 {
    #[cfg(pools)]
    if let Err(code) = crate::captures::wait_for_context() {
        return code;
    }
    WAITS.fetch_add(1, SeqCst);
    finish();
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_waits() -> u64 {
    WAITS.load(SeqCst)
}
