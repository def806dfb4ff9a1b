//! A queue of deferred deallocations.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::Mutex;

/// Limits on pending deallocations. The default limits are the same as in Numba.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct DeferredOptions {
    /// The most deallocations that may be pending. If there are more, all of them run.
    pub max_count: usize,
    /// The share of the device's memory (0.0 to 1.0) that may be pending. If more bytes are pending, all
    /// deallocations run.
    pub max_ratio: f64,
}

impl DeferredOptions {
    millpond_core::setters! { max_count: usize, max_ratio: f64 }

    /// Limits with which deallocations wait only while cleanup is deferred.
    pub const IMMEDIATE: Self = Self { max_count: 0, max_ratio: 0.0 };
}

impl Default for DeferredOptions {
    fn default() -> Self {
        Self { max_count: 10, max_ratio: 0.2 }
    }
}

/// A queue of deallocations that run together. Freeing memory synchronizes with the device, so a few long
/// pauses are better than many short ones.
///
/// The queue decides only *when* to free memory. It returns the deallocations that are due, and the caller
/// runs them without the queue's lock. Sizes are in bytes.
///
/// ```
/// use millpond_plugin::{DeferredOptions, DeferredQueue};
/// let queue = DeferredQueue::new(DeferredOptions::default().max_count(2).max_ratio(0.5));
/// queue.set_capacity(1000);
/// assert!(queue.push("a", 100).is_empty());
/// assert!(queue.push("b", 100).is_empty());
/// assert_eq!(queue.push("c", 100), ["a", "b", "c"]); // three are more than two
/// assert_eq!(queue.push("d", 501), ["d"]); // 501 bytes are more than half of 1000
/// ```
pub struct DeferredQueue<T> {
    options: DeferredOptions,
    state: Mutex<State<T>>,
}

struct State<T> {
    items: VecDeque<T>,
    bytes: u64,
    capacity: Option<u64>,
    deferrals: usize,
}

impl<T> DeferredQueue<T> {
    /// Makes an empty queue.
    pub fn new(options: DeferredOptions) -> Self {
        let state = State { items: VecDeque::new(), bytes: 0, capacity: None, deferrals: 0 };
        Self { options, state: Mutex::new(state) }
    }

    /// Sets the size of the device's memory in bytes. Until it is set, no bytes can be pending.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = Some(bytes);
    }

    /// Returns whether the size of the device's memory is known.
    pub fn has_capacity(&self) -> bool {
        self.state.lock().capacity.is_some()
    }

    /// Adds a deallocation of `bytes` bytes (0 if it frees no device memory). Returns the deallocations that
    /// are due now, the oldest first.
    #[must_use = "the returned deallocations must be run"]
    pub fn push(&self, item: T, bytes: u64) -> Vec<T> {
        let mut state = self.state.lock();
        state.items.push_back(item);
        state.bytes = state.bytes.saturating_add(bytes);
        state.due(&self.options)
    }

    /// Adds a deallocation that cannot run now. No deallocation becomes due.
    pub fn park(&self, item: T, bytes: u64) {
        let mut state = self.state.lock();
        state.items.push_back(item);
        state.bytes = state.bytes.saturating_add(bytes);
    }

    /// Takes all pending deallocations. If deallocation is deferred, takes none.
    #[must_use = "the returned deallocations must be run"]
    pub fn take(&self) -> Vec<T> {
        let mut state = self.state.lock();
        if state.deferrals > 0 { Vec::new() } else { state.take() }
    }

    /// Takes all pending deallocations, even while deallocation is deferred.
    #[must_use = "the returned deallocations must be run"]
    pub fn take_all(&self) -> Vec<T> {
        self.state.lock().take()
    }

    /// Defers deallocation until the matching call of [`resume`](Self::resume). Calls nest.
    pub fn defer(&self) {
        self.state.lock().deferrals += 1;
    }

    /// Ends one call of [`defer`](Self::defer). The outermost call returns the deallocations that are due.
    #[must_use = "the returned deallocations must be run"]
    pub fn resume(&self) -> Vec<T> {
        let mut state = self.state.lock();
        state.deferrals = state.deferrals.saturating_sub(1);
        state.due(&self.options)
    }

    /// Returns whether deallocation is deferred.
    pub fn is_deferred(&self) -> bool {
        self.state.lock().deferrals > 0
    }

    /// Returns the number of pending deallocations.
    pub fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Returns whether no deallocation is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of pending bytes.
    pub fn pending_bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

