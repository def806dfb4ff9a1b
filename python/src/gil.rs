//! Python's lock around code that may wait, and around the program's functions.
//!
//! PyO3 counts how often a thread took the lock through it. Other libraries call in here with the lock held
//! or not, and may have released it meanwhile, so that the count alone says nothing.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;

unsafe extern "C" {
    fn PyGILState_Check() -> c_int;
}

/// Whether the calling thread holds Python's lock; with free threading, whether it is attached.
pub(crate) fn is_held() -> bool {
    // SAFETY: the function may be called on any thread.
    unsafe { PyGILState_Check() == 1 }
}

/// Runs what may wait for the device, for another thread or for a function of the program's. If this thread
/// holds Python's lock, it is released meanwhile.
pub(crate) fn released(wait: impl FnOnce()) {
    struct Carried<F>(Option<F>);
    // SAFETY: the closure stays on this thread, and uses Python's objects only with the lock.
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
    // Without the lock; or at the interpreter's end, where no other thread runs Python.
    wait.run();
}

/// Whether the interpreter takes no thread any more.
fn is_at_end() -> bool {
    static ASK: OnceLock<Option<extern "C" fn() -> c_int>> = OnceLock::new();
    // SAFETY: the function may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } == 0 {
        return true;
    }
    let ask = ASK.get_or_init(|| {
        // The name since Python 3.13, and the one before.
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

/// Runs `body` with Python's lock. `None` if the interpreter is at its end.
///
/// A block may be freed while Python handles an exception: `body` runs without it, and it is pending again
/// afterwards. Python code that runs with a pending exception fails, or replaces it.
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
    // PyO3 may count this thread as attached, though CuPy's allocator has released the lock.
    // SAFETY: the interpreter runs; the state is given back below, on this thread.
    let state = unsafe { ffi::PyGILState_Ensure() };
    let answer = Python::try_attach(body);
    // SAFETY: the state is the one of above.
    unsafe { ffi::PyGILState_Release(state) };
    answer
}
