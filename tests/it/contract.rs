//! Tests that every resource, every adaptor and every ordered pair of accounting adaptors keeps the contract
//! of the trait.

mod duties;
#[path = "../../examples/own_adaptor.rs"]
mod own_adaptor;
#[path = "../../examples/own_driver.rs"]
mod own_driver;
#[path = "../../examples/own_resource.rs"]
mod own_resource;
mod wrong;
mod wrong_driver;
#[path = "../../examples/zeroing_adaptor.rs"]
mod zeroing_adaptor;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use millpond::adaptors::AllocationLimit;
use millpond::containers::{DeviceVec, Stream};
use millpond::driver::StreamFlags;
use millpond::driver::sim::{Schedule, SimConfig, SimDevice};
use millpond::resources::CudaMemoryResource;
use millpond::stack::StackSpec;
use millpond::{DeviceMemoryResourceExt, DriverHandle, ErrorKind, StreamRef, find_trait};
use millpond_testkit::Checked;
use millpond_testkit::conformance::{self, Refusals, Subject};
use millpond_testkit::size;
use wrong_driver::WrongDriver;
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

/// Returns the tests that fail over a driver with a mistake, or without one.
fn failed_over(mistake: wrong_driver::Mistake) -> Vec<&'static str> {
    let config = SimConfig::with_capacity(4 << 30).seed(1).schedule(Schedule::Seeded(1));
    let seen = AtomicU64::new(if mistake == wrong_driver::Mistake::FreeNeverRises { u64::MAX } else { 0 });
    let driver: DriverHandle = Arc::new(WrongDriver { inner: SimDevice::new(config), mistake, seen });
    conformance::driver::run(&driver).failures().map(|(body, _)| body).collect()
}

#[test]
fn the_suite_for_drivers_finds_each_mistake() {
    assert_eq!(failed_over(wrong_driver::Mistake::None), [""; 0]);
    for (mistake, body) in wrong_driver::Mistake::ALL {
        let found = failed_over(*mistake);
        assert!(found.contains(body), "{mistake:?} is not found by {body}, but by {found:?}");
    }
}

#[test]
fn the_drivers_keep_their_contract() {
    own_driver::main().expect("the example runs");
    let config = SimConfig::h200().seed(1).schedule(Schedule::Seeded(1));
    let drivers: [DriverHandle; 2] = [SimDevice::new(config), Arc::new(own_driver::HostDriver::default())];
    let reports: Vec<_> = drivers.iter().map(conformance::driver::run).collect();
    // The simulated device offers every optional part.
    assert_eq!(reports[0].skipped().count(), 0, "{}", reports[0]);
    check(reports.into_iter());
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn the_driver_of_cuda_keeps_its_contract() {
    let driver = millpond::driver::open(millpond::DeviceId::cuda(0)).expect("a CUDA GPU");
    check([conformance::driver::run(&driver)].into_iter());
}

/// Returns a driver over host memory, which offers no optional part.
fn host_driver() -> DriverHandle {
    let driver: DriverHandle = Arc::new(own_driver::HostDriver::default());
    millpond::driver::register(&driver).expect("the device is its own");
    driver
}

#[test]
fn errors_name_what_a_driver_lacks() {
    let driver = host_driver();
    let build = |text: &str| text.parse::<StackSpec>()?.build(&millpond::layers(), &driver);
    for (stack, text) in [
        (
            "cuda_async",
            "not supported on own:0 in `cuda_async`: the device has no stream-ordered memory pools; ",
        ),
        ("system", "own:0 cannot access pageable host memory; "),
    ] {
        let error = build(stack).expect_err("the driver lacks it");
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(text), "{error}");
    }
    let cuda = build("cuda").expect("it needs no more");
    let error = cuda.allocate_bytes(1 << 40, StreamRef::LEGACY).expect_err("it is larger").to_string();
    assert!(error.contains("or use managed memory if the device has it"), "{error}");
}

#[test]
fn the_suite_says_how_a_subject_is_declared() {
    let cuda = |text: &str| Subject::from_text(text, &millpond::layers()).largest_bytes(8 << 20);
    let report = conformance::run(&cuda("cuda"));
    let failures: Vec<_> = report.failures().collect();
    assert!(matches!(failures[..], [("drop_gives_back_what_is_handed_out", _)]), "{report}");
    for hint in ["see Subject::hands_on", "see Subject::refuses", "see Subject::statistics"] {
        assert!(report.to_string().contains(hint), "{hint}: {report}");
    }
    let enabled = "to run 4 of the skipped tests, call `Subject::refuses`";
    assert!(report.to_string().contains(enabled), "{report}");
    let report = conformance::run_on(&cuda("cuda+pool"), &host_driver()).to_string();
    assert!(report.contains("see Subject::alone") && !report.contains("GPU"), "{report}");
}

/// A device that nothing else uses shows what a resource leaves there.
#[test]
fn the_suite_measures_a_device_that_is_alone() {
    let cuda = Subject::from_text("cuda", &millpond::layers()).largest_bytes(8 << 20);
    for (subject, failures) in [(cuda.clone(), 0), (cuda.clone().alone(), 1), (cuda.alone().hands_on(), 0)] {
        let report = conformance::run_on(&subject, &host_driver());
        assert_eq!(report.failures().count(), failures, "{report}");
    }
}

