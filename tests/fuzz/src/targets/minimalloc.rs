//! CSV of minimalloc.

use crate::recording::import;

pub(super) fn run(bytes: &[u8]) {
    import(b"id,lower,upper,size", bytes);
}
