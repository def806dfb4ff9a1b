//! JAX's device memory profiles.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// Two types of samples, with the numbers that JAX gives their strings.
const TYPES: &[u8] = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04";

fuzz_target!(|bytes: &[u8]| millpond_fuzz::import(TYPES, bytes));
