//! The plan of a program: its allocations in order, and the address range of each block.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;

use crate::{Block, Invalid, Problem, validate};

/// The most allocations of a [`ProgramPlan`].
pub const MOST_ALLOCATIONS: usize = 1 << 20;

/// The most streams of a [`ProgramPlan`].
pub const MOST_STREAMS: usize = 256;

/// The SHA-256 of the log from which a plan was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the hash alone")]
pub struct LogHash(pub [u8; 32]);

/// Writes `sha256:` and 64 hexadecimal digits.
impl fmt::Display for LogHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One allocation of a [`ProgramPlan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a plan needs each part")]
pub struct PlannedAllocation {
    /// The size in bytes, a multiple of the plan's alignment.
    pub bytes: u64,
    /// The number of the stream. Streams are numbered from 0, in the order of their first allocations.
    pub stream: u32,
    /// The address range of the block in the memory of its stream; `None` if the plan leaves the block out.
    pub slot: Option<PlannedSlot>,
}

/// The address range and the lifetime of a block in a [`ProgramPlan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a plan needs each part")]
pub struct PlannedSlot {
    /// The lifetime of the block as a number of allocations, from this allocation up to the block's
    /// deallocation. This allocation counts. If the block lives into the next pass of the program, it keeps
    /// its bytes for a whole pass.
    pub life: NonZeroU32,
    /// The distance from the start of the stream's memory, in bytes.
    pub offset: u64,
}

/// The content of a [`ProgramPlan`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a plan needs each part")]
pub struct PlanParts {
    /// The hash of the log that the plan was made from.
    pub log: LogHash,
    /// The alignment in bytes. All sizes and offsets are multiples of it.
    pub alignment: u64,
    /// The bytes of each stream's memory. No other stream uses this memory.
    pub lanes: Vec<u64>,
    /// The lower bound in bytes. If each stream has its own memory, no placement of the same blocks needs
    /// fewer bytes.
    pub bound: u64,
    /// The peak of the live bytes in blocks without a slot.
    pub beside: u64,
    /// The allocations, in the order of the program.
    pub allocations: Vec<PlannedAllocation>,
}

impl PlanParts {
    /// Returns the sum of the bytes of all lanes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lanes.iter().fold(0, |sum, lane| sum.saturating_add(*lane))
    }

    /// Returns the bytes of all lanes divided by the bound. If the result is 1, no placement needs fewer
    /// bytes. The result is 1 if there are no blocks.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.bound == 0 { 1.0 } else { self.bytes() as f64 / self.bound as f64 }
    }
}

/// A plan for a program that makes the same allocations in each run.
///
/// A plan is consistent: if the program's blocks live as long as the plan says, no two blocks share bytes
/// while both are in use. [`Display`](fmt::Display) writes a plan as text, and [`read`](Self::read) reads it.
///
/// ```
/// use millpond_planning::{LogHash, PlanParts, PlannedAllocation, PlannedSlot, ProgramPlan};
///
/// let block = |bytes, life: u32, offset| {
///     let slot = life.try_into().ok().map(|life| PlannedSlot { life, offset });
///     PlannedAllocation { bytes, stream: 0, slot }
/// };
/// let plan = ProgramPlan::new(PlanParts {
///     log: LogHash([7; 32]),
///     alignment: 256,
///     lanes: vec![1536],
///     bound: 1536,
///     beside: 0,
///     allocations: vec![block(1024, 2, 0), block(512, 1, 1024), block(256, 1, 0)],
/// })?;
/// assert_eq!(ProgramPlan::read(plan.to_string().as_bytes())?, plan);
/// # Ok::<(), millpond_planning::ProgramPlanError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramPlan(pub(crate) PlanParts);

impl ProgramPlan {
    /// Checks the parts of a plan, and makes the plan.
    ///
    /// # Errors
    /// Returns an error about the first wrong allocation, with the reason. The reasons are: a size or an
    /// offset is not a multiple of the alignment; a block ends outside of its lane; a block shares bytes with
    /// another block; streams are not numbered by their first allocation. Also returns an error if no
    /// allocation has a slot, or if there are more than [`MOST_ALLOCATIONS`] allocations or [`MOST_STREAMS`]
    /// streams.
    pub fn new(parts: PlanParts) -> Result<Self, ProgramPlanError> {
        let checked = check(&parts);
        checked.map(|()| Self(parts)).map_err(|Defect { allocation, what }| {
            ProgramPlanError(match allocation {
                Some(index) => format!("allocation {}: {what}", index + 1),
                None => what,
            })
        })
    }

    /// Returns the parts of the plan.
    #[must_use]
    pub fn parts(&self) -> &PlanParts {
        &self.0
    }
}

/// The reason why a [`ProgramPlan`] was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramPlanError(pub(crate) String);

impl fmt::Display for ProgramPlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ProgramPlanError {}

/// A mistake in a plan, and the allocation that has it.
pub(crate) struct Defect {
    pub(crate) allocation: Option<usize>,
    pub(crate) what: String,
}

