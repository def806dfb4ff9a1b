//! The options of an import.

/// The options of an import.
///
/// ```
/// use millpond_snapshot::import::Options;
/// let options = Options::default().device(Some(1));
/// assert_eq!(options.memory, 64 << 20);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The device whose events are imported; `None` for the busiest device of a snapshot, or a log's first
    /// device.
    pub device: Option<u32>,
    /// The most memory in bytes that the import may use on top of the size of the file. A file that needs
    /// more is refused.
    pub memory: u64,
}

impl Options {
    millpond_core::setters! { device: Option<u32>, memory: u64 }
}

impl Default for Options {
    fn default() -> Self {
        Self { device: None, memory: 64 << 20 }
    }
}
