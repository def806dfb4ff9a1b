//! The GIL around code that may wait, and around the program's functions.
//!
//! PyO3 counts how often a thread took the GIL through PyO3. Other libraries call into this module with or
//! without the GIL, and may have released the GIL since then. So the count alone says nothing.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;

unsafe extern "C" {
    fn PyGILState_Check() -> c_int;
}

/// Returns whether the calling thread holds the GIL or, with free threading, is attached.
pub(crate) fn is_held() -> bool {
    // SAFETY: the function may be called on any thread.
    unsafe { PyGILState_Check() == 1 }
}

/// Returns whether the calling thread runs Python, or did so before. A thread that another library started
/// has no frames of Python. If it attached, it would wait for the GIL, whose holder may wait for this thread.
pub(crate) fn has_state() -> bool {
    // SAFETY: the function may be called on any thread.
    is_held() || !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null()
}

/// Runs code that may wait for the device, another thread or one of the program's functions. If this thread
/// holds the GIL, the call releases it for that time.
pub(crate) fn released(wait: impl FnOnce()) {
    struct Carried<F>(Option<F>);
    // SAFETY: the closure stays on this thread, and uses Python objects only with the GIL.
    unsafe impl<F> Send for Carried<F> {}

    impl<F: FnOnce()> Carried<F> {
        fn run(&mut self) {
            if let Some(wait) = self.0.take() {
                wait();
            }
        }
    }

    let mut wait = Carried(Some(wait));
    if is_held() {
        Python::try_attach(|py| py.detach(|| wait.run()));
    }
    // The closure runs here if this thread does not hold the GIL. It also runs here at the interpreter's end,
    // when no other thread runs Python code.
    wait.run();
}

/// Returns whether the interpreter is ending, so that no thread can attach.
fn is_at_end() -> bool {
    static ASK: OnceLock<Option<extern "C" fn() -> c_int>> = OnceLock::new();
    // SAFETY: the function may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        return true;
    }
    let ask = ASK.get_or_init(|| {
        // The function's name since Python 3.13, and its older name.
        [c"Py_IsFinalizing", c"_Py_IsFinalizing"].into_iter().find_map(|name| {
            // SAFETY: the name is a string.
            let found: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: both functions have this type.
            (!found.is_null())
                .then(|| unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(found) })
        })
    });
    ask.is_some_and(|ask| ask() != 0)
}

/// Runs `body` with the GIL. If the interpreter is ending, returns `None`.
///
/// A block may be freed while Python handles an exception. Python code that runs with a pending exception
/// fails, or replaces the exception. So the exception is set aside while `body` runs, and is set again
/// afterwards.
pub(crate) fn attached<T>(body: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let body = |py: Python<'_>| {
        let pending = PyErr::take(py);
        let answer = body(py);
        if let Some(pending) = pending {
            pending.restore(py);
        }
        answer
    };
    if is_held() {
        return Python::try_attach(body);
    }
    if is_at_end() {
        return None;
    }
    // PyO3 may count this thread as attached even after CuPy's allocator released the GIL.
    // SAFETY: the interpreter runs; this thread gives the state back below.
    let state = unsafe { ffi::PyGILState_Ensure() };
    let answer = Python::try_attach(body);
    // SAFETY: the state comes from the call above.
    unsafe { ffi::PyGILState_Release(state) };
    answer
}
