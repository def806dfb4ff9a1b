//! Pages of the viewer of PyTorch.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| millpond_fuzz::import(b"<html>", bytes));
