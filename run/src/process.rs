//! The process: whether the driver works in it, where a call comes from, and its files.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, Ordering};

/// The process has not used the driver.
const UNUSED: u8 = 0;
/// The process uses the driver.
const USED: u8 = 1;
/// The process is a child of `fork` of a process that had used the driver, which does not work there.
const CHILD: u8 = 2;

static USE: AtomicU8 = AtomicU8::new(UNUSED);

/// Returns whether the driver works in this process.
fn works() -> bool {
    match USE.load(Ordering::Acquire) {
        UNUSED => {
            if USE.compare_exchange(UNUSED, USED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // SAFETY: the function may be called in a child of `fork`.
                unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            }
            true
        }
        use_ => use_ == USED,
    }
}

unsafe extern "C" fn in_child() {
    USE.store(CHILD, Ordering::Release);
}

/// Where the calls of a thread come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caller {
    Program,
    /// The driver, or this library.
    Library,
    /// A stack of this library, which serves a request of the program.
    Stack,
}

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::Program) };
}

/// Marks the calling thread as inside of this library, until the value is dropped. Calls of the driver that
/// the driver or this library makes in the meantime are passed on.
pub(crate) struct Inside {
    before: Caller,
}

impl Inside {
    /// Returns `None` if the call must be passed on: it comes from inside, or the thread is ending, or the
    /// process is a child of `fork`.
    pub(crate) fn enter() -> Option<Self> {
        let before = CALLER.try_with(|caller| caller.replace(Caller::Library)).ok()?;
        let inside = Self { before };
        (before != Caller::Library && works()).then_some(inside)
    }

    /// Returns whether the program itself makes the call.
    pub(crate) fn is_of_program(&self) -> bool {
        self.before == Caller::Program
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = CALLER.try_with(|caller| caller.set(self.before));
    }
}

/// Marks the calling thread as inside of a stack, until the value is dropped. The stack's calls of the driver
/// count towards the budget.
pub(crate) struct Serving {
    before: Option<Caller>,
}

impl Serving {
    pub(crate) fn enter() -> Self {
        Self { before: CALLER.try_with(|caller| caller.replace(Caller::Stack)).ok() }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = CALLER.try_with(|caller| caller.set(before));
        }
    }
}

/// Prints a message for the user. If the standard error is closed or full, the message is lost.
pub(crate) fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "millpond run: {message}");
}

/// Returns the device and the number of an open file.
pub(crate) fn id_of(file: &File) -> std::io::Result<(u64, u64)> {
    file.metadata().map(|data| (data.dev(), data.ino()))
}
