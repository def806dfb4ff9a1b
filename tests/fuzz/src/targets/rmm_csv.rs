//! Logs of RMM, and recordings that were written as a log.

use crate::recording::import;

pub(super) fn run(bytes: &[u8]) {
    import(b"Thread,Time,Action,Pointer,Size,Stream", bytes);
}
