//! Snapshots of PyTorch: pickles of protocols 2 to 5.

use crate::recording::import;

pub(super) fn run(bytes: &[u8]) {
    import(b"\x80", bytes);
}
