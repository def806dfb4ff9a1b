//! Computes the least memory that a recording needs. Also computes a placement: an address for each block, so
//! that all blocks fit into memory that is at or near this least size.

mod bounds;
mod program;
mod text;

use foldhash::{HashMap, HashSet};
use millpond_core::ALLOCATION_ALIGNMENT;
use millpond_planning::{Block, Fit, MinimallocCsv, Options, Plan, Problem, ProblemError};
use serde::Serialize;

use crate::peers;
use crate::recording::{EventKind, Recording, Unknown};

pub(crate) use bounds::bounds_of;
pub use bounds::{Bounds, bounds};
pub use program::{PlanError, for_layer, print_plan};
pub use text::print;

/// Whether blocks of different streams may share an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Sharing {
    /// Blocks of different streams may share an address if one block is freed before the other is allocated.
    /// This is correct if the program orders its streams before each reuse.
    HostOrder,
    /// Blocks of different streams never share an address. A recording does not show where the program orders
    /// its streams.
    StreamSafe,
}

/// The input of a [`Placement`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Whether blocks of different streams may share addresses.
    pub sharing: Sharing,
    /// The alignment of each block, in bytes; not 0.
    pub alignment: u64,
    /// The capacity in bytes. The placement answers whether the blocks fit into it.
    pub capacity: Option<u64>,
    /// The time limit and the seed of the search.
    pub options: Options,
}

impl Request {
    /// Returns a request with blocks aligned to 256 bytes, no capacity, and the default options.
    pub fn new(sharing: Sharing) -> Self {
        Self { sharing, alignment: ALLOCATION_ALIGNMENT, capacity: None, options: Options::default() }
    }

    millpond_core::setters! { alignment: u64, capacity: Option<u64>, options: Options }
}

/// Whether the blocks fit into a capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// The placement fits into the capacity.
    Fits,
    /// No placement fits into the capacity.
    Impossible,
    /// This placement does not fit into the capacity, but another placement may fit.
    Unknown,
}

/// A placement of a recording's blocks, and lower bounds for its size. All sizes are in bytes, rounded up to
/// the alignment.
///
/// ```
/// use millpond_snapshot::import;
/// use millpond_snapshot::placement::{Placement, Request, Sharing};
///
/// let log = "Thread,Time,Action,Pointer,Size,Stream\n\
///            7,05:01:18.946606,allocate,0x7f00,1000,0\n\
///            7,05:01:18.946607,allocate,0x8f00,3000,0\n\
///            7,05:01:18.946609,free,0x7f00,1000,0\n";
/// let recording = import::read("log", log.as_bytes(), &import::Options::default())?;
/// let request = Request::new(Sharing::StreamSafe).capacity(Some(8192));
/// let placement = Placement::of(&recording, &request)?;
/// assert_eq!((placement.height, placement.is_optimal), (Some(4096), true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Placement {
    /// The version of this format.
    pub version: u32,
    /// The name of the file.
    pub file: String,
    /// The number of blocks. Each failed request counts as a block that lives for an instant.
    pub blocks: usize,
    /// How many of the blocks are failed requests.
    pub failed_requests: usize,
    /// The number of streams.
    pub streams: usize,
    /// The number of private memory pools in the file, for instance of CUDA graphs. Their memory must stay
    /// for the replays of the graphs, so streams cannot share it in the order of the host's calls.
    pub private_pools: usize,
    /// The alignment of each block in bytes.
    pub alignment: u64,
    /// Whether streams share addresses.
    pub sharing: Sharing,
    /// The lower bound if streams share addresses: the peak of live memory.
    pub bound_host_order: u64,
    /// The lower bound if streams share no addresses.
    pub bound_stream_safe: u64,
    /// The lower bound under the requested rule for streams.
    pub bound: u64,
    /// The size of the largest block.
    pub largest: u64,
    /// The height of the placement, which is the memory that it needs; `None` if no placement can fit into
    /// the capacity.
    pub height: Option<u64>,
    /// Whether it is proved that no placement has a smaller height.
    pub is_optimal: bool,
    /// Whether the search ended because the time was over. Another run may then find another placement.
    pub timed_out: bool,
    /// The requested capacity in bytes.
    pub capacity: Option<u64>,
    /// Whether the blocks fit into the capacity; `None` if no capacity was requested.
    pub answer: Option<Answer>,
    /// Missing data and contradictions in the file, which make these figures uncertain.
    pub doubts: Vec<Unknown>,
    /// The blocks with their offsets.
    #[serde(skip)]
    placed: Option<Vec<(Block, u64)>>,
}

impl Placement {
    /// Computes the bounds, and searches for a placement.
    ///
    /// # Errors
    /// The alignment is 0, or the sum of all sizes needs more than 64 bits.
    pub fn of(recording: &Recording, request: &Request) -> Result<Self, ProblemError> {
        let (blocks, failed_requests) = blocks_of(recording);
        Self::of_blocks(recording, blocks, failed_requests, request)
    }

    /// Places the buffers of minimalloc's CSV by their steps. `recording` is the import of the same file.
    ///
    /// # Errors
    /// The errors of [`of`](Self::of).
    pub fn of_minimalloc(
        recording: &Recording,
        csv: &MinimallocCsv,
        request: &Request,
    ) -> Result<Self, ProblemError> {
        let streams: HashSet<u64> = csv.rows().iter().map(|row| row.stream).collect();
        Ok(Self {
            streams: streams.len(),
            doubts: recording.unknowns().iter().filter(|unknown| unknown.code == "gaps").cloned().collect(),
            ..Self::of_blocks(recording, csv.blocks(), 0, request)?
        })
    }

