//! A layer of millpond that serves a program from a prepared plan of its allocations.
//!
//! A slot is the address range that the plan has chosen for an allocation. The module `slots` stores the
//! slots, and checks whether a slot is free. The module `following` finds the position of each request of the
//! program in the plan. docs/book/src/plans.md explains when the layer is worth using.

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

/// The layer that a stack's text names as `plan`.
pub const LAYERS: &[LayerEntry] = &[layer::ENTRY];
