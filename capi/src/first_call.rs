//! What the library does at its first call: it starts its log.

use std::io::{self, Write};
use std::sync::Once;

use millpond_adaptors::debug_log::{self, FILE_VARIABLE, Level};
use millpond_core::{ErrorKind, environment};

/// Starts the log, once.
pub(crate) fn start_log() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let has_file = environment::variable(FILE_VARIABLE).is_some();
        let started = debug_log::init();
        if let Err(error) = &started
            && error.kind() == ErrorKind::Io
        {
            // There is no other way to say it: the call that comes first has nothing to do with the log.
            let _ = writeln!(io::stderr(), "{error}");
        }
        if !has_file || (started.is_err() && debug_log::init_to_stderr().is_ok()) {
            // It fails only where the program has a subscriber of its own.
            let _ = debug_log::set_level(Some(Level::ERROR));
        }
    });
}
