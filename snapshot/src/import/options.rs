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
    /// The device whose events are imported. `None` selects the busiest device of a snapshot, or the first
    /// device of a log. If a request failed, a snapshot's device is the busiest one with a failed request.
    pub device: Option<u32>,
    /// The most bytes of memory that the import may use in addition to the size of the file. If a file needs
    /// more, the import fails.
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
