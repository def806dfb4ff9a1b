//! `malloc` and `free` for CuPy's `CFunctionAllocator`. CuPy calls them with the GIL held.
//!
//! If the thread's cache does not serve the call, the library releases the GIL. So no call holds the GIL
//! while it waits for the device, or for a thread that wants the GIL.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::api::api;

/// The context of the two functions. It lives until the process ends, because CuPy keeps its address.
struct Functions {
    /// CuPy's C function that returns the handle of its current stream, or -1 with an exception set.
    current_stream: extern "C" fn() -> isize,
    /// CuPy's Python function that returns the current stream's object, for streams that may end.
    stream_object: Py<PyAny>,
    /// Serves every request that this module does not serve: `(size, device) -> address`.
    otherwise: Py<PyAny>,
    /// One bit for each device whose requests this module can serve.
    plain_devices: AtomicU64,
}

/// The stream of each block that was not allocated on a default stream. The entry lives as long as the block.
static STREAMS: Mutex<Option<HashMap<usize, Py<PyAny>>>> = Mutex::new(None);
/// The number of entries in `STREAMS`, readable without its lock.
static STREAM_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The result that means a failure to CuPy, if an exception is set.
const FAILED: *mut c_void = without_provenance_mut(usize::MAX);

/// The highest handle of a default stream. Default streams never end.
const PER_THREAD: isize = 2;

fn keep_stream(address: usize, stream: Py<PyAny>) {
    let before = STREAMS.lock().get_or_insert_default().insert(address, stream);
    if before.is_none() {
        STREAM_COUNT.fetch_add(1, Ordering::Relaxed);
    }
    drop(before);
}

fn take_stream(address: usize) -> Option<Py<PyAny>> {
    if STREAM_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let kept = STREAMS.lock().as_mut()?.remove(&address);
    if kept.is_some() {
        STREAM_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    kept
}

/// Releases the GIL.
extern "C" fn leave() -> *mut c_void {
    // SAFETY: CuPy holds the GIL when it calls the functions below.
    unsafe { ffi::PyEval_SaveThread() }.cast()
}

/// Takes the GIL again.
extern "C" fn enter(state: *mut c_void) {
    // SAFETY: the state came from `leave`, on the same thread.
    unsafe { ffi::PyEval_RestoreThread(state.cast()) }
}

/// `void *(*)(void *, size_t, int)`
extern "C" fn allocate(functions: *mut c_void, bytes: usize, device: i32) -> *mut c_void {
    // SAFETY: CuPy passes on the address from `parameter`, which is valid until the process ends.
    let functions = unsafe { &*functions.cast::<Functions>() };
    let stream = (functions.current_stream)();
    if stream == -1 {
        return FAILED;
    }
    let is_plain = u32::try_from(device)
        .ok()
        .and_then(|device| 1_u64.checked_shl(device))
        .is_some_and(|bit| functions.plain_devices.load(Ordering::Relaxed) & bit != 0);
    if is_plain && (0..=PER_THREAD).contains(&stream) {
        let stream = without_provenance_mut(stream.cast_unsigned());
        // SAFETY: CuPy holds the GIL; a default stream is always alive.
        let ptr = unsafe { (api().malloc_unlocked)(bytes, device, stream, leave, enter) };
        if !ptr.is_null() {
            return ptr;
        }
    } else if is_plain && let Some(ptr) = allocate_on(functions, bytes, device, stream) {
        return ptr;
    }
    // At its end the interpreter lets no thread attach.
    let answer = Python::try_attach(|py| {
        let answer = functions.otherwise.call1(py, (bytes, device)).and_then(|answer| answer.extract(py));
        answer.map(without_provenance_mut).unwrap_or_else(|error: PyErr| {
            error.restore(py);
            FAILED
        })
    });
    answer.unwrap_or(FAILED)
}

/// Allocates on a stream that may end, and keeps the stream as long as the block lives. Returns `None` if
/// that fails, or if there is no memory.
fn allocate_on(functions: &Functions, bytes: usize, device: i32, stream: isize) -> Option<*mut c_void> {
    Python::try_attach(|py| {
        let object = functions.stream_object.call0(py).ok()?;
        let stream = without_provenance_mut(stream.cast_unsigned());
        // SAFETY: CuPy holds the GIL; the object keeps the stream alive.
        let ptr = unsafe { (api().malloc_unlocked)(bytes, device, stream, leave, enter) };
        if ptr.is_null() {
            return None;
        }
        keep_stream(ptr.addr(), object);
        Some(ptr)
    })?
}

/// `void (*)(void *, void *, int)`
extern "C" fn free(_functions: *mut c_void, ptr: *mut c_void, _device: i32) {
    let stream = take_stream(ptr.addr());
    // SAFETY: CuPy holds the GIL, and frees each block once; its stream is still alive.
    unsafe { (api().free_unlocked)(ptr, leave, enter) };
    if let Some(stream) = stream {
        // The stream may end with its last block.
        Python::try_attach(|_| drop(stream));
    }
}

/// The two functions for CuPy's `CFunctionAllocator`, and the context that CuPy passes to them.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct CupyFunctions(&'static Functions);

#[pymethods]
impl CupyFunctions {
    /// `current_stream` is the address of CuPy's C function of type `intptr_t (void)`.
    #[new]
    fn new(current_stream: usize, stream_object: Py<PyAny>, otherwise: Py<PyAny>) -> PyResult<Self> {
        if current_stream == 0 {
            return Err(pyo3::exceptions::PyValueError::new_err("the function's address is 0"));
        }
        // SAFETY: the caller got the address from CuPy, which documents this type.
        let current_stream = unsafe {
            std::mem::transmute::<*const (), extern "C" fn() -> isize>(current_stream as *const ())
        };
        let plain_devices = AtomicU64::new(0);
        let functions = Functions { current_stream, stream_object, otherwise, plain_devices };
        Ok(Self(Box::leak(Box::new(functions))))
    }

    /// The address of the context. CuPy passes it to both functions as the first argument.
    #[getter]
    fn parameter(&self) -> usize {
        std::ptr::from_ref(self.0).expose_provenance()
    }

    /// The address of `malloc`.
    #[getter]
    fn malloc(&self) -> usize {
        allocate as *const () as usize
    }

    /// The address of `free`.
    #[getter]
    fn free(&self) -> usize {
        free as *const () as usize
    }

    /// Sets whether this module may serve the requests of a device.
    fn set_plain(&self, device: u32, is_plain: bool) {
        let Some(bit) = 1_u64.checked_shl(device) else { return };
        if is_plain {
            self.0.plain_devices.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.0.plain_devices.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Keeps a stream until the block at this address is freed.
    #[staticmethod]
    fn keep(address: usize, stream: Py<PyAny>) {
        keep_stream(address, stream);
    }
}
