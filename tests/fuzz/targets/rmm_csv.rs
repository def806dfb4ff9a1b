//! Logs of RMM, and recordings that were written as a log.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| millpond_fuzz::import(b"Thread,Time,Action,Pointer,Size,Stream", bytes));
