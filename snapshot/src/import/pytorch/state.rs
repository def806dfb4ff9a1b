//! The state of memory in a snapshot: the segments, and the blocks in them.

use super::row::Row;
use super::stacks::Stacks;
use crate::budget::{Budget, Exceeded};
use crate::import::pickle::{Value, Values};
use crate::import::refusal::Refusal;
use crate::recording::{Id, Recording};

/// A segment: memory that the allocator reserved from the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) pool: Option<(u64, u64)>,
    pub(super) is_expandable: bool,
    pub(super) stack: Option<Id>,
}

/// A block that is in use, or that waits for streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The size of the block, as the allocator rounded it.
    pub(super) rounded_bytes: u64,
    pub(super) stream: u64,
    /// Whether the program has freed the block.
    pub(super) is_pending: bool,
    /// Whether the file records the requested size.
    pub(super) has_request: bool,
    pub(super) stack: Option<Id>,
}

/// The state of one device, in the order of addresses.
#[derive(Default, Debug)]
pub(super) struct State {
    pub(super) segments: Vec<Segment>,
    pub(super) blocks: Vec<Block>,
    /// Entries that are not segments or blocks in PyTorch's form.
    pub(super) malformed: u64,
    /// Blocks with an unknown state, which count as free.
    pub(super) unknown_states: u64,
}

const SEGMENT: [&str; 8] =
    ["device", "address", "total_size", "stream", "segment_pool_id", "is_expandable", "frames", "blocks"];

const BLOCK: [&str; 6] = ["address", "size", "requested_size", "state", "frames", "history"];

/// Returns the device and the size in bytes of each segment.
pub(super) fn devices(values: &Values, segments: Value) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut row = Row::new(["device", "total_size"]);
    values.items(segments).filter_map(move |segment| {
        let [device, bytes] = row.of(values, segment)?;
        let number = |value: Option<Value>| value.and_then(|value| values.as_u64(value));
        Some((number(device).unwrap_or(0), number(bytes)?))
    })
}

/// How often blocks may be visited, per slot of the file's values. In a snapshot of PyTorch, each block is in
/// one list, and uses a slot there. A file that refers to one long list many times has few slots, so it
/// reaches this limit.
const VISITS: usize = 4;

/// Reads segments and blocks into a state.
struct Reader<'a> {
    values: &'a Values,
    stacks: &'a mut Stacks,
    recording: &'a mut Recording,
    budget: &'a mut Budget,
    segments: Row<8>,
    blocks: Row<6>,
    old: Row<2>,
    state: State,
    /// How many blocks may still be visited.
    visits: usize,
}

/// Reads the segments of a device and the blocks in them.
///
/// # Errors
/// The budget is used up.
pub(super) fn read(
    values: &Values,
    segments: Value,
    device: u64,
    stacks: &mut Stacks,
    recording: &mut Recording,
    budget: &mut Budget,
) -> Result<State, Refusal> {
    let (rows, blocks, state) = (Row::new(SEGMENT), Row::new(BLOCK), State::default());
    let old = Row::new(["real_size", "frames"]);
    let visits = values.slots().saturating_mul(VISITS);
    let mut reader = Reader { values, stacks, recording, budget, segments: rows, blocks, old, state, visits };
    for segment in values.items(segments) {
        reader.segment(segment, device)?;
    }
    let mut state = reader.state;
    state.segments.sort_unstable_by_key(|segment| segment.address);
    state.blocks.sort_unstable_by_key(|block| block.address);
    Ok(state)
}

impl Reader<'_> {
    fn number(&self, value: Option<Value>) -> Option<u64> {
        value.and_then(|value| self.values.as_u64(value))
    }

    /// Reads a segment with its blocks, if the segment belongs to the device.
    fn segment(&mut self, value: Value, device: u64) -> Result<(), Refusal> {
        let Some([owner, address, bytes, stream, pool, expandable, frames, blocks]) =
            self.segments.of(self.values, value)
        else {
            self.state.malformed += 1;
            return Ok(());
        };
        let address = self.number(address).filter(|&address| address > 0);
        let (Some(address), Some(bytes)) = (address, self.number(bytes)) else {
            self.state.malformed += 1;
            return Ok(());
        };
        if self.number(owner).unwrap_or(0) != device {
            return Ok(());
        }
        let stream = self.number(stream).unwrap_or(0);
        self.budget.take(2 * size_of::<Segment>())?;
        let stack = self.stacks.stack(self.values, frames, self.recording, self.budget)?;
        self.state.segments.push(Segment {
            address,
            bytes,
            stream,
            pool: pool.and_then(|pool| pair(self.values, pool)),
            is_expandable: expandable == Some(Value::bool(true)),
            stack,
        });
        let (values, mut next) = (self.values, address);
        for block in blocks.into_iter().flat_map(|blocks| values.items(blocks)) {
            self.visits = self.visits.checked_sub(1).ok_or_else(|| {
                Refusal::new(
                    "is a snapshot in which many segments share one list of blocks, which PyTorch never \
                     writes; the file is refused",
                )
            })?;
            self.block(block, stream, &mut next)?;
        }
        Ok(())
    }

    /// Reads a block, if it is in use or waits for streams. `next` is the end address of the previous block.
    fn block(&mut self, value: Value, stream: u64, next: &mut u64) -> Result<(), Exceeded> {
        let values = self.values;
        let fields = self.blocks.of(values, value);
        let Some([address, size, requested, kind, frames, history]) = fields else {
            self.state.malformed += 1;
            return Ok(());
        };
        let Some(size) = self.number(size) else {
            self.state.malformed += 1;
            return Ok(());
        };
        let address = self.number(address).unwrap_or(*next);
        *next = address.saturating_add(size);
        if address == 0 {
            self.state.malformed += 1;
            return Ok(());
        }
        let is_pending = match kind.and_then(|kind| values.as_text(kind)) {
            Some("active_allocated") => false,
            Some("active_pending_free" | "active_awaiting_free") => true,
            Some("inactive") => return Ok(()),
            _ => {
                self.state.unknown_states += 1;
                return Ok(());
            }
        };
        let old = history.and_then(|history| values.items(history).next());
        let [old_size, old_frames] = old.and_then(|old| self.old.of(values, old)).unwrap_or_default();
        let requested = self.number(requested).or_else(|| self.number(old_size));
        let frames = frames.or(old_frames);
        self.budget.take(2 * size_of::<Block>())?;
        let stack = self.stacks.stack(values, frames, self.recording, self.budget)?;
        self.state.blocks.push(Block {
            address,
            bytes: requested.unwrap_or(size),
            rounded_bytes: size,
            stream,
            is_pending,
            has_request: requested.is_some(),
            stack,
        });
        Ok(())
    }
}

/// Returns a pair of numbers, such as the name of a pool.
pub(super) fn pair(values: &Values, value: Value) -> Option<(u64, u64)> {
    let mut items = values.items(value).map(|item| values.as_u64(item));
    match (items.next()??, items.next()??, items.next()) {
        (first, second, None) => Some((first, second)),
        _ => None,
    }
}

impl State {
    /// Returns the pool of the segment that holds an address.
    pub(super) fn pool(&self, address: u64) -> Option<(u64, u64)> {
        let at = self.segments.partition_point(|segment| segment.address <= address).checked_sub(1)?;
        let segment = &self.segments[at];
        (address - segment.address < segment.bytes).then_some(segment.pool).flatten()
    }
}
