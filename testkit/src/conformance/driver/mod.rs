//! A test suite for every [`Driver`](millpond_core::Driver): the contract of its methods, without a resource.
//!
//! ```
//! use millpond_core::DriverHandle;
//! use millpond_driver::sim::{SimConfig, SimDevice};
//! use millpond_testkit::conformance;
//!
//! let device: DriverHandle = SimDevice::new(SimConfig::h200());
//! let report = conformance::driver::run(&device);
//! assert!(report.passed(), "{report}");
//! ```

mod device;
mod optional;
mod required;

use millpond_core::DriverHandle;

use super::{Finding, Outcome, Report};
use device::Device;

/// A test of the suite: its name and its function.
type Body = (&'static str, fn(&Device<'_>) -> Outcome);

/// Runs every test on this driver. If the driver does not offer an optional part, its test is skipped. During
/// the run, nothing else may use the device, because the tests fill its memory.
pub fn run(driver: &DriverHandle) -> Report {
    let run = |&(body, test): &Body| Finding { body, outcome: super::outcome_of(|| test(&Device(driver))) };
    Report::new(
        &driver.device().to_string(),
        required::BODIES.iter().chain(optional::BODIES).map(run).collect(),
    )
}
