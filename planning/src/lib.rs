//! Offline placement of memory blocks: how much memory a program needs at least, and which address each of
//! its blocks would take.
//!
//! This crate has no device, no driver, and no dependency on others of millpond.
//!
//! | here | what it is |
//! |---|---|
//! | [`Block`], [`Problem`], [`Order`] | blocks, and where the log orders streams |
//! | [`bounds`] | the least that any placement takes, in host order and stream-safe |
//! | [`plan`] | a placement, and its height beside the bound |
//! | [`fits`] | whether the blocks fit into a capacity: yes, proved not to, or unknown |
//! | [`validate`] | checks a placement; shares no code with the planner |
//! | `MinimallocCsv` | minimalloc's CSV in and out, with the feature `csv`, which is on by default |
//! | [`ProgramPlan`] | the plan of a whole program, as text in and out |
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
//! 1. Blocks that live through a whole piece of the log lie below it, and what is left falls into pieces
//!    between which no block is live, and so on.
//! 2. Each piece is placed by a skyline from the bottom up, with five keys at once. For training and decoding
//!    loops that usually reaches the bound.
//! 3. The highest piece is searched in rounds until it reaches its bound: repair takes blocks out and puts
//!    them elsewhere below a lower capacity; pieces of up to 1500 blocks are searched exactly as well, which
//!    can prove that no lower placement exists.
//!
//! A round gives each of its workers a fixed amount of work, whatever the number of cores. So the seed alone
//! decides the result, unless [`Options::time`] ends the search first; [`Plan::timed_out`] says so.

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
