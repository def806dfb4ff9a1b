//! A test suite for every resource and adaptor: the contract of
//! [`DeviceMemoryResource`](millpond_core::DeviceMemoryResource), as tests.
//!
//! ```
//! use millpond_testkit::canary::CanaryPool;
//! use millpond_testkit::conformance::{self, Subject};
//!
//! // A small pool that keeps stream order, but goes on after a sticky error.
//! let subject = Subject::new("canary", |driver| CanaryPool::build(driver, None));
//! let report = conformance::run(&subject);
//! assert!(report.bodies() >= 60);
//! assert!(report.failures().any(|(body, _)| body == "sticky_error_poisons"), "{report}");
//! assert!(!report.failures().any(|(body, _)| body == "pending_work_is_not_overtaken"), "{report}");
//! ```
//!
//! Each test is a function, its body. [`run`] runs each body on a fresh simulated device, which also checks
//! stream order. [`run_on`] runs the bodies on a driver of yours. It skips bodies that need the simulated
//! device, and the report lists them. The suite [`driver`] tests a driver itself.

/// Lists a file's bodies, each under its function's name.
macro_rules! bodies {
    ($($body:ident),+ $(,)?) => {
        pub(super) const BODIES: &[super::Body] = &[$((stringify!($body), $body)),+];
    };
}

mod captures;
mod contents;
mod context;
pub mod driver;
mod driver_calls;
mod equality;
mod errors;
mod faults;
mod lifetime;
mod misuse;
mod report;
mod requests;
mod statistics;
mod streams;
mod subject;
mod text;
mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_core::DriverHandle;

pub use report::{Finding, Outcome, Report};
pub use subject::{Decay, Inspect, Refusals, Subject};

use context::Context;

/// A test of the suite: its name and its function.
type Body = (&'static str, fn(&Context<'_>) -> Outcome);

/// Returns the names of all bodies, in the order in which they run.
pub fn names() -> impl Iterator<Item = &'static str> {
    bodies().map(|(name, _)| *name)
}

fn bodies() -> impl Iterator<Item = &'static Body> {
    [
        requests::BODIES,
        contents::BODIES,
        streams::BODIES,
        captures::BODIES,
        threads::BODIES,
        errors::BODIES,
        text::BODIES,
        equality::BODIES,
        lifetime::BODIES,
        statistics::BODIES,
        misuse::BODIES,
        faults::BODIES,
        driver_calls::BODIES,
    ]
    .into_iter()
    .flatten()
}

/// Runs every body, each on a fresh simulated device.
pub fn run(subject: &Subject) -> Report {
    run_bodies(subject, || Context::on_sim(subject))
}

/// Runs every body on this driver. During the run, do not use the driver.
pub fn run_on(subject: &Subject, driver: &DriverHandle) -> Report {
    run_bodies(subject, || Context::on_driver(subject, driver))
}

fn run_bodies<'a>(subject: &'a Subject, context: impl Fn() -> Context<'a>) -> Report {
    let findings = bodies().map(|&(body, test)| {
        let context = context();
        let outcome = outcome_of(|| {
            let (outcome, misuses) = crate::misuse_recorder::record(|| test(&context));
            if let Some(misuse) = misuses.first() {
                panic!("{misuse}");
            }
            context.check_at_end();
            outcome
        });
        Finding { body, outcome }
    });
    Report::new(subject.name(), findings.collect())
}

/// A test that panics has failed.
fn outcome_of(test: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(test)).unwrap_or_else(|panic| Outcome::Failed(crate::text_of(&*panic)))
}
