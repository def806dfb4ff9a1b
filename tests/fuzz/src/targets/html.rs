//! Pages of the viewer of PyTorch.

use crate::recording::import;

pub(super) fn run(bytes: &[u8]) {
    import(b"<html>", bytes);
}
