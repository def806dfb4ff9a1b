//! How a file is imported.

/// How a file is imported.
///
/// ```
/// use millpond_snapshot::import::Options;
/// let options = Options { device: Some(1), ..Options::default() };
/// assert_eq!(options.memory, 64 << 20);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The device whose events are imported; without one, the busiest of a snapshot, the first one of a log.
    pub device: Option<u32>,
    /// The most memory in bytes that importing takes above the size of the file. A file that needs more is
    /// refused.
    pub memory: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { device: None, memory: 64 << 20 }
    }
}
