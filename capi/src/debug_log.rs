//! The library's diagnostics, as lines of text.
//!
//! The library shares no `tracing` subscriber with its program, so it has its own subscriber. If the
//! environment variable `RMM_DEBUG_LOG_FILE` names a file, all lines of level info and above go to this file.
//! Otherwise only errors go to standard error. Without this log, a program would not learn that it freed a
//! block twice.

use std::sync::atomic::{AtomicI32, Ordering};

use millpond_adaptors::debug_log::{self, Level};
use millpond_core::Error;

use crate::status::{Status, guarded, put};

/// RMM's numbers of the levels, the least severe first. Number 5 is RMM's `critical`, which millpond does not
/// use.
const LEVELS: [Option<Level>; 7] = [
    Some(Level::TRACE),
    Some(Level::DEBUG),
    Some(Level::INFO),
    Some(Level::WARN),
    Some(Level::ERROR),
    None,
    None,
];
const OFF: i32 = 6;
/// The number that was set last. It is kept because two different numbers turn all lines off.
static CHOSEN: AtomicI32 = AtomicI32::new(OFF);

/// Sets the lowest level that the log writes. 0 is `trace`, followed by `debug`, `info`, `warn`, `error` and
/// `critical`; 6 is `off`, which writes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_set_logging_level(level: i32) -> Status {
    guarded(|| {
        let known = usize::try_from(level).ok().and_then(|level| LEVELS.get(level));
        let known =
            known.ok_or_else(|| Error::invalid_argument("a logging level must be a number from 0 to 6"))?;
        debug_log::set_level(*known)?;
        CHOSEN.store(level, Ordering::Relaxed);
        Ok(())
    })
}

/// Writes the lowest level that the log writes to `level`, as a number of `millpond_set_logging_level`.
///
/// # Safety
/// `level` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_logging_level(level: *mut i32) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { put(level, number_of(debug_log::level()?)) }
    })
}

/// Flushes the log. The library passes each line to the operating system at once, so this call helps only if
/// the system buffers lines.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_flush_logger() -> Status {
    guarded(debug_log::flush)
}

fn number_of(level: Option<Level>) -> i32 {
    let found = LEVELS.iter().position(|known| level.is_some() && *known == level);
    found.map_or_else(|| CHOSEN.load(Ordering::Relaxed), |number| number as i32)
}
