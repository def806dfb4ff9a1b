//! The planner: pieces, their searches, and the result.

use std::time::{Duration, Instant};

use crate::search::{self, Piece};
use crate::{Bounds, Problem, bounds, parallel, pieces, streams};

/// How long and with what the planner searches.
///
/// ```
/// use std::time::Duration;
/// use millpond_planning::Options;
///
/// let options = Options { time: Duration::from_secs(5), ..Options::default() };
/// assert_eq!(options.threads, 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time after which the search stops with its best placement. The first placement is always finished.
    pub time: Duration,
    /// The rounds of search, after the first placements, that one piece of the problem takes at most. If the
    /// time suffices for them, the result depends on the seed alone.
    pub rounds: u32,
    /// The seed of what is tried.
    pub seed: u64,
    /// The number of threads; 0 for one on each core. It does not change the result, if time suffices.
    pub threads: usize,
}

impl Default for Options {
    /// 30 seconds, 200 rounds, all cores.
    fn default() -> Self {
        Self { time: Duration::from_secs(30), rounds: 200, seed: 0, threads: 0 }
    }
}

/// A placement and what is proved about it.
///
/// ```
/// use millpond_planning::{Block, Options, Problem, plan};
///
/// let block = |birth, death, size| Block { birth, death, size, stream: 0 };
/// let problem = Problem::new(vec![block(0, 2, 64), block(1, 3, 64), block(2, 4, 64)], 1)?;
/// let plan = plan(&problem, &Options::default());
/// assert_eq!(plan.height, 128);
/// assert!(plan.is_optimal());
/// # Ok::<(), millpond_planning::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The offset of each block in bytes, in the order of [`Problem::blocks`]; 0 for a block of 0 bytes.
    pub offsets: Vec<u64>,
    /// The end of the highest block in bytes, its size rounded up to the alignment.
    pub height: u64,
    /// No placement is lower, in bytes: [`Bounds::bytes`], or more where an exact search proved more.
    pub bound: u64,
    /// The bounds that were computed before the search.
    pub bounds: Bounds,
    /// Whether the time ran out, so that another run may find another placement.
    pub timed_out: bool,
}

impl Plan {
    /// The height over the bound: 1 is proved to be the least. 1 without blocks.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.bound == 0 { 1.0 } else { self.height as f64 / self.bound as f64 }
    }

    /// Whether the height equals the bound. A plan that is not may be the least as well, without proof.
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.height == self.bound
    }
}

/// The answer of [`fits`].
///
/// ```
/// use millpond_planning::{Block, Fit, Options, Problem, fits};
///
/// let problem = Problem::new(vec![Block { birth: 0, death: 1, size: 64, stream: 0 }; 2], 1)?;
/// assert!(matches!(fits(&problem, 128, &Options::default()), Fit::Fits(_)));
/// assert_eq!(fits(&problem, 127, &Options::default()), Fit::Impossible { bound: 128 });
/// # Ok::<(), millpond_planning::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// This plan's height is at most the capacity.
    Fits(Plan),
    /// No placement fits: each takes at least `bound` bytes.
    Impossible {
        /// The bound, in bytes, above the capacity.
        bound: u64,
    },
    /// Neither a placement nor a proof was found. This is the lowest plan, which does not fit.
    Unknown(Plan),
}

/// Places the blocks of a problem as low as it can.
///
/// It searches until the height equals the bound, or `options` end the search.
#[must_use]
pub fn plan(problem: &Problem, options: &Options) -> Plan {
    place(problem, None, options)
}

/// Whether the blocks fit into `capacity` bytes.
#[must_use]
pub fn fits(problem: &Problem, capacity: u64, options: &Options) -> Fit {
    let bound = bounds(problem).bytes;
    if bound > capacity {
        return Fit::Impossible { bound };
    }
    let plan = place(problem, Some(capacity), options);
    if plan.height <= capacity {
        Fit::Fits(plan)
    } else if plan.bound > capacity {
        Fit::Impossible { bound: plan.bound }
    } else {
        Fit::Unknown(plan)
    }
}

