//! The limits of reading a log.

/// The limits and options of reading a log.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The most operations that are kept in memory; a longer program goes to a temporary file.
    pub ops_in_memory: usize,
    /// Whether to count bad rows and continue, instead of stopping at the first one. A truncated log is then
    /// read up to the cut.
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
