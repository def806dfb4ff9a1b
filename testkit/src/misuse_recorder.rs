//! Records the misuse (refused calls) of the current thread.
//!
//! A process has only one [hook](millpond_core::misuse) for misuse, but tests run on many threads. [`record`]
//! installs one hook permanently, which keeps the reports of each thread apart. On a thread that does not
//! record, the hook panics, as the default hook does. For each report, it calls the [guest] of the thread.

use std::cell::RefCell;
use std::sync::{Arc, Once};

use millpond_core::misuse::{Misuse, set_hook};

use crate::guest;

thread_local! {
    /// One list for each active recording, innermost last.
    static RECORDINGS: RefCell<Vec<Vec<Misuse>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body`. Returns its result, and the misuse that it caused on this thread.
///
/// ```
/// use millpond_core::misuse::{Misuse, MisuseKind, report};
/// use millpond_core::{DevicePtr, StreamRef};
/// let (ptr, stream) = (DevicePtr::new(0x1000), StreamRef::LEGACY);
/// let misuse = Misuse::new(MisuseKind::DoubleFree, ptr, 256, stream, "cuda+pool");
/// let ((), reports) = millpond_testkit::misuse_recorder::record(|| report(&misuse));
/// assert_eq!(reports, [misuse]);
/// ```
pub fn record<T>(body: impl FnOnce() -> T) -> (T, Vec<Misuse>) {
    install();
    let recording = Recording::start();
    let result = body();
    (result, recording.finish())
}

/// Installs the hook, if that was not done before.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let hook = Arc::new(|misuse: &Misuse| {
            let recorded = RECORDINGS
                .with_borrow_mut(|lists| lists.last_mut().map(|list| list.push(misuse.clone())).is_some());
            assert!(recorded || std::thread::panicking(), "{misuse}");
            guest::called(None);
        });
        drop(set_hook(Some(hook)));
    });
}

/// Ends the recording, even if the body panics.
struct Recording;

impl Recording {
    fn start() -> Self {
        RECORDINGS.with_borrow_mut(|lists| lists.push(Vec::new()));
        Self
    }

    fn finish(self) -> Vec<Misuse> {
        std::mem::forget(self);
        RECORDINGS.with_borrow_mut(Vec::pop).unwrap_or_default()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDINGS.with_borrow_mut(Vec::pop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::misuse::{MisuseKind, report};
    use millpond_core::{DevicePtr, StreamRef};

    fn misuse(bytes: u64) -> Misuse {
        let ptr = DevicePtr::new(0x1000);
        Misuse::new(MisuseKind::ForeignPointer, ptr, bytes, StreamRef::LEGACY, "test")
    }

    #[test]
    fn recordings_nest_and_threads_are_apart() {
        let (inner, outer) = record(|| {
            report(&misuse(1));
            let ((), inner) = record(|| report(&misuse(2)));
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(record(|| report(&misuse(3))).1, [misuse(3)]));
            });
            inner
        });
        assert_eq!(inner, [misuse(2)]);
        assert_eq!(outer, [misuse(1)]);
    }

    #[test]
    fn a_thread_that_does_not_record_panics() {
        drop(record(|| ()));
        assert!(std::panic::catch_unwind(|| report(&misuse(4))).is_err());
    }

    #[test]
    fn a_panic_ends_the_recording() {
        assert!(std::panic::catch_unwind(|| record(|| panic!("on purpose"))).is_err());
        assert!(RECORDINGS.with_borrow(Vec::is_empty));
    }
}
