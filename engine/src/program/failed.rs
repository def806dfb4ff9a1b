//! Tells failed first requests from their retries.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// The requests that failed when the log was written.
///
/// A program that gets no memory often frees some and asks again. So all failures before a success of the
/// same size, thread and stream count as one request, at the place of the first failure. `L` names a thread
/// and its stream.
///
/// ```
/// use millpond_engine::program::FailedRequests;
/// let mut requests = FailedRequests::default();
/// requests.failed("stream", 1 << 20);
/// requests.failed("stream", 1 << 20);
/// requests.succeeded("stream", 1 << 20);
/// assert_eq!(requests.count(), 1);
/// ```
#[derive(Debug)]
pub struct FailedRequests<L> {
    /// The failures since the last success, by lane and size: their numbers, in the log's order.
    open: FxHashMap<(L, u64), Vec<u32>>,
    retries: Vec<bool>,
}

impl<L> Default for FailedRequests<L> {
    fn default() -> Self {
        Self { open: FxHashMap::default(), retries: Vec::new() }
    }
}

impl<L: Eq + Hash> FailedRequests<L> {
    /// Records a failed request, and returns its number.
    pub fn failed(&mut self, lane: L, bytes: u64) -> u32 {
        let number = u32::try_from(self.retries.len()).unwrap_or(u32::MAX);
        self.retries.push(false);
        self.open.entry((lane, bytes)).or_default().push(number);
        number
    }

    /// Records a successful request, which ends the failures of the same lane and size.
    #[inline]
    pub fn succeeded(&mut self, lane: L, bytes: u64) {
        if !self.open.is_empty()
            && let Some(failures) = self.open.remove(&(lane, bytes))
        {
            failures.iter().skip(1).for_each(|number| self.retries[*number as usize] = true);
        }
    }

    /// Returns the number of requests: failures, except retries of an earlier failure.
    pub fn count(&self) -> u64 {
        self.retries.iter().filter(|is_retry| !**is_retry).count() as u64
    }

    /// Returns whether each failure is a retry of an earlier one, by number.
    pub(super) fn into_retries(self) -> Vec<bool> {
        self.retries
    }
}
