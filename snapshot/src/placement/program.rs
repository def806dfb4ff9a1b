//! Makes a plan for the layer `plan` from a recording.

use std::fmt::Write as _;
use std::io::{self, Write};

use foldhash::HashMap;
use millpond_core::{ALLOCATION_ALIGNMENT, format_bytes};
use millpond_engine::log::StreamKey;
use millpond_engine::text::counted;
use millpond_planning::{
    Block, LogHash, PlanParts, PlannedAllocation, PlannedSlot, ProblemError, ProgramPlan, ProgramPlanError,
};
use sha2::{Digest, Sha256};

use super::{Placement, Request};
use crate::recording::{Event, EventKind, Recording};

/// The layer recognises a program by its first allocations, before it reserves memory. This is the most such
/// allocations. They get no slot.
const MOST_LEAD: usize = 5;

/// These allocations have at most this part of the peak of live bytes, because the plan cannot use their
/// memory later.
const LEAD_SHARE: u64 = 128;

/// The alignment of the layer, as a power of two.
const LAYER_ALIGNMENT_LOG2: u8 = ALLOCATION_ALIGNMENT.trailing_zeros() as u8;

/// The reason why a recording has no plan for the layer `plan`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The blocks of the recording cannot be placed.
    #[error(transparent)]
    Blocks(#[from] ProblemError),
    /// The placed blocks do not form a plan.
    #[error("no plan can be written: {0}")]
    Plan(#[from] ProgramPlanError),
}

/// One allocation of a program. Its positions are numbers of allocations.
#[derive(Clone, Copy)]
struct Made {
    /// The size in bytes, as the layer rounds it.
    bytes: u64,
    stream: u32,
    /// The number of allocations before the block's free.
    end: u32,
    /// Whether another stream freed the block.
    is_foreign: bool,
}

/// Makes a plan for the layer `plan`. The plan places the blocks of a recording that this layer would serve.
/// Streams share no memory. If no placement can fit into the capacity, the plan is `None`.
///
/// The plan leaves out requests that the layer does not count: failed requests, requests for 0 bytes, and
/// requests with a larger alignment. If another stream frees a block, the plan has no slot for the block. The
/// plan also has no slots for small blocks among the first five allocations, because the layer reserves no
/// memory before a program has made these allocations. A block is small if it has at most 1/128 of the peak
/// of live bytes.
///
/// # Errors
/// The recording has more allocations or streams than a plan may have, no block that the layer could place,
/// or sizes that together exceed 64 bits.
pub fn for_layer(
    recording: &Recording,
    request: &Request,
) -> Result<(Placement, Option<ProgramPlan>), PlanError> {
    let (made, log) = program(recording);
    let lead = lead(&made);
    let is_left_out = |index: usize| index < lead || made[index].is_foreign;
    let slots: Vec<u32> = (0..made.len()).filter(|&index| !is_left_out(index)).map(|at| at as u32).collect();
    let block = |&index: &u32| {
        let Made { bytes, stream, end, .. } = made[index as usize];
        Block { birth: u64::from(index), death: u64::from(end), size: bytes, stream: u64::from(stream) }
    };
    let blocks = slots.iter().map(block).collect();
    let placement = Placement::of_blocks(recording, blocks, 0, request)?;
    let Some(placed) = placement.placed() else { return Ok((placement, None)) };
    // Each stream has its own range of addresses.
    let streams = made.iter().map(|made| made.stream as usize + 1).max().unwrap_or(0);
    let mut ranges = vec![(u64::MAX, 0); streams];
    for (block, offset) in placed {
        let (start, end) = &mut ranges[block.stream as usize];
        (*start, *end) = ((*start).min(*offset), (*end).max(offset + block.size));
    }
    let unplaced = |made: &Made| PlannedAllocation { bytes: made.bytes, stream: made.stream, slot: None };
    let mut allocations: Vec<_> = made.iter().map(unplaced).collect();
    for (&index, (block, offset)) in slots.iter().zip(placed) {
        let life = u32::try_from(block.death - block.birth).ok().and_then(|life| life.try_into().ok());
        let offset = offset - ranges[block.stream as usize].0;
        allocations[index as usize].slot = life.map(|life| PlannedSlot { life, offset });
    }
    let plan = ProgramPlan::new(PlanParts {
        log,
        alignment: ALLOCATION_ALIGNMENT,
        lanes: ranges.into_iter().map(|(start, end)| end.saturating_sub(start)).collect(),
        bound: placement.bound,
        beside: most_live(&made, is_left_out),
        allocations,
    })?;
    Ok((placement, Some(plan)))
}

/// Prints data of a plan that a [`Placement`] does not contain, in the form of [`print`](super::print).
///
/// # Errors
/// Writing to `out` fails.
pub fn print_plan(plan: &ProgramPlan, out: &mut impl Write) -> io::Result<()> {
    let parts = plan.parts();
    let left_out = parts.allocations.iter().filter(|allocation| allocation.slot.is_none()).count();
    let all = counted(parts.allocations.len() as u64, "allocation");
    let lanes = counted(parts.lanes.len() as u64, "stream");
    writeln!(out, "  written     {all}, {} for {lanes}", format_bytes(parts.bytes()))?;
    if left_out > 0 {
        let (left_out, outside) = (counted(left_out as u64, "allocation"), format_bytes(parts.beside));
        writeln!(out, "              {left_out} without a slot, at most {outside} at a time")?;
    }
    writeln!(out, "  log         {}", parts.log)
}

/// Returns the allocations of a recording, as the layer would see them, and their hash.
///
/// The hash is the SHA-256 of one line per allocation. A line has the bytes, the number of the stream, the
/// number of calls before the allocation, and the number of calls before its free, or `-`. Calls are these
/// allocations and their frees.
fn program(recording: &Recording) -> (Vec<Made>, LogHash) {
    let mut streams: HashMap<StreamKey, u32> = HashMap::default();
    let mut live: HashMap<u64, usize> = HashMap::default();
    let mut made: Vec<Made> = Vec::new();
    let mut calls: Vec<(u64, u64, Option<u64>)> = Vec::new();
    let mut count = 0;
    for event in recording.events() {
        let stream = recording.lane(event).stream;
        let ended = match event.kind {
            EventKind::Allocate if is_planned(event) => {
                // If the address is still live, the source lost the block's free.
                let lost = live.insert(event.address, made.len());
                let number = streams.len() as u32;
                let number = *streams.entry(stream).or_insert(number);
                let bytes = event.bytes.next_multiple_of(ALLOCATION_ALIGNMENT);
                made.push(Made { bytes, stream: number, end: u32::MAX, is_foreign: false });
                calls.push((event.bytes, count, None));
                count += 1;
                lost.map(|index| (index, made.len() as u32 - 1))
            }
            EventKind::Free => live.remove(&event.address).map(|index| (index, made.len() as u32)),
            _ => None,
        };
        if let Some((index, end)) = ended {
            made[index].end = end;
            made[index].is_foreign = streams.get(&stream) != Some(&made[index].stream);
            calls[index].2 = Some(count);
            count += 1;
        }
    }
    let length = made.len() as u32;
    made.iter_mut().for_each(|made| made.end = made.end.min(length));
    let mut hash = Sha256::new();
    let mut line = String::new();
    for (made, (bytes, birth, death)) in made.iter().zip(calls) {
        line.clear();
        let death = death.map_or_else(|| "-".to_owned(), |death| death.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(line, "{bytes} {} {birth} {death}", made.stream);
        hash.update(line.as_bytes());
    }
    (made, LogHash(hash.finalize().into()))
}

/// Returns whether the layer counts a request.
fn is_planned(event: &Event) -> bool {
    let rounded = event.bytes.checked_next_multiple_of(ALLOCATION_ALIGNMENT);
    event.bytes > 0 && rounded.is_some() && event.alignment_log2 <= LAYER_ALIGNMENT_LOG2
}

/// Returns the number of first allocations that get no slot.
fn lead(made: &[Made]) -> usize {
    let most = most_live(made, |_| true) / LEAD_SHARE;
    let mut bytes = 0u64;
    let is_small = |made: &&Made| {
        bytes = bytes.saturating_add(made.bytes);
        bytes <= most
    };
    made.iter().take(MOST_LEAD).take_while(is_small).count()
}

/// Returns the most bytes that the counted allocations use at the same time.
fn most_live(made: &[Made], is_counted: impl Fn(usize) -> bool) -> u64 {
    let mut changes = vec![0i128; made.len() + 1];
    for (index, made) in made.iter().enumerate().filter(|(index, _)| is_counted(*index)) {
        changes[index] += i128::from(made.bytes);
        changes[made.end as usize] -= i128::from(made.bytes);
    }
    let mut live = 0i128;
    let sums = changes.into_iter().map(|change| {
        live += change;
        live
    });
    sums.max().map_or(0, |most| u64::try_from(most).unwrap_or(u64::MAX))
}
