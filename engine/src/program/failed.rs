//! Distinguishes failed requests from the retries of these requests.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// The requests that failed when the log was written.
///
/// When a program gets no memory, it often frees some memory and repeats the request. So all failures before
/// a success of the same size, thread and stream count as one request, at the position of the first failure.
/// `L` identifies a thread and its stream.
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
    /// The numbers of the failures since the last success, by lane and size. The numbers are in the log's
    /// order.
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

    /// Returns the number of failed requests. Retries of an earlier failure do not count.
    pub fn count(&self) -> u64 {
        self.retries.iter().filter(|is_retry| !**is_retry).count() as u64
    }

    /// Returns for each failure, by number, whether it is a retry of an earlier one.
    pub(super) fn into_retries(self) -> Vec<bool> {
        self.retries
    }
}
