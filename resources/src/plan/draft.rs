//! Plans the slots of a body: which memory each of its blocks lies in, and where.

use std::time::{Duration, Instant};

use millpond_core::ALLOCATION_ALIGNMENT;
use millpond_planning::{Block, Fit, Options, Plan, Problem, bounds, fits, plan};

use crate::plan::body::{Body, LanePlan, NONE, Slot};
use crate::plan::history::Step;
use crate::plan::sharing::{Freed, SHARED};

/// The reason why a body has no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unplanned {
    /// Its sizes together exceed 64 bits.
    NoProblem,
    /// The streams need more memory than there was.
    TooLarge,
}

/// What came of planning.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) body: Result<Body, Unplanned>,
    /// The bytes that the plan may take.
    pub(crate) limit: Option<u64>,
    pub(crate) duration: Duration,
}

/// The plan of a further body may exceed the peak of its blocks by this part: what a pool takes of memory in
/// which streams follow each other.
const FURTHER_SHARE: u64 = 8;

/// A search is content with this part of the bound above the bound.
const SLACK: u64 = 200;

/// The streams of a body share memory for blocks of more bytes than these: the first number with which the
/// plan needs little more ([`APART_SHARE`]) than if they shared all.
const SHARED_ABOVE: [u64; 5] = [16 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10];

/// Small blocks of each stream lie apart as long as that takes this part more: each block that lies apart
/// needs no event of another stream.
const APART_SHARE: u64 = 64;

/// Above this many bytes are the blocks that streams share memory for where they share none.
pub(crate) const NOT_SHARED: u64 = u64::MAX;

/// What a body may take, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// The most bytes; `None` if there is no limit.
    pub(crate) most: Option<u64>,
    /// Whether it comes beside others. It may then take little more than its blocks in use, as what upstream
    /// held before was for other work.
    pub(crate) is_further: bool,
    /// Whether its streams may share memory.
    pub(crate) may_share: bool,
}

/// Plans a body. Each stream gets memory of its own, if there is room for that, or else shares some with the
/// others.
pub(crate) fn plan_body(steps: &[Step], allowed: Allowed, options: &Options) -> Result<Body, Unplanned> {
    let Allowed { most, is_further, may_share } = allowed;
    let mut most = most.unwrap_or(u64::MAX);
    let apart = Draft::new(steps, NOT_SHARED)?;
    if is_further {
        let in_use = Draft::new(steps, 0)?.least;
        most = most.min(in_use.saturating_add(in_use / FURTHER_SHARE));
    }
    if apart.least <= most {
        return apart.place(most, options);
    }
    let has_several = steps.iter().any(|step| step.stream != steps[0].stream);
    let shared = if has_several && may_share { Draft::new(steps, 0).ok() } else { None };
    if let Some(shared) = shared.filter(|shared| shared.least <= most) {
        let room = most.min(shared.least.saturating_add(shared.least / APART_SHARE));
        let mut partly = SHARED_ABOVE.iter().filter_map(|above| Draft::new(steps, *above).ok());
        return partly.find(|draft| draft.least <= room).unwrap_or(shared).place(most, options);
    }
    // Without the blocks that keep their slots for all of the body.
    let mut steps = steps.to_vec();
    let length = steps.len() as u32;
    let long = steps.iter_mut().filter(|step| step.is_foreign || step.life == Some(length));
    long.for_each(|step| (step.life, step.is_foreign) = (None, false));
    Draft::new(&steps, NOT_SHARED)?.place(most, options)
}

/// A body whose slots have lanes, and no offsets yet.
struct Draft {
    body: Body,
    /// The allocations of each lane, and their blocks.
    lanes: Vec<(Vec<u32>, Problem)>,
    /// The bytes of all lanes, at least.
    least: u64,
}

impl Draft {
    /// Gives each stream a lane, but for blocks of more than `shared_above` bytes: these lie in one that the
    /// streams share. The body begins where the fewest bytes are in use, so that as few blocks as possible
    /// live across its end.
    fn new(steps: &[Step], shared_above: u64) -> Result<Self, Unplanned> {
        let mut steps = steps.to_vec();
        let length = steps.len();
        // That stream may do its work late, and a lane of one stream waits for it block by block.
        let apart = steps.iter_mut().filter(|step| step.is_foreign && step.bytes <= shared_above);
        apart.for_each(|step| step.life = Some(length as u32));
        let start = quietest(&steps);
        steps.rotate_left(start);
        leave_carried(&mut steps);
        let mut lanes: Vec<LanePlan> = Vec::new();
        let mut slots: Vec<Slot> = Vec::with_capacity(length);
        for step in &steps {
            let stream = if step.bytes > shared_above { SHARED } else { step.stream };
            let known = lanes.iter().position(|lane| lane.stream == stream);
            let lane = match (step.life, known) {
                (None, _) => NONE,
                (Some(_), Some(lane)) => lane as u32,
                (Some(_), None) => {
                    lanes.push(LanePlan::new(stream, 0));
                    lanes.len() as u32 - 1
                }
            };
            slots.push(Slot::new(step.bytes, step.stream, lane));
        }
        let next = ((length - start) % length.max(1)) as u32;
        let freed = if shared_above == NOT_SHARED { Vec::new() } else { vec![Freed::default(); length] };
        let mut body = Body::default();
        (body.slots, body.lanes, body.next, body.freed) = (slots, lanes, next, freed);
        let lanes = (0..body.lanes.len() as u32).map(|lane| problem(&body, lane, &steps));
        let lanes: Vec<_> = lanes.collect::<Option<_>>().ok_or(Unplanned::NoProblem)?;
        let least = lanes.iter().fold(0, |sum: u64, (_, lane)| sum.saturating_add(bounds(lane).bytes));
        Ok(Self { body, lanes, least })
    }

