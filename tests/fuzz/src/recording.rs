//! Imports a file, writes it as a log, and reads the log.

use millpond_snapshot::explain::explain;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::Recording;

/// Imports bytes that begin with `start`, which keeps a target within its format.
///
/// # Panics
/// Panics if the log of a recording does not give another recording.
pub(crate) fn import(start: &[u8], bytes: &[u8]) {
    let file = [start, bytes].concat();
    if let Ok(recording) = import::read("file", file.as_slice(), &Options::default()) {
        check(&recording);
    }
}

/// Explains a recording, writes it as a log, and imports the log. Compares the two recordings.
///
/// # Panics
/// Panics if the log does not give another recording.
pub(crate) fn check(recording: &Recording) {
    explain(recording, None);
    let mut log = Vec::new();
    recording.write_csv(&mut log).expect("memory takes all that is written");
    match import::read("log", log.as_slice(), &Options::default()) {
        Ok(again) => assert_eq!(&again, recording),
        // A log may need a little more memory than its original file.
        Err(error) => assert!(error.to_string().contains("of memory"), "{error}"),
    }
}
