//! Offline placement of memory blocks.
mod bounds;
mod clocks;
mod csv;
mod cuts;
mod exact;
mod instance;
mod parallel;
mod pieces;
mod plan;
mod problem;
mod random;
mod repair;
mod search;
mod skyline;
mod streams;
pub mod synthetic;
mod validate;

pub use bounds::{Bounds, bounds};
pub use csv::{CsvError, Gap, MinimallocCsv, MinimallocRow};
pub use plan::{Fit, Options, Plan, fits, plan};
pub use problem::{Block, Order, Problem, ProblemError};
pub use validate::{Invalid, validate};
