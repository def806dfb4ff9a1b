//! If a resource refuses to free a block, reports this as an error of the call.

use std::cell::RefCell;
use std::sync::{Arc, Once};
use std::thread;

use millpond_core::misuse::{self, Misuse};
use millpond_core::{DevicePtr, Error, Result};

thread_local! {
    /// The last misuse in each running call of this thread, the innermost call last. Calls can be nested,
    /// because a call may run functions of the program, which call the library again.
    static CALLS: RefCell<Vec<Option<Misuse>>> = const { RefCell::new(Vec::new()) };
}

/// Notes a misuse for this thread's innermost call. Returns whether there is such a call.
fn note(misuse: &Misuse) -> bool {
    let note = |calls: &RefCell<Vec<Option<Misuse>>>| {
        calls.borrow_mut().last_mut().map(|last| *last = Some(misuse.clone())).is_some()
    };
    CALLS.try_with(note).unwrap_or(false)
}

/// Notices misuse from now on, unless the program has its own hook. Outside of calls, this hook does the same
/// as the default hook.
fn notice() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = |misuse: &Misuse| {
            let is_noted = note(misuse);
            tracing::error!(target: "millpond::misuse", ptr = %misuse.ptr, bytes = misuse.bytes, "{misuse}");
            if cfg!(debug_assertions) && !is_noted && !thread::panicking() {
                panic!("{misuse}");
            }
        };
        if let Some(of_program) = misuse::set_hook(Some(Arc::new(hook))) {
            misuse::set_hook(Some(of_program));
        }
    });
}

/// A running call. The call ends when this value is dropped.
struct Call;

impl Call {
    fn begin() -> Self {
        let _ = CALLS.try_with(|calls| calls.borrow_mut().push(None));
        Self
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = CALLS.try_with(|calls| calls.borrow_mut().pop());
    }
}

/// Runs `free`, which calls `deallocate` with `ptr`.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the resource refused the block.
pub(crate) fn check_taken(ptr: DevicePtr, free: impl FnOnce()) -> Result<()> {
    notice();
    let _call = Call::begin();
    if misuse::is_taken(ptr, free) {
        return Ok(());
    }
    let last = CALLS.try_with(|calls| calls.borrow().last().cloned().flatten()).ok().flatten();
    let why = last.map_or_else(|| format!("the free of {ptr} was refused"), |misuse| misuse.to_string());
    Err(Error::invalid_argument(why))
}
