//! Texts that programs print: messages, dumps, leaks and logs between other lines.

use crate::recording::import;

// A text has no start of its own; a letter keeps it from the formats that have one.
pub(super) fn run(bytes: &[u8]) {
    import(b"> ", bytes);
}