#[test]
fn a_driver_takes_at_most_150_lines() {
    let example = include_str!("../../examples/own_driver.rs");
    let (driver, _) = example.split_once("pub(crate) fn main()").expect("the program is below the driver");
    assert!(lines_of(driver) <= 150, "{} lines", lines_of(driver));
}

/// Returns the number of lines of code.
fn lines_of(code: &str) -> usize {
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.count()
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
        // A layer that clears blocks would write to all memory of the device.
        let fills = !subject.name().contains("zeroing");
        let subject = if fills { subject.clone().alone() } else { subject.clone() };
        conformance::run_on(&subject, &host_driver())
    }));
}

/// A user's own adaptors work over memory that is handed on, memory that the host can access, and pools.
#[test]
fn an_adaptor_of_ones_own() {
    zeroing_adaptor::main().expect("the example runs");
    own_adaptor::main().expect("the example runs");
    let table = millpond::layers().with([own_adaptor::ENTRY]);
    let below = ["cuda", "managed", "cuda+pool", "cuda+arena", "cuda+pool+thread_safe"];
    let subjects = below.into_iter().flat_map(|below| {
        let zeroing = Subject::new(format!("{below}+zeroing"), move |driver| {
            let upstream = below.parse::<StackSpec>()?.build(&millpond::layers(), driver)?;
            Ok(Arc::new(ZeroingAdaptor { upstream }))
        });
        let capped = Subject::from_text(&format!("{below}+request_cap:largest=64MiB"), &table);
        [zeroing, capped].map(|subject| {
            // Each block is filled, on a device that has it in the host's memory.
            let subject = subject.device_bytes(1 << 30).largest_bytes(size::of(8 << 20, 64 << 20));
            let is_pool = below.contains("pool") || below.contains("arena");
            if is_pool { subject.refuses(Refusals::ALL) } else { subject.hands_on() }
        })
    });
    check(subjects.map(|subject| conformance::run(&subject)));
}

/// Bodies that a resource fails if it takes all its memory when it is built, and reuses no block.
const NEED_REUSE_OR_DRIVER_CALLS: [&str; 7] = [
    "mixed_allocations_and_frees",
    "full_device_recovers",
    "full_device_serves_another_stream",
    "driver_out_of_memory_from_now_on",
    "another_driver_error_once",
    "sticky_error_poisons",
    "poisoned_deallocate_and_drop_call_no_driver", // no request meets the driver's error
];

#[test]
fn a_resource_of_ones_own() {
    for below in ["cuda_async", "cuda+pool"] {
        let subject = Subject::new(format!("{below}+bump"), move |driver| {
            let upstream = below.parse::<StackSpec>()?.build(&millpond::layers(), driver)?;
            Ok(own_resource::BumpMemoryResource::new(upstream, 128 << 20)?.into_any())
        });
        let report = conformance::run(&subject.largest_bytes(256 << 10));
        let failed: Vec<_> = report.failures().map(|(body, _)| body).collect();
        assert_eq!(failed, NEED_REUSE_OR_DRIVER_CALLS, "{report}");
    }
}

/// Any stream may use the region, even if an earlier owner's work on it has not finished.
#[test]
fn a_resource_of_ones_own_over_freed_memory() {
    own_resource::main().expect("the example runs");
    for below in ["cuda+pool", "cuda_async"] {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30).seed(1).schedule(Schedule::Seeded(1)));
        let driver: DriverHandle = device.clone();
        let upstream = below.parse::<StackSpec>().and_then(|spec| spec.build(&millpond::layers(), &driver));
        let upstream = upstream.expect("the device has it");
        let earlier = DeviceVec::<u8>::zeroed(1 << 20, StreamRef::LEGACY, upstream.clone());
        drop(earlier.expect("there is room"));

        let other = Stream::new(driver, StreamFlags::NON_BLOCKING).expect("the device has streams");
        let bump = own_resource::BumpMemoryResource::new(upstream, 1 << 20).expect("there is room");
        drop(DeviceVec::<u8, _>::zeroed(1 << 20, &other, bump).expect("it is as large as the region"));
        assert_eq!(device.take_violations(), [], "{below}");
    }
}

/// The suite's wrapper is a layer, so searches for a trait reach the resource under test.
#[test]
fn traits_are_found_through_the_checks() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let spec = "cuda+limiting:limit=1MiB".parse::<StackSpec>().expect("a stack");
    let limited = spec.build(&millpond::layers(), &driver).expect("the device has it");
    assert!(find_trait::<dyn AllocationLimit>(&Checked::new(limited, None)).is_some());
    let plain = CudaMemoryResource::new(driver);
    assert!(find_trait::<dyn AllocationLimit>(&Checked::new(plain, None)).is_none());
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
    assert!(lines_of(adaptor) <= 30, "{} lines", lines_of(adaptor));
}
