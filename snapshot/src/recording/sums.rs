//! The sums over a recording, which people look at first.

use foldhash::HashMap;

use millpond_engine::program::FailedRequests;
use serde::Serialize;

use super::{EventKind, Recording};

/// Counts and sums over a recording. Sizes are in bytes, and blocks count with their requested sizes.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Sums {
    /// The number of events, including events from before the recording. If the source has only sums of
    /// bytes, only the failed requests count: the counts of allocations, frees and blocks are 0.
    pub events: u64,
    /// The number of allocations in the recording.
    pub allocations: u64,
    /// The number of frees.
    pub frees: u64,
    /// The number of failed allocations.
    pub failures: u64,
    /// The number of failed requests. All failures before a success of the same size, thread and stream count
    /// as one request.
    pub failed_requests: u64,
    /// The number of blocks that were live when recording began.
    pub blocks_before: u64,
    /// The bytes of the blocks that were live when recording began.
    pub bytes_before: u64,
    /// The number of blocks that are live at the end.
    pub live_blocks: u64,
    /// The bytes of the blocks that are live at the end.
    pub live_bytes: u64,
    /// The most bytes that were live at one time.
    pub peak_live_bytes: u64,
    /// The number of the event at which the most bytes were live, counted from 0. In JSON, events are counted
    /// from 1, as in texts.
    #[serde(serialize_with = "super::from_one")]
    pub peak_event: u64,
    /// The bytes that the allocator had reserved from the driver at the end; `None` if the source does not
    /// record them.
    pub reserved_bytes: Option<u64>,
    /// The most bytes that the allocator had reserved at one time; `None` if the source does not record them.
    pub peak_reserved_bytes: Option<u64>,
    /// The most bytes that the allocator could have at a failed request: the bytes that it had reserved, and
    /// the bytes of the device that were free. The device has at least this many bytes. The rest of the
    /// device was in use outside of the allocator. `None` if the source does not record both numbers for a
    /// failed request.
    pub available_bytes: Option<u64>,
    /// The number of frees that waited for other streams.
    pub held_blocks: u64,
    /// The number of events with a call stack.
    pub with_stack: u64,
    /// The number of different call stacks.
    pub stacks: u64,
    /// The number of different streams.
    pub streams: u64,
}

impl Recording {
    /// Returns the counts and sums over the events.
    pub fn sums(&self) -> Sums {
        let streams = self.stream_count() as u64;
        let mut sums = Sums { events: self.len() as u64, streams, ..Sums::default() };
        sums.stacks = self.stack_counts().0 as u64;
        let mut live: HashMap<u64, u64> = HashMap::default();
        let mut failed = FailedRequests::default();
        let (mut reserved, mut has_segments, mut peak_reserved) = (0_u64, false, 0);
        for (number, event) in self.events().enumerate() {
            sums.with_stack += u64::from(event.stack.is_some());
            match event.kind {
                EventKind::Allocate => {
                    failed.succeeded(event.lane, event.bytes);
                    sums.allocations += u64::from(!event.is_before);
                    sums.blocks_before += u64::from(event.is_before);
                    if event.is_before {
                        sums.bytes_before = sums.bytes_before.saturating_add(event.bytes);
                    }
                    if event.address == 0 {
                        continue; // nothing was allocated
                    }
                    let older = live.insert(event.address, event.bytes).unwrap_or(0);
                    sums.live_bytes = sums.live_bytes.saturating_sub(older).saturating_add(event.bytes);
                    if sums.live_bytes > sums.peak_live_bytes {
                        (sums.peak_live_bytes, sums.peak_event) = (sums.live_bytes, number as u64);
                    }
                }
                EventKind::Free => {
                    sums.frees += 1;
                    let bytes = live.remove(&event.address).unwrap_or(0);
                    sums.live_bytes = sums.live_bytes.saturating_sub(bytes);
                }
                EventKind::FreeRequested => sums.held_blocks += 1,
                EventKind::AllocateFailure => {
                    sums.failures += 1;
                    failed.failed(event.lane, event.bytes);
                    let free = self.device_free_bytes(number).filter(|_| has_segments);
                    let available = free.map(|free| reserved.saturating_add(free));
                    sums.available_bytes = sums.available_bytes.max(available);
                }
                EventKind::SegmentAllocate | EventKind::SegmentMap => {
                    has_segments = true;
                    reserved = reserved.saturating_add(event.bytes);
                    peak_reserved = peak_reserved.max(reserved);
                }
                EventKind::SegmentFree | EventKind::SegmentUnmap => {
                    reserved = reserved.saturating_sub(event.bytes);
                }
                _ => {}
            }
        }
        sums.failed_requests = failed.count();
        sums.live_blocks = live.len() as u64;
        if self.has_sums_only() {
            // The importer draws the sums as blocks, so only the failed requests were events.
            sums.events = sums.failures;
            (sums.allocations, sums.frees, sums.blocks_before, sums.live_blocks) = (0, 0, 0, 0);
        }
        sums.reserved_bytes = has_segments.then_some(reserved);
        sums.peak_reserved_bytes = has_segments.then_some(peak_reserved);
        sums
    }
}
