//! Feeds the segments of a recording to the model. The model uses them as its driver.

use std::collections::VecDeque;

use crate::peers::torch::model::Memory;
use crate::recording::EventKind;

/// The first address for segments without a recorded address. It is above the addresses of all devices.
pub(super) const ELSEWHERE: u64 = 1 << 56;

/// Returns whether the event returns memory to the driver.
pub(super) fn is_given_back(kind: EventKind) -> bool {
    matches!(kind, EventKind::SegmentFree | EventKind::SegmentUnmap)
}

/// The largest size of a growing segment, in bytes.
pub(super) const RESERVATION: u64 = 1 << 40;

/// The segments of the recording that come next.
#[derive(Debug)]
pub(super) struct Recorded {
    /// The kind, address and bytes of the segment events since the previous request.
    pub(super) pending: VecDeque<(EventKind, u64, u64)>,
    /// Whether the recording contains a failed request here.
    pub(super) refuses: bool,
    /// Whether the recording shows when the driver refuses. Otherwise a limit of the model decides.
    says_when_full: bool,
    pub(super) same_segment: u64,
    pub(super) same_given_back: u64,
    elsewhere: u64,
}

impl Recorded {
    pub(super) fn new(says_when_full: bool) -> Self {
        Self {
            pending: VecDeque::new(),
            refuses: false,
            says_when_full,
            same_segment: 0,
            same_given_back: 0,
            elsewhere: ELSEWHERE,
        }
    }

    /// Returns whether the next recorded event returns a segment to the driver.
    pub(super) fn gives_back_next(&self) -> bool {
        let kind = self.pending.front().map(|(kind, ..)| *kind);
        kind.is_some_and(is_given_back)
    }

    /// Returns whether the driver refuses: the recorded request failed, or first returned segments to the
    /// driver.
    fn is_full(&self) -> bool {
        self.says_when_full && (self.gives_back_next() || (self.refuses && self.pending.is_empty()))
    }

    /// Returns the address of the next segment in the recording, if the segment has this kind and size.
    fn next(&mut self, wanted: EventKind, bytes: u64) -> Option<u64> {
        let &(_, address, _) =
            self.pending.front().filter(|(kind, _, size)| (*kind, *size) == (wanted, bytes))?;
        self.pending.pop_front();
        self.same_segment += 1;
        Some(address)
    }

    fn give_back(&mut self, address: u64, bytes: u64) {
        let is_it = |(kind, at, size): &(EventKind, u64, u64)| {
            is_given_back(*kind) && (*at, *size) == (address, bytes)
        };
        if let Some(at) = self.pending.iter().position(is_it) {
            self.pending.remove(at);
            self.same_given_back += 1;
        }
    }

    /// Returns an address above all other addresses. Returns `None` if the addresses do not suffice.
    fn elsewhere(&mut self, bytes: u64) -> Option<u64> {
        let address = self.elsewhere;
        self.elsewhere = address.checked_add(bytes.checked_next_multiple_of(2 << 20)?)?;
        Some(address)
    }
}

impl Memory for Recorded {
    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        self.next(EventKind::SegmentAllocate, bytes).or_else(|| self.elsewhere(bytes))
    }

    fn free(&mut self, address: u64, bytes: u64) {
        self.give_back(address, bytes);
    }

    fn reserve(&mut self, _page: u64) -> Option<(u64, u64)> {
        let next = self.pending.iter().find(|(kind, ..)| *kind == EventKind::SegmentMap);
        let address = next.map(|(_, address, _)| *address);
        Some((address.or_else(|| self.elsewhere(RESERVATION))?, RESERVATION))
    }

    fn map(&mut self, address: u64, bytes: u64, _page: u64) -> bool {
        if self.is_full() {
            return false;
        }
        let is_next = self.pending.front() == Some(&(EventKind::SegmentMap, address, bytes));
        if is_next {
            self.next(EventKind::SegmentMap, bytes);
        }
        true
    }

    fn unmap(&mut self, address: u64, bytes: u64, _page: u64) {
        self.give_back(address, bytes);
    }

    fn unreserve(&mut self, _address: u64, _bytes: u64) {}

    /// Blocks become free when the recording frees them, so no block waits.
    fn wait(&mut self) -> Vec<u64> {
        Vec::new()
    }
}
