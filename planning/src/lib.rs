//! Offline placement of memory blocks. It computes the least memory that a program needs, and an address for
//! each of the program's blocks.
//!
//! This crate uses no device and no driver, and depends on no other millpond crate.
//!
//! | item | purpose |
//! |---|---|
//! | [`Block`], [`Problem`], [`Order`] | blocks, and the points at which the log orders streams |
//! | [`bounds`] | lower bounds on the height of any placement |
//! | [`plan`] | a placement, and its height compared with the bound |
//! | [`fits`] | whether the blocks fit into a capacity: yes, provably not, or unknown |
//! | [`validate`] | checks a placement; shares no code with the planner |
//! | `MinimallocCsv` | reads and writes minimalloc's CSV (feature `csv`, on by default) |
//! | [`ProgramPlan`] | the plan of a whole program, which can be written and read as text |
//! | [`synthetic`] | made-up training loops |
//!
//! ```
//! use millpond_planning::{Block, Options, Problem, plan, validate};
//!
//! // Positions count the lines of a log: at 1 the second block is allocated, at 2 the first is freed.
//! let block = |birth, death, size| Block { birth, death, size, stream: 0 };
//! let problem = Problem::new(vec![block(0, 2, 1000), block(1, 4, 300), block(3, 5, 900)], 256)?;
//! let plan = plan(&problem, &Options::default());
//! assert_eq!(plan.height, 1024 + 512);
//! assert!(plan.is_optimal());
//! assert_eq!(validate(&problem, &plan.offsets)?, plan.height);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it plans
//! 1. The planner cuts the log into pieces at the positions where no block is live. A block that lives
//!    through a whole piece is placed at the bottom. The planner then cuts the rest of the piece in the same
//!    way.
//! 2. A skyline method places the blocks of each piece from the bottom up. It tries five orders of the blocks
//!    at the same time. For training and decoding loops, this usually reaches the lower bound.
//! 3. A search improves the highest piece in rounds, until the piece reaches its lower bound. A round removes
//!    some blocks, and places them again below a lower height. For pieces of up to 1500 blocks, an exact
//!    search also runs. It can prove that no lower placement exists.
//!
//! A round gives each worker a fixed amount of work, whatever the number of cores. So the result depends only
//! on the seed, unless [`Options::time`] ends the search first. [`Plan::timed_out`] says whether this
//! happened. If the time ends before the first skyline of a large problem, best fit places the blocks of this
//! problem.

mod best_fit;
mod bounds;
mod clocks;
#[cfg(feature = "csv")]
mod csv;
mod cuts;
mod exact;
mod file;
mod first_fit;
mod instance;
mod options;
mod parallel;
mod pieces;
mod plan;
mod problem;
mod program;
mod random;
mod repair;
mod run;
mod search;
mod skyline;
mod streams;
pub mod synthetic;
mod validate;

pub use bounds::{Bounds, bounds, bounds_until};
#[cfg(feature = "csv")]
pub use csv::{CsvError, Gap, MinimallocCsv, MinimallocRow};
pub use options::Options;
pub use plan::{Fit, Plan, fits, plan};
pub use problem::{Block, Order, Problem, ProblemError};
pub use program::{
    LogHash, MOST_ALLOCATIONS, MOST_STREAMS, PlanParts, PlannedAllocation, PlannedSlot, ProgramPlan,
    ProgramPlanError,
};
pub use validate::{Invalid, validate};
