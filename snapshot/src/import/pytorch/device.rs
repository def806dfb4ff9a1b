//! The devices of a snapshot.

/// The data in a file about one device.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Device {
    pub(super) ordinal: u64,
    pub(super) entries: u64,
    pub(super) segment_bytes: u64,
    /// The number of failed requests. It is counted only if the file has several devices.
    pub(super) failures: u64,
}
