//! Makes every driver call of a program fail, one after another, in each of the ways in [`KINDS`].
//!
//! - [`exhaust`] does this for one scenario over a stack: it allocates, frees, runs out of memory, trims and
//!   drops.
//! - [`exhaust_operation`] does this for one [`Operation`]: a closure that calls one public function.
//!
//! ```
//! use millpond_testkit::canary::CanaryPool;
//! use millpond_testkit::conformance::Subject;
//! use millpond_testkit::faults;
//!
//! let subject = Subject::new("canary", |driver| CanaryPool::build(driver, None));
//! let calls = faults::count_calls(&subject).unwrap();
//! assert!(calls > 5);
//! ```

mod failure;
mod kind;
mod operation;
mod stack;
mod stage;

pub use failure::Failure;
pub(crate) use kind::FREES;
pub use kind::{FaultKind, KINDS};
pub use operation::{Act, Operation, Prepare, Runs, exhaust_operation, exhaust_operation_on};
pub use stack::{Ways, count_calls, exhaust};
pub use stage::{FaultyDevice, Live, Stage};
