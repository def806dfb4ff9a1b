//! Blocks that a resource refuses to take back, as errors of the call.

use std::cell::RefCell;
use std::sync::{Arc, Once};

use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{Error, Result};

thread_local! {
    /// The first refusal of the call that runs.
    static REFUSED: RefCell<Option<Misuse>> = const { RefCell::new(None) };
}

/// Notices refusals from now on, unless the program has a hook of its own.
fn notice() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = |misuse: &Misuse| {
            tracing::error!(target: "millpond::misuse", ptr = %misuse.ptr, bytes = misuse.bytes, "{misuse}");
            if misuse.kind != MisuseKind::DeadStream {
                let _ = REFUSED.try_with(|slot| {
                    slot.borrow_mut().get_or_insert_with(|| misuse.clone());
                });
            }
        };
        if let Some(of_program) = misuse::set_hook(Some(Arc::new(hook))) {
            misuse::set_hook(Some(of_program));
        }
    });
}

/// Runs `free`, a call of `deallocate`.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the block was refused.
pub(crate) fn check_taken(free: impl FnOnce()) -> Result<()> {
    notice();
    let take = || REFUSED.try_with(RefCell::take).ok().flatten();
    // What was left by a call that reports no error, as the end of a buffer.
    drop(take());
    free();
    take().map_or(Ok(()), |misuse| Err(Error::invalid_argument(misuse.to_string())))
}
