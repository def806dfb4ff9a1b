//! Counters of bytes and allocations.

/// The live, peak and total amount of one quantity, in one level of a
/// [`StatisticsResourceAdaptor`](super::StatisticsResourceAdaptor#levels).
///
/// The numbers are signed. A level may free more than it allocates, because blocks may be older than the
/// level.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counter {
    /// The live amount (RMM's `value`).
    pub current: i64,
    /// The highest value of `current` in the level; at least 0.
    pub peak: i64,
    /// The sum over all allocations.
    pub total: i64,
}

impl Counter {
    /// Returns these counts together with the counts of a level on top, as if both had been counted here.
    fn fold(self, above: Self) -> Self {
        Self {
            current: self.current.saturating_add(above.current),
            peak: self.peak.max(self.current.saturating_add(above.peak)),
            total: self.total.saturating_add(above.total),
        }
    }
}

/// The counters of one [level](super::StatisticsResourceAdaptor#levels) of a
/// [`StatisticsResourceAdaptor`](super::StatisticsResourceAdaptor).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counters {
    /// The bytes, as requested.
    pub bytes: Counter,
    /// The number of allocations.
    pub allocations: Counter,
    /// The number of requests that the upstream refused.
    pub failures: u64,
}

impl Counters {
    /// Returns these counts together with the counts of a level on top, as if both had been counted here.
    pub(super) fn fold(self, above: Self) -> Self {
        Self {
            bytes: self.bytes.fold(above.bytes),
            allocations: self.allocations.fold(above.allocations),
            failures: self.failures.saturating_add(above.failures),
        }
    }
}
