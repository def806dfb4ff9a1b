//! `malloc` and `free` for CuPy's `CFunctionAllocator`, which calls them with the GIL held.
//!
//! The library releases it unless the thread has the block in its cache, so that no call waits for the
//! device, or for a thread that waits for the GIL, while it is held.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::api::api;

/// What the two functions need. It lives as long as the process, as CuPy's memory keeps its address.
struct Functions {
    /// CuPy's own function for the handle of its current stream; -1 with an exception if it fails.
    current_stream: extern "C" fn() -> isize,
    /// The same as an object, for streams that may end.
    stream_object: Py<PyAny>,
    /// Serves what the function here does not: `(size, device) -> address`.
    otherwise: Py<PyAny>,
    /// A bit for each device whose requests need nothing but memory.
    plain_devices: AtomicU64,
}

/// The stream of each block that is not of a default stream, which lives as long as the block.
static STREAMS: Mutex<Option<HashMap<usize, Py<PyAny>>>> = Mutex::new(None);
/// How many there are, readable without the lock.
static STREAM_COUNT: AtomicUsize = AtomicUsize::new(0);

/// What CuPy reads as a failure, if an exception is set.
const FAILED: *mut c_void = without_provenance_mut(usize::MAX);

/// The last default stream: these never end.
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
    // SAFETY: the state is that of `leave`, on the same thread.
    unsafe { ffi::PyEval_RestoreThread(state.cast()) }
}

/// `void *(*)(void *, size_t, int)`
extern "C" fn allocate(functions: *mut c_void, bytes: usize, device: i32) -> *mut c_void {
    // SAFETY: CuPy passes on what `parameter` says, which lives as long as the process.
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
    // The interpreter that ends takes no thread any more.
    let answer = Python::try_attach(|py| {
        let answer = functions.otherwise.call1(py, (bytes, device)).and_then(|answer| answer.extract(py));
        answer.map(without_provenance_mut).unwrap_or_else(|error: PyErr| {
            error.restore(py);
            FAILED
        })
    });
    answer.unwrap_or(FAILED)
}

/// The same for a stream that may end: the block keeps it. `None` if that fails, or there is no memory.
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
    // SAFETY: CuPy holds the GIL, and gives each block back once; its stream lives on.
    unsafe { (api().free_unlocked)(ptr, leave, enter) };
    if let Some(stream) = stream {
        // The last block of a stream may end it.
        Python::try_attach(|_| drop(stream));
    }
}

/// The two functions for CuPy's `CFunctionAllocator`, and what it passes to them.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct CupyFunctions(&'static Functions);

#[pymethods]
impl CupyFunctions {
    /// `current_stream` is the address of CuPy's C function of the type `intptr_t (void)`.
    #[new]
    fn new(current_stream: usize, stream_object: Py<PyAny>, otherwise: Py<PyAny>) -> PyResult<Self> {
        if current_stream == 0 {
            return Err(pyo3::exceptions::PyValueError::new_err("the function's address is 0"));
        }
        // SAFETY: the caller has the address from CuPy, which says that it is of this type.
        let current_stream = unsafe {
            std::mem::transmute::<*const (), extern "C" fn() -> isize>(current_stream as *const ())
        };
        let plain_devices = AtomicU64::new(0);
        let functions = Functions { current_stream, stream_object, otherwise, plain_devices };
        Ok(Self(Box::leak(Box::new(functions))))
    }

    /// What the functions get first.
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

    /// Says whether the requests of a device need nothing but memory.
    fn set_plain(&self, device: u32, is_plain: bool) {
        let Some(bit) = 1_u64.checked_shl(device) else { return };
        if is_plain {
            self.0.plain_devices.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.0.plain_devices.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Keeps a stream as long as a block of it.
    #[staticmethod]
    fn keep(address: usize, stream: Py<PyAny>) {
        keep_stream(address, stream);
    }
}
