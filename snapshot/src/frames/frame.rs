//! A frame of a call stack.

/// A frame of a call stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a frame has no other part")]
pub struct Frame<'a> {
    /// The function.
    pub function: &'a str,
    /// The file.
    pub file: &'a str,
    /// The line, counted from 1; 0 if it is not known.
    pub line: u64,
}
