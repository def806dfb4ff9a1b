//! Counters of bytes and allocations.

/// Counts one quantity in one level of a
/// [`StatisticsResourceAdaptor`](super::StatisticsResourceAdaptor#levels): the live amount, its peak, and the
/// total.
///
/// The numbers are signed. A level may count more frees than allocations, because blocks may be older than
/// the level.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counter {
    /// The live amount, which RMM calls `value`.
    pub current: i64,
    /// The highest value of `current` so far in the level; at least 0.
    pub peak: i64,
    /// The sum over all allocations in the level.
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
    /// Counts the requested bytes.
    pub bytes: Counter,
    /// Counts the allocations.
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
