//! The thresholds of the pool, each with its reason and its measured effect.

/// Plain allocations of the driver are counted in pages of so many bytes, more or less: what is to suffice
/// is rounded up to that.
pub(crate) const DEVICE_PAGE: u64 = 2 << 20;