fn place(problem: &Problem, capacity: Option<u64>, options: &Options) -> Plan {
    let search = Search::new(options);
    let bounds = bounds(problem);
    let unit = problem.unit();
    let capacity = capacity.map(|bytes| bytes / unit);
    let placed = match problem.orders() {
        None => search.one_lane(problem, (0..problem.blocks().len() as u32).collect(), capacity),
        Some(_) => streams::place(&search, problem, bounds.bytes / unit, capacity),
    };
    Plan {
        offsets: placed.offsets.iter().map(|offset| offset * unit).collect(),
        height: placed.height * unit,
        bound: bounds.bytes.max(placed.bound * unit),
        bounds,
        timed_out: search.is_late() && placed.height > placed.goal,
    }
}

/// A placement in units, by id in the problem.
pub(crate) struct Placed {
    pub(crate) offsets: Vec<u64>,
    pub(crate) height: u64,
    /// What is proved to be needed.
    pub(crate) bound: u64,
    /// The height with which the search is content.
    pub(crate) goal: u64,
}

/// The options of one run, with its end.
pub(crate) struct Search {
    end: Option<Instant>,
    threads: usize,
    rounds: u32,
    seed: u64,
}

impl Search {
    fn new(options: &Options) -> Self {
        Self {
            // A time beyond the clock's range does not end.
            end: Instant::now().checked_add(options.time),
            threads: parallel::threads(options.threads),
            rounds: options.rounds,
            seed: options.seed,
        }
    }

    /// The same search with its share of the time that is left: one part of this number of parts.
    pub(crate) fn part_of(&self, parts: usize) -> Self {
        let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        let now = Instant::now();
        let end = self.end.map(|end| now + end.saturating_duration_since(now) / parts);
        Self { end, ..*self }
    }

    pub(crate) fn is_late(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Places blocks as if they were of one stream. A capacity, in units, is the goal of the search.
    pub(crate) fn one_lane(&self, problem: &Problem, ids: Vec<u32>, capacity: Option<u64>) -> Placed {
        let (placed, parts) = pieces::divide(problem, ids, 0);
        let unit = problem.unit();
        let mut offsets = vec![0; problem.blocks().len()];
        let (mut height, mut bound) = (0, 0);
        for (id, offset) in placed {
            offsets[id as usize] = offset;
            height = height.max(offset + problem.blocks()[id as usize].size.div_ceil(unit));
        }
        bound = bound.max(height);
        let loads: Vec<u64> = parts.iter().map(|(instance, _)| instance.load()).collect();
        for ((_, base), load) in parts.iter().zip(&loads) {
            bound = bound.max(base + load);
        }
        let goal = capacity.unwrap_or(bound).max(bound);
        let mut pieces: Vec<Piece> = parts
            .into_iter()
            .zip(loads)
            .map(|((instance, base), load)| Piece::new(instance, base, goal - base, load, capacity.is_some()))
            .collect();
        search::skylines(&mut pieces, self.threads, &|| self.is_late());
        self.improve(&mut pieces);
        for piece in &pieces {
            height = height.max(piece.base + piece.height());
            bound = bound.max(piece.base + piece.bound());
            for (&id, &offset) in piece.instance.ids.iter().zip(piece.offsets()) {
                offsets[id as usize] = piece.base + offset;
            }
        }
        Placed { offsets, height, bound, goal }
    }

    /// Searches the highest piece, round by round, until it cannot be lower.
    fn improve(&self, pieces: &mut [Piece]) {
        let mut rounds = vec![0; pieces.len()];
        loop {
            let top = |at: &usize| pieces[*at].base + pieces[*at].height();
            let Some(highest) = (0..pieces.len()).max_by_key(|at| (top(at), std::cmp::Reverse(*at))) else {
                return;
            };
            if pieces[highest].is_done() || rounds[highest] >= self.rounds || self.is_late() {
                return;
            }
            rounds[highest] += 1;
            self.round(&mut pieces[highest]);
        }
    }

    pub(crate) fn round(&self, piece: &mut Piece) {
        piece.search(self.threads, self.seed, &|| self.is_late());
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }
}