impl Defect {
    fn of_all(what: impl Into<String>) -> Self {
        Self { allocation: None, what: what.into() }
    }

    fn at(allocation: usize, what: impl Into<String>) -> Self {
        Self { allocation: Some(allocation), what: what.into() }
    }
}

/// Checks the parts of a plan.
pub(crate) fn check(parts: &PlanParts) -> Result<(), Defect> {
    let PlanParts { alignment, lanes, bound, allocations, .. } = parts;
    if *alignment == 0 {
        return Err(Defect::of_all("the alignment is 0; write 1 for no alignment"));
    }
    if lanes.len() > MOST_STREAMS {
        return Err(Defect::of_all(format!("{} streams exceed the limit of {MOST_STREAMS}", lanes.len())));
    }
    if allocations.len() > MOST_ALLOCATIONS {
        return Err(Defect::of_all(format!(
            "{} allocations exceed the limit of {MOST_ALLOCATIONS}",
            allocations.len()
        )));
    }
    if lanes.iter().try_fold(0u64, |sum, lane| sum.checked_add(*lane)).is_none() {
        return Err(Defect::of_all("the lanes together exceed 64 bits"));
    }
    if *bound > parts.bytes() {
        return Err(Defect::of_all(format!(
            "the lanes have {} bytes in all, which is less than the bound",
            parts.bytes()
        )));
    }
    let mut streams = 0;
    for (index, allocation) in allocations.iter().enumerate() {
        one(parts, allocation, &mut streams).map_err(|what| Defect::at(index, what))?;
    }
    if streams < lanes.len() {
        return Err(Defect::of_all(format!("stream {streams} has no allocation")));
    }
    if !allocations.iter().any(|allocation| allocation.slot.is_some()) {
        return Err(Defect::of_all("no allocation has a slot"));
    }
    overlaps(parts)
}

/// Checks one allocation. `streams` is the number of streams in the allocations before it.
fn one(parts: &PlanParts, allocation: &PlannedAllocation, streams: &mut usize) -> Result<(), String> {
    let PlannedAllocation { bytes, stream, slot } = *allocation;
    let alignment = parts.alignment;
    if bytes == 0 || !bytes.is_multiple_of(alignment) {
        return Err(format!("{bytes} bytes are not a positive multiple of the alignment {alignment}"));
    }
    let Some(&lane) = parts.lanes.get(stream as usize) else {
        let lanes = parts.lanes.len();
        let noun = if lanes == 1 { "stream" } else { "streams" };
        return Err(format!("there is no stream {stream}; the plan has {lanes} {noun}, numbered from 0"));
    };
    if stream as usize > *streams {
        return Err(format!("stream {stream} comes before stream {streams}; number streams by first use"));
    }
    *streams = (*streams).max(stream as usize + 1);
    let Some(PlannedSlot { life, offset }) = slot else { return Ok(()) };
    if life.get() as usize > parts.allocations.len() {
        return Err(format!("it lives for {life} allocations, which is more than the plan has"));
    }
    if !offset.is_multiple_of(alignment) {
        return Err(format!("the offset {offset} is not a multiple of the alignment {alignment}"));
    }
    if offset.checked_add(bytes).is_none_or(|end| end > lane) {
        return Err(format!("{bytes} bytes at {offset} end outside of its lane of {lane} bytes"));
    }
    Ok(())
}

/// Finds blocks of one stream that share bytes while both are in use.
fn overlaps(parts: &PlanParts) -> Result<(), Defect> {
    let length = parts.allocations.len() as u64;
    let mut lanes: Vec<(Vec<usize>, Vec<Block>, Vec<u64>)> = vec![Default::default(); parts.lanes.len()];
    for (index, allocation) in parts.allocations.iter().enumerate() {
        let Some(PlannedSlot { life, offset }) = allocation.slot else { continue };
        let (indices, blocks, offsets) = &mut lanes[allocation.stream as usize];
        let (birth, death) = (index as u64, index as u64 + u64::from(life.get()));
        // If a block lives into the next pass, it is live for a whole pass.
        let (birth, death) = if death > length { (0, length) } else { (birth, death) };
        indices.push(index);
        blocks.push(Block { birth, death, size: allocation.bytes, stream: 0 });
        offsets.push(offset);
    }
    for (indices, blocks, offsets) in lanes {
        let problem = Problem::new(blocks, parts.alignment);
        let problem = problem.map_err(|error| Defect::of_all(error.to_string()))?;
        validate(&problem, &offsets).map_err(|invalid| match invalid {
            Invalid::Overlap { first, second } => {
                let (first, second) = (indices[first], indices[second]);
                let (first, second) = (first.min(second), first.max(second));
                let other = first + 1;
                Defect::at(
                    second,
                    format!("it shares bytes with allocation {other}, which is live at the same time"),
                )
            }
            other => Defect::of_all(other.to_string()),
        })?;
    }
    Ok(())
}
