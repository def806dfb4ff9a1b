//! The limits of reading a log.

/// The limits and options of reading a log.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most operations that are kept in memory; a longer program goes to a temporary file.
    pub ops_in_memory: usize,
    /// Count bad rows and go on, instead of ending with the first one. Of a log that is cut off, the rows
    /// before that are read.
    pub skip_bad_rows: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { ops_in_memory: 2 << 20, skip_bad_rows: false }
    }
}
