//! Snapshots of PyTorch: pickles of protocols 2 to 5.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| millpond_fuzz::import(b"\x80", bytes));
