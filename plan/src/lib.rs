//! A layer of millpond that serves a program from a prepared plan of its allocations.
//!
//! `slots` has a slot for each allocation of the plan, and checks that it is free. `following` follows the
//! program through the plan, in the memory of its `lane`s. docs/book/src/plans.md explains when the layer is
//! worth it.

mod file;
#[cfg(all(test, not(millpond_loom)))]
mod file_tests;
mod following;
mod gaps;
mod lane;
mod layer;
mod marks;
#[cfg(all(test, millpond_loom))]
mod models;
#[cfg(all(test, not(millpond_loom)))]
mod order_tests;
#[cfg(all(test, not(millpond_loom)))]
mod recovery_tests;
mod resource;
mod returning;
mod serving;
mod slots;
mod state;
mod sync;
#[cfg(all(test, not(millpond_loom)))]
mod tests;
#[cfg(all(test, not(millpond_loom)))]
mod upstream_tests;

pub use layer::PlanLayer;
pub use millpond_planning::ProgramPlan;
pub use resource::PlanMemoryResource;
pub use state::PlanStatistics;

use millpond_core::stack::LayerEntry;

/// The layer, as a stack's text names it.
pub const LAYERS: &[LayerEntry] = &[layer::ENTRY];
