//! The public planner. It makes a plan, and answers whether a capacity suffices.

use crate::run::Search;
use crate::{Bounds, Options, Problem, bounds, streams};

/// A placement of blocks, and a proved lower bound for its height.
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
#[non_exhaustive]
pub struct Plan {
    /// The offset of each block in bytes, in the order of [`Problem::blocks`]; 0 for a block of 0 bytes.
    pub offsets: Vec<u64>,
    /// The height of the placement in bytes: the end of its highest block, whose size is rounded up to the
    /// alignment.
    pub height: u64,
    /// The proved lower bound in bytes. It is [`Bounds::bytes`], or more if an exact search proved more.
    pub bound: u64,
    /// The bounds that were computed before the search.
    pub bounds: Bounds,
    /// Whether the search ended because the time was over. Another run may then find another placement.
    pub timed_out: bool,
}

impl Plan {
    /// Returns the height divided by the bound. If the result is 1, no placement is lower. The result is 1 if
    /// there are no blocks.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.bound == 0 { 1.0 } else { self.height as f64 / self.bound as f64 }
    }

    /// Returns whether the height equals the bound. `false` does not mean that a better plan exists.
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
#[expect(clippy::exhaustive_enums, reason = "there is no fourth answer")]
pub enum Fit {
    /// The height of this plan is at most the capacity.
    Fits(Plan),
    /// No placement fits into the capacity: every placement needs at least `bound` bytes.
    Impossible {
        /// The lower bound in bytes, which exceeds the capacity.
        bound: u64,
    },
    /// The search found neither a placement that fits, nor a proof that none exists. The value is the lowest
    /// plan that the search found.
    Unknown(Plan),
}

/// Places the blocks of a problem as low as possible.
///
/// The search ends when the height equals the bound, or when `options` end the search.
#[must_use]
pub fn plan(problem: &Problem, options: &Options) -> Plan {
    let search = Search::new(options);
    let bounds = bounds::within(problem, &|| search.is_late());
    place(problem, None, &search, bounds)
}

/// Returns whether the blocks fit into `capacity` bytes.
#[must_use]
pub fn fits(problem: &Problem, capacity: u64, options: &Options) -> Fit {
    let search = Search::new(options);
    let bounds = bounds::within(problem, &|| search.is_late());
    if bounds.bytes > capacity {
        return Fit::Impossible { bound: bounds.bytes };
    }
    let plan = place(problem, Some(capacity), &search, bounds);
    if plan.height <= capacity {
        Fit::Fits(plan)
    } else if plan.bound > capacity {
        Fit::Impossible { bound: plan.bound }
    } else {
        Fit::Unknown(plan)
    }
}

fn place(problem: &Problem, capacity: Option<u64>, search: &Search, bounds: Bounds) -> Plan {
    let unit = problem.unit();
    let capacity = capacity.map(|bytes| bytes / unit);
    let placed = match problem.orders() {
        None => search.one_lane(problem, (0..problem.blocks().len() as u32).collect(), capacity),
        Some(_) => streams::place(search, problem, bounds.bytes / unit, capacity),
    };
    Plan {
        offsets: placed.offsets.iter().map(|offset| offset * unit).collect(),
        height: placed.height * unit,
        bound: bounds.bytes.max(placed.bound * unit),
        bounds,
        timed_out: search.is_late() && placed.height > placed.goal,
    }
}