    /// Gives each slot its offset.
    fn place(self, most: u64, options: &Options) -> Result<Body, Unplanned> {
        let Self { mut body, lanes, least } = self;
        if least > most {
            return Err(Unplanned::TooLarge);
        }
        let end = Instant::now() + options.time; // of the search for all lanes
        for (lane, (indices, problem)) in lanes.iter().enumerate() {
            let placed = lowest(problem, options, end);
            body.lanes[lane].bytes = placed.height;
            for (&index, &offset) in indices.iter().zip(&placed.offsets) {
                let place = body.place_at(lane, offset);
                let slot = &mut body.slots[index as usize];
                (slot.offset, slot.place) = (offset, place);
            }
        }
        body.link();
        body.grams = body.all_grams();
        Ok(body)
    }
}

/// Returns the allocations of one lane and their blocks; `None` if they are no problem for the planner.
fn problem(body: &Body, lane: u32, steps: &[Step]) -> Option<(Vec<u32>, Problem)> {
    let length = steps.len() as u64;
    let of_lane = |index: &u32| body.slots[*index as usize].lane == lane;
    let indices: Vec<u32> = (0..body.slots.len() as u32).filter(of_lane).collect();
    let blocks = indices.iter().map(|&index| {
        let step = &steps[index as usize];
        let (birth, death) = (u64::from(index), u64::from(index) + u64::from(step.life.unwrap_or(1)));
        // A block that lives across the end of the body keeps its address for the whole of it.
        let (birth, death) = if death > length { (0, length) } else { (birth, death) };
        Block { birth, death, size: step.bytes, stream: 0 }
    });
    let problem = Problem::new(blocks.collect(), ALLOCATION_ALIGNMENT).ok()?;
    Some((indices, problem))
}

/// Places the blocks of one lane as low as possible, in the time that is left until `end`.
fn lowest(problem: &Problem, options: &Options, end: Instant) -> Plan {
    let bound = bounds(problem).bytes;
    let left = || Options { time: end.saturating_duration_since(Instant::now()), ..options.clone() };
    match fits(problem, bound.saturating_add(bound / SLACK), &left()) {
        Fit::Fits(found) | Fit::Unknown(found) => found,
        // It was proved that no placement is this low.
        Fit::Impossible { .. } => plan(problem, &left()),
    }
}

/// Leaves blocks that live across the end of the body to upstream, unless these are most of it. In a plan
/// they would have their addresses for the whole body. A plan that begins would need them twice, and when the
/// program goes to another body, they would lie in its slots.
fn leave_carried(steps: &mut [Step]) {
    let length = steps.len();
    let is_carried = |(at, step): (usize, &Step)| {
        step.life.is_some_and(|life| (life as usize) < length && at + life as usize > length)
    };
    let carried: Vec<bool> = steps.iter().enumerate().map(is_carried).collect();
    let bytes = |is: bool| -> u128 {
        let planned =
            steps.iter().zip(&carried).filter(|(step, carried)| step.life.is_some() && **carried == is);
        planned.map(|(step, _)| u128::from(step.bytes)).sum()
    };
    if bytes(true) <= bytes(false) {
        steps.iter_mut().zip(carried).filter(|(_, carried)| *carried).for_each(|(step, _)| step.life = None);
    }
}

/// Returns the position before which the fewest bytes of planned blocks are in use.
fn quietest(steps: &[Step]) -> usize {
    let length = steps.len();
    let mut changes = vec![0i128; length + 1];
    for (at, step) in steps.iter().enumerate() {
        let crossed = step.life.map_or(0, |life| life as usize - 1);
        let (start, bytes) = (at + 1, i128::from(step.bytes));
        // The boundaries from `start` on, of which those at or after the end are at the body's start.
        let mut add = |from: usize, to: usize| {
            if from < to {
                changes[from] += bytes;
                changes[to] -= bytes;
            }
        };
        add(start, (start + crossed).min(length));
        add(0, (start + crossed).saturating_sub(length).min(length));
    }
    let mut in_use = 0;
    let totals = changes[..length].iter().map(|change| {
        in_use += change;
        in_use
    });
    totals.enumerate().min_by_key(|(at, bytes)| (*bytes, *at)).map_or(0, |(at, _)| at)
}
