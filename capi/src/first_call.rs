//! Starts the library's log at the first call of the library.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_adaptors::debug_log::{self, FILE_VARIABLE};
use millpond_core::{ErrorKind, environment};

/// Starts the log once. Calls on other threads do not wait for the start, which may take long: the file may
/// be a pipe that no program reads yet, and `tracing` asks the program's subscribers.
pub(crate) fn start_log() {
    static IS_STARTED: AtomicBool = AtomicBool::new(false);
    if IS_STARTED.load(Ordering::Relaxed) {
        return;
    }
    let has_file = environment::variable(FILE_VARIABLE).is_some();
    // If another thread is starting the log, this does nothing.
    let started = if has_file { debug_log::init() } else { debug_log::init_to_stderr() };
    if let Err(error) = started
        && error.kind() == ErrorKind::Io
    {
        // This is the only way to report the error, because the first call has nothing to do with the log.
        let _ = writeln!(io::stderr(), "{error}");
        // This fails only if the program has its own subscriber.
        let _ = debug_log::init_to_stderr();
    }
    IS_STARTED.store(true, Ordering::Relaxed);
}