    fn of_blocks(
        recording: &Recording,
        blocks: Vec<Block>,
        failed_requests: usize,
        request: &Request,
    ) -> Result<Self, ProblemError> {
        let (shares, alignment) = (request.sharing == Sharing::HostOrder, request.alignment);
        let apart =
            shares.then(|| Problem::stream_safe(blocks.clone(), alignment, Vec::new())).transpose()?;
        let problem = match shares {
            true => Problem::new(blocks, alignment)?,
            false => Problem::stream_safe(blocks, alignment, Vec::new())?,
        };
        let (plan, answer, bound) = search(&problem, request.capacity, &request.options);
        // A plan has the bounds of its problem.
        let bounds = match (&plan, &apart) {
            (Some(plan), None) => plan.bounds,
            (_, apart) => millpond_planning::bounds(apart.as_ref().unwrap_or(&problem)),
        };
        Ok(Self {
            version: 1,
            file: recording.file().to_owned(),
            blocks: problem.blocks().len(),
            failed_requests,
            streams: recording.stream_count(),
            private_pools: peers::private_pools(recording),
            alignment,
            sharing: request.sharing,
            bound_host_order: bounds.host_order,
            bound_stream_safe: bounds.bytes,
            bound,
            largest: bounds.largest,
            height: plan.as_ref().map(|plan| plan.height),
            is_optimal: plan.as_ref().is_some_and(Plan::is_optimal),
            timed_out: plan.as_ref().is_some_and(|plan| plan.timed_out),
            capacity: request.capacity,
            answer,
            doubts: recording.doubts().cloned().collect(),
            placed: plan.map(|plan| problem.blocks().iter().copied().zip(plan.offsets).collect()),
        })
    }

    /// Returns the blocks as minimalloc's CSV: the positions of the allocation and the free, counted in
    /// events, the size and the offset. `None` if no placement can fit into the capacity.
    #[must_use]
    pub fn csv(&self) -> Option<String> {
        let placed = self.placed.as_ref()?;
        let (blocks, offsets): (Vec<Block>, Vec<u64>) = placed.iter().copied().unzip();
        // The problem that was placed had these blocks and this alignment.
        let problem = Problem::new(blocks, self.alignment).ok()?;
        Some(problem.to_minimalloc_csv(Some(&offsets)))
    }

    /// Returns the rows of minimalloc's CSV with the offsets of their buffers. `None` if no placement can fit
    /// into the capacity.
    #[must_use]
    pub fn rows(&self, csv: &MinimallocCsv) -> Option<String> {
        let offsets: Vec<u64> = self.placed.as_ref()?.iter().map(|(_, offset)| *offset).collect();
        Some(csv.with_offsets(&offsets))
    }

    /// Returns the blocks with their offsets. Births and deaths are event numbers, or the steps in the file.
    /// Returns `None` if no placement can fit into the capacity.
    #[must_use]
    pub fn placed(&self) -> Option<&[(Block, u64)]> {
        self.placed.as_deref()
    }

    /// Returns the size of the largest block divided by the bound. If the result is near 1, the problem has
    /// few large blocks, and a low placement is hard to find.
    #[must_use]
    pub fn hardness(&self) -> f64 {
        if self.bound == 0 { 0.0 } else { self.largest as f64 / self.bound as f64 }
    }
}

fn search(
    problem: &Problem,
    capacity: Option<u64>,
    options: &Options,
) -> (Option<Plan>, Option<Answer>, u64) {
    let Some(capacity) = capacity else {
        let plan = millpond_planning::plan(problem, options);
        let bound = plan.bound;
        return (Some(plan), None, bound);
    };
    let (plan, answer) = match millpond_planning::fits(problem, capacity, options) {
        Fit::Impossible { bound } => return (None, Some(Answer::Impossible), bound),
        Fit::Fits(plan) => (plan, Answer::Fits),
        Fit::Unknown(plan) => (plan, Answer::Unknown),
    };
    let bound = plan.bound;
    (Some(plan), Some(answer), bound)
}

/// Returns the blocks of a recording, and how many of them are failed requests. Births and deaths are event
/// numbers. A block that is never freed lives until the end.
fn blocks_of(recording: &Recording) -> (Vec<Block>, usize) {
    let mut streams: HashMap<_, u64> = HashMap::default();
    let mut live: HashMap<u64, usize> = HashMap::default();
    let mut blocks: Vec<Block> = Vec::new();
    let mut failed = 0;
    let end = recording.len() as u64;
    for (at, event) in (0..).zip(recording.events()) {
        let mut block = |death| {
            let number = streams.len() as u64;
            let stream = *streams.entry(recording.lane(event).stream).or_insert(number);
            blocks.push(Block { birth: at, death, size: event.bytes, stream });
            blocks.len() - 1
        };
        match event.kind {
            EventKind::Allocate => {
                let number = block(end);
                // If the address is still live, the source lost the block's free.
                if let Some(old) = live.insert(event.address, number) {
                    blocks[old].death = at;
                }
            }
            EventKind::Free => {
                if let Some(number) = live.remove(&event.address) {
                    blocks[number].death = at;
                }
            }
            EventKind::AllocateFailure => {
                block(at + 1);
                failed += 1;
            }
            _ => {}
        }
    }
    (blocks, failed)
}
