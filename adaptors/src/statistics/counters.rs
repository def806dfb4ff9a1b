use millpond_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// One quantity over the time of a level.
///
/// Signed, because a level may see more given back than handed out, when blocks are older than it is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counter {
    /// What is live now of what was counted (RMM's `value`).
    pub current: i64,
    /// The highest `current` so far; at least 0.
    pub peak: i64,
    /// The sum of everything that was handed out.
    pub total: i64,
}

impl Counter {
    fn add(&mut self, amount: i64) {
        self.current = self.current.saturating_add(amount);
        self.total = self.total.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    fn subtract(&mut self, amount: i64) {
        self.current = self.current.saturating_sub(amount);
    }

    /// Adds what a level on top of this one counted, as if it had been counted here.
    fn fold(&mut self, above: Self) {
        self.peak = self.peak.max(self.current.saturating_add(above.peak));
        self.current = self.current.saturating_add(above.current);
        self.total = self.total.saturating_add(above.total);
    }
}

/// What a [`StatisticsResourceAdaptor`](super::StatisticsResourceAdaptor) counted in one level.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// Bytes, as asked for.
    pub bytes: Counter,
    /// Allocations.
    pub allocations: Counter,
    /// Requests that the upstream refused.
    pub failures: u64,
}

/// The counters of all levels.
#[derive(Default, Debug)]
pub(super) struct Levels {
    top: Counters,
    below: Vec<Counters>,
}

impl Levels {
    pub(super) fn allocated(&mut self, bytes: u64) {
        self.top.bytes.add(signed(bytes));
        self.top.allocations.add(1);
    }

    pub(super) fn deallocated(&mut self, bytes: u64) {
        self.top.bytes.subtract(signed(bytes));
        self.top.allocations.subtract(1);
    }

    pub(super) fn failed(&mut self) {
        self.top.failures += 1;
    }

    pub(super) fn current(&self) -> Counters {
        self.top
    }

    pub(super) fn push(&mut self) -> Counters {
        let top = std::mem::take(&mut self.top);
        self.below.push(top);
        top
    }

    pub(super) fn pop(&mut self) -> Result<Counters> {
        let below = self.below.pop().ok_or_else(|| {
            Error::invalid_argument("the last level of counters cannot be popped; push one before each pop")
        })?;
        let popped = std::mem::replace(&mut self.top, below);
        self.top.bytes.fold(popped.bytes);
        self.top.allocations.fold(popped.allocations);
        self.top.failures += popped.failures;
        Ok(popped)
    }
}

/// No block has 2^63 bytes. A caller's nonsense must not panic or wrap around, so nothing here does.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
