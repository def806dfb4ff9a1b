//! CSV of minimalloc.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| millpond_fuzz::import(b"id,lower,upper,size", bytes));
