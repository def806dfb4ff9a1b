//! Tests that every resource, every adaptor and every ordered pair of accounting adaptors keeps the contract
//! of the trait.

#[allow(dead_code, reason = "its `main` is not called here")]
#[path = "../../examples/own_driver.rs"]
mod own_driver;
mod wrong;
#[path = "../../examples/zeroing_adaptor.rs"]
mod zeroing_adaptor;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use millpond::stack::StackSpec;
use millpond::{DriverHandle, ErrorKind};
use millpond_testkit::conformance::{self, Refusals, Subject};
use millpond_testkit::size;
use wrong::{Mistake, Wrong};
use zeroing_adaptor::ZeroingAdaptor;

use crate::subjects;

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

/// Returns the test bodies that fail over a layer with a mistake.
fn failed(mistake: Mistake) -> Vec<&'static str> {
    let subject = Subject::new("cuda+pool+wrong", move |driver| {
        let upstream = "cuda+pool".parse::<StackSpec>()?.build(&millpond::layers(), driver)?;
        Ok(Arc::new(Wrong { upstream, mistake, used: AtomicU64::new(0) }))
    });
    conformance::run(&subject.refuses(Refusals::ALL)).failures().map(|(body, _)| body).collect()
}

/// Covers one error kind per size, a report in each error, and counts that follow accepted frees.
#[test]
fn the_suite_finds_mistakes_about_memory_that_is_out() {
    assert_eq!(failed(Mistake::None), [""; 0]);
    for (mistake, bodies) in [
        (
            Mistake::NoReport,
            &[
                "more_than_the_device_is_out_of_memory",
                "two_to_the_63_is_refused",
                "the_largest_number_is_refused",
                "a_huge_request_is_out_of_memory_at_any_alignment",
                "full_device_recovers",
                "driver_out_of_memory_from_now_on",
            ][..],
        ),
        (
            Mistake::InvalidArgument,
            &[
                "more_than_the_device_is_out_of_memory",
                "two_to_the_63_is_refused",
                "the_largest_number_is_refused",
            ],
        ),
        (Mistake::CountsRefusedFrees, &["misuse_changes_nothing"]),
    ] {
        let found = failed(mistake);
        let missing: Vec<_> = bodies.iter().filter(|body| !found.contains(body)).collect();
        assert!(missing.is_empty(), "{mistake:?} is not found by {missing:?}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn every_stack_on_a_gpu() {
    let driver = millpond::driver::open(millpond::DeviceId::cuda(0)).expect("a CUDA GPU");
    let subjects = subjects::all();
    // Not every system lets its GPU access pageable memory.
    let is_supported = |subject: &&Subject| match subject.build(&driver) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("`{}` is skipped: {error}", subject.name());
            false
        }
        _ => true,
    };
    check(subjects.iter().filter(is_supported).map(|subject| conformance::run_on(subject, &driver)));
}

/// A driver with only the required methods serves every stack that needs no more.
#[test]
fn every_stack_on_a_driver_of_ones_own() {
    let subjects = subjects::all_up_to(size::of(8 << 20, 64 << 20)); // each block is memory of the host
    let is_left_out = |subject: &&Subject| {
        let layers = subject.name().matches('+').count();
        layers > 1
            || ["managed", "host", "system", "sam", "async", "pages=on"]
                .iter()
                .any(|word| subject.name().contains(word))
    };
    let supported: Vec<_> = subjects.iter().filter(|subject| !is_left_out(subject)).collect();
    assert!(supported.len() > 20, "{} stacks", supported.len());
    check(supported.into_iter().map(|subject| {
        let driver: DriverHandle = Arc::new(own_driver::HostDriver::default());
        millpond::driver::register(&driver).expect("the device is its own");
        conformance::run_on(subject, &driver)
    }));
}

/// A user's own adaptor works over memory that is handed on, memory that the host can access, and a pool.
#[test]
fn an_adaptor_of_ones_own() {
    zeroing_adaptor::main().expect("the example runs");
    let subjects = ["cuda", "managed", "cuda+pool", "cuda+pool+thread_safe"].map(|below| {
        let subject = Subject::new(format!("{below}+zeroing"), move |driver| {
            let upstream = below.parse::<StackSpec>()?.build(&millpond::layers(), driver)?;
            Ok(Arc::new(ZeroingAdaptor { upstream }))
        });
        // Each block is filled, on a device that has it in the host's memory.
        let subject = subject.device_bytes(1 << 30).largest_bytes(size::of(8 << 20, 64 << 20));
        if below.contains("pool") { subject.refuses(Refusals::ALL) } else { subject.hands_on() }
    });
    check(subjects.iter().map(conformance::run));
}

/// The duties have numbers, so that a comment or an error can name a duty and stays right when another is
/// added.
#[test]
fn each_duty_of_the_contract_has_its_number() {
    let contract = include_str!("../../core/src/resource.rs");
    let duties = contract.split("# Duties of the resource").nth(1).expect("the duties");
    let duties = duties.split("# Captured graphs").next().expect("the text after them");
    let numbered = duties.lines().filter_map(|line| line.strip_prefix("/// - "));
    let count = (1..).zip(numbered).inspect(|(number, duty)| {
        assert!(duty.starts_with(&format!("**Duty {number}.** ")), "number {number}: {duty}");
    });
    assert_eq!(count.count(), 14);
    let counted = ["first duty", "second duty", "third duty", "fourth duty", "fourth duties"];
    assert!(!counted.iter().any(|words| contract.contains(words)), "a reference names the number");
}

#[test]
fn an_adaptor_takes_at_most_30_lines() {
    let example = include_str!("../../examples/zeroing_adaptor.rs");
    let (before, _) = example.split_once("pub(crate) fn main()").expect("the program is below the adaptor");
    let (_, adaptor) = before.split_once("#[derive(Debug)]").expect("imports are above it");
    let lines = adaptor.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    assert!(lines.count() <= 30, "docs/book/src/own-adaptor.md says so");
}
