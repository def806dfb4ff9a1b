//! Tests that every resource, every adaptor and every ordered pair of adaptors that keep accounts keeps the
//! contract of the trait.

mod subjects;

use millpond::ErrorKind;
use millpond_testkit::conformance::{self, Subject};

fn check(reports: impl Iterator<Item = conformance::Report>) {
    let failed: Vec<String> = reports
        .inspect(|report| println!("{report}"))
        .filter(|report| !report.passed())
        .map(|report| report.to_string())
        .collect();
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn the_suite_is_large_enough_to_mean_something() {
    let names: std::collections::BTreeSet<&str> = conformance::names().collect();
    assert_eq!(names.len(), conformance::names().count(), "two bodies have one name");
    assert!(names.len() >= 60, "{} bodies", names.len());
}

#[test]
fn every_stack_on_the_simulated_device() {
    check(subjects::all().iter().map(conformance::run));
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn every_stack_on_a_gpu() {
    let driver = millpond::driver::open(millpond::DeviceId::cuda(0)).expect("a CUDA GPU");
    let subjects = subjects::all();
    // Not every system lets its GPU reach pageable memory.
    let is_supported = |subject: &&Subject| match subject.build(&driver) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("`{}` is skipped: {error}", subject.name());
            false
        }
        _ => true,
    };
    check(subjects.iter().filter(is_supported).map(|subject| conformance::run_on(subject, &driver)));
}