impl<T> fmt::Debug for DeferredQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredQueue")
            .field("options", &self.options)
            .field("len", &self.len())
            .field("pending_bytes", &self.pending_bytes())
            .finish_non_exhaustive()
    }
}

impl<T> State<T> {
    fn due(&mut self, options: &DeferredOptions) -> Vec<T> {
        let max_bytes = (self.capacity.unwrap_or(0) as f64 * options.max_ratio) as u64;
        let too_many = self.items.len() > options.max_count || self.bytes > max_bytes;
        if self.deferrals == 0 && too_many { self.take() } else { Vec::new() }
    }

    fn take(&mut self) -> Vec<T> {
        self.bytes = 0;
        self.items.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> DeferredQueue<u64> {
        let queue = DeferredQueue::new(DeferredOptions::default());
        queue.set_capacity(1_000_000);
        queue
    }

    #[test]
    fn ten_stay_pending_and_the_eleventh_flushes_in_order() {
        let queue = queue();
        for item in 0..10 {
            assert!(queue.push(item, 8).is_empty());
            assert_eq!(queue.len() as u64, item + 1);
        }
        assert_eq!(queue.push(10, 8), (0..11).collect::<Vec<_>>());
        assert_eq!((queue.len(), queue.pending_bytes()), (0, 0));
    }

    #[test]
    fn a_fifth_of_the_memory_stays_pending_and_one_byte_more_flushes() {
        let queue = queue();
        assert!(queue.push(0, 100_000).is_empty());
        assert!(queue.push(1, 100_000).is_empty());
        assert_eq!(queue.push(2, 1), [0, 1, 2]);
    }

    #[test]
    fn unsized_items_count_by_number_only() {
        let queue = DeferredQueue::new(DeferredOptions::default());
        for item in 0..10 {
            assert!(queue.push(item, 0).is_empty());
        }
        assert_eq!(queue.push(10, 0).len(), 11);
        assert_eq!(queue.push(11, 1), [11], "bytes cannot be pending before the capacity is known");
    }

    #[test]
    fn deferral_nests_and_the_outermost_exit_flushes_what_is_due() {
        let queue = queue();
        queue.defer();
        queue.defer();
        for item in 0..11 {
            assert!(queue.push(item, 8).is_empty());
        }
        assert!(queue.take().is_empty());
        assert!(queue.resume().is_empty());
        assert!(queue.is_deferred());
        assert_eq!(queue.resume().len(), 11);
        assert!(!queue.is_deferred());
    }

    #[test]
    fn after_deferral_fewer_than_the_limit_stay_pending() {
        let queue = queue();
        queue.defer();
        assert!(queue.push(0, 8).is_empty());
        assert!(queue.resume().is_empty());
        assert_eq!(queue.take(), [0]);
    }

    #[test]
    fn immediate_holds_only_while_deferred() {
        let queue = DeferredQueue::new(DeferredOptions::IMMEDIATE);
        assert_eq!(queue.push(0, 8), [0]);
        queue.defer();
        assert!(queue.push(1, 8).is_empty());
        assert_eq!(queue.take_all(), [1], "taking all ignores the deferral");
        assert!(queue.push(2, 8).is_empty());
        assert_eq!(queue.resume(), [2]);
        queue.park(3, 8);
        assert_eq!(queue.take(), [3]);
    }
}
