//! The limits of reading a log.

/// The limits and options of reading a log.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The most operations that are kept in memory. The operations of a longer program go to a temporary
    /// file.
    pub ops_in_memory: usize,
    /// Whether to count bad rows and go on. If not, reading stops at the first bad row. If a truncated log is
    /// read with this option, its complete rows are read.
    pub skip_bad_rows: bool,
}

impl Limits {
    millpond_core::setters! { ops_in_memory: usize, skip_bad_rows: bool }
}

impl Default for Limits {
    fn default() -> Self {
        Self { ops_in_memory: 2 << 20, skip_bad_rows: false }
    }
}
