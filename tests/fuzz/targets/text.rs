//! Texts that programs print: messages, dumps, leaks and logs between other lines.

#![no_main]

use libfuzzer_sys::fuzz_target;

// A text has no start of its own; a letter keeps it from the formats that have one.
fuzz_target!(|bytes: &[u8]| millpond_fuzz::import(b"> ", bytes));
