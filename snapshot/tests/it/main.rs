//! Tests the library: snapshots from a GPU, snapshots built in the form of each version of PyTorch, files
//! that attack their reader, the other formats, and the models of other allocators.

mod built;
mod devices;
mod explain;
mod frame_table;
mod frames;
mod hostile;
mod layer_plan;
#[cfg(feature = "nsys")]
mod nsys;
mod peers;
mod pickle;
mod plan;
mod programs;
mod snapshots;
mod tables;
mod texts;
mod traces;
mod verdict;

use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::Recording;

pub(crate) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// Imports bytes with the default options.
pub(crate) fn read(bytes: &[u8]) -> Result<Recording, String> {
    import::read("file", bytes, &Options::default()).map_err(|error| error.to_string())
}

/// Imports bytes, writes them as a log, and compares the log with the original.
#[track_caller]
pub(crate) fn imported(bytes: &[u8]) -> Recording {
    let recording = read(bytes).unwrap();
    let mut log = Vec::new();
    recording.write_csv(&mut log).unwrap();
    let again = read(&log).unwrap();
    assert_eq!(again, recording, "{}", String::from_utf8_lossy(&log));
    recording
}

/// Returns the codes of a recording's gaps.
pub(crate) fn unknowns(recording: &Recording) -> Vec<&str> {
    recording.unknowns().iter().map(|unknown| unknown.code.as_str()).collect()
}

/// Returns options that read one device.
pub(crate) fn of_device(device: u32) -> Options {
    let mut options = Options::default();
    options.device = Some(device);
    options
}
