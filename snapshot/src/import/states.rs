//! Converts an allocator's states at single moments to the events of a recording.

use super::refusal::Refusal;
use crate::budget::{Budget, Exceeded};
use crate::recording::{Event, EventKind, Id, Lane, Recording};

/// The first address for blocks whose addresses a source does not record.
pub(super) const BASE: u64 = 1 << 44;

/// The largest size in bytes that a report can contain. Larger sizes are reduced to this size, so that sums
/// fit into 64 bits.
pub(super) const MOST_BYTES: u64 = 1 << 50;

/// The bytes of a block or a segment in a state, including its share of the list's free space, also while the
/// list grows.
const ENTRY_BYTES: usize = 3 * size_of::<Event>();

/// A live block.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) pool: Option<(u64, u64)>,
    pub(super) stack: Option<Id>,
    pub(super) tag: Option<Id>,
}

/// The free bytes of the device when the request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) bytes: u64,
    pub(super) stack: Option<Id>,
    /// The free bytes of the device at that moment.
    pub(super) device_free: Option<u64>,
}

/// The memory of an allocator at one moment.
#[derive(Default, Debug)]
pub(super) struct State {
    /// The segments, as pairs of an address and a size.
    segments: Vec<(u64, u64)>,
    blocks: Vec<Block>,
    failure: Option<Failure>,
    /// The address after the last block that was placed.
    end: u64,
}

/// The states that were read so far. Each new state replaces the previous one.
#[derive(Default, Debug)]
pub(super) struct States {
    /// The blocks and the segments of the last state, as events.
    live: Vec<Event>,
    count: u64,
}

impl State {
    /// Returns a state without blocks, at a failed request or at another moment.
    pub(super) fn at(failure: Option<Failure>) -> Self {
        Self { failure, ..Self::default() }
    }

    pub(super) fn segment(&mut self, address: u64, bytes: u64, budget: &mut Budget) -> Result<(), Exceeded> {
        budget.take(ENTRY_BYTES)?;
        self.segments.push((address, bytes));
        Ok(())
    }

    /// Adds a block. A block at address 0 is left out, because its address is damaged.
    pub(super) fn block(&mut self, block: Block, budget: &mut Budget) -> Result<(), Exceeded> {
        if block.address == 0 {
            return Ok(());
        }
        budget.take(ENTRY_BYTES)?;
        self.blocks.push(block);
        Ok(())
    }

    /// Adds a block whose address is not known. The block is placed after the last block that was placed.
    ///
    /// # Errors
    /// The blocks have more bytes than 64 bits can address, or the budget is used up.
    pub(super) fn place(&mut self, block: Block, budget: &mut Budget) -> Result<(), Refusal> {
        let address = self.end.max(BASE);
        self.end = address.checked_add(block.bytes.max(1)).ok_or_else(|| {
            Refusal::new(
                "shows more live bytes than 64 bits can address: a size is damaged; copy the file again",
            )
        })?;
        Ok(self.block(Block { address, ..block }, budget)?)
    }

    pub(super) fn failure(&mut self, failure: Option<Failure>) {
        self.failure = failure;
    }

    /// Returns the bytes of the live blocks.
    pub(super) fn live_bytes(&self) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.saturating_add(block.bytes))
    }
}

impl States {
    /// Returns the number of states.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Adds the events of a state. The first state is from before the recording. A later state begins with
    /// the end of the previous state, because nothing is known about the time between them.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn add(
        &mut self,
        recording: &mut Recording,
        mut state: State,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        let is_before = self.count == 0;
        self.count += 1;
        if !is_before {
            recording.push(Event::new(EventKind::Lost), budget)?;
        }
        for event in self.live.drain(..) {
            recording.push(event, budget)?;
        }
        let taken = ENTRY_BYTES * (state.segments.len() + state.blocks.len());
        state.segments.sort_unstable();
        state.blocks.sort_unstable_by_key(|block| block.address);
        let has_segments = !state.segments.is_empty();
        let plain = recording.add_lane(Lane::default(), budget)?;
        for (address, bytes) in std::mem::take(&mut state.segments) {
            let event =
                Event { address, bytes, lane: plain, is_before, ..Event::new(EventKind::SegmentAllocate) };
            recording.push(event, budget)?;
            self.end(Event { kind: EventKind::SegmentFree, is_before: false, ..event }, budget)?;
        }
        for block in std::mem::take(&mut state.blocks) {
            let Block { address, bytes, pool, stack, tag } = block;
            let lane = recording.add_lane(Lane { pool, ..Lane::default() }, budget)?;
            let kind = EventKind::Allocate;
            let event = Event { address, bytes, lane, stack, tag, is_before, ..Event::new(kind) };
            // The sizes in a state come from its allocator, so they are rounded already.
            if has_segments && bytes > 0 {
                recording.set_rounded_bytes(recording.len(), bytes, budget)?;
            }
            recording.push(event, budget)?;
            self.end(
                Event { kind: EventKind::Free, is_before: false, stack: None, tag: None, ..event },
                budget,
            )?;
        }
        // The blocks are freed before their segments.
        self.live.reverse();
        budget.give_back(taken);
        let Some(Failure { bytes, stack, device_free }) = state.failure else { return Ok(()) };
        let event = Event { bytes, stack, lane: plain, ..Event::new(EventKind::AllocateFailure) };
        recording.push(event, budget)?;
        device_free.map_or(Ok(()), |bytes| recording.set_device_free(bytes, budget).map(drop))
    }

    fn end(&mut self, event: Event, budget: &mut Budget) -> Result<(), Exceeded> {
        if self.live.len() == self.live.capacity() {
            budget.take(2 * size_of::<Event>() * self.live.len().max(4))?;
        }
        self.live.push(event);
        Ok(())
    }
}
