//! Counters of bytes and allocations.

/// One quantity over the time of a level.
///
/// Signed, because a level may see more given back than handed out, when blocks are older than it is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counter {
    /// The live amount (RMM's `value`).
    pub current: i64,
    /// The highest `current` so far; at least 0.
    pub peak: i64,
    /// The sum of everything that was handed out.
    pub total: i64,
}

impl Counter {
    /// This, and what a level on top of it counted, as if it had been counted here.
    fn fold(self, above: Self) -> Self {
        Self {
            current: self.current.saturating_add(above.current),
            peak: self.peak.max(self.current.saturating_add(above.peak)),
            total: self.total.saturating_add(above.total),
        }
    }
}

/// The counters of one level of a [`StatisticsResourceAdaptor`](super::StatisticsResourceAdaptor).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Bytes, as asked for.
    pub bytes: Counter,
    /// Allocations.
    pub allocations: Counter,
    /// Requests that the upstream refused.
    pub failures: u64,
}

impl Counters {
    /// These, and what a level on top of them counted, as if it had been counted here.
    pub(super) fn fold(self, above: Self) -> Self {
        Self {
            bytes: self.bytes.fold(above.bytes),
            allocations: self.allocations.fold(above.allocations),
            failures: self.failures.saturating_add(above.failures),
        }
    }
}
