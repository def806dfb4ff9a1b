//! A frame of a call stack.

/// A frame of a call stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a frame has no other part")]
pub struct Frame<'a> {
    /// The name of the function.
    pub function: &'a str,
    /// The path of the file.
    pub file: &'a str,
    /// The number of the line, counted from 1; 0 if the line is not known.
    pub line: u64,
}
