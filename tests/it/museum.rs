//! Tests that the random programs find mistakes.
//!
//! They find each mistake of the canary pool within 80 seeds, shrink it to a few operations, and find nothing
//! without a mistake. The programs that find a mistake pass on every pool of this repository. The same tests
//! find mistakes in the pool's own source.

mod pool;

use millpond_testkit::canary::{CanaryPool, Wrong, WrongWork};
use millpond_testkit::conformance::{self, Subject};
use millpond_testkit::program::{self, Config, Failure, StatisticsCheck, Sweep};
use millpond_testkit::size;

use crate::subjects;

/// The number of programs for each mistake: as many as the ordinary run of `order` has for each stack on the
/// device.
const SEEDS: u64 = 80;
const HANDFUL: usize = 12;

fn config() -> Config {
    Config::new("canary")
        .statistics(StatisticsCheck::Counts)
        .largest_alignment(64 << 10)
        .command("cargo test -p millpond-tests --test it museum::".to_owned())
}

#[test]
fn every_mistake_is_found_and_shrunk() {
    let config = config();
    for &wrong in Wrong::ALL {
        let build = |driver: &_| CanaryPool::build(driver, Some(wrong));
        let found = (0..SEEDS).find_map(|seed| program::run(seed, &config, &build).err());
        let Some(found) = found else { panic!("{wrong:?} is not found in {SEEDS} seeds") };
        keeps_the_order_over_our_pools(&found);
        let shrunk = program::shrink(*found, &config, &build);
        keeps_the_order_over_our_pools(&shrunk);
        let (found, left) = (shrunk.operations_found, shrunk.operations.len());
        println!("{wrong:?}: {:?}, seed {}, {found} operations shrunk to {left}", shrunk.kind, shrunk.seed);
        assert!(left <= HANDFUL, "{wrong:?} is not shrunk to {HANDFUL} operations:\n{shrunk}");
        let again = program::replay(shrunk.schedule, &shrunk.operations, &config, &build);
        assert_eq!(
            again.err().map(|failure| failure.kind),
            Some(shrunk.kind),
            "{wrong:?} does not reproduce"
        );
    }
}

/// Runs a program that found a mistake on every pool of this repository.
fn keeps_the_order_over_our_pools(found: &Failure) {
    let pools: Vec<Subject> = subjects::all().into_iter().filter(|subject| is_pool(subject.name())).collect();
    assert!(pools.len() >= 8, "{pools:?}");
    for subject in pools {
        let config = Config::for_subject(&subject);
        let build = |driver: &_| subject.build(driver);
        if let Err(failure) = program::replay(found.schedule, &found.operations, &config, &build) {
            panic!("{failure}");
        }
    }
}

/// Returns whether the last layer is a pool.
fn is_pool(stack: &str) -> bool {
    stack.rsplit('+').next().is_some_and(|layer| layer.split(':').next() == Some("pool"))
}

#[test]
fn without_a_mistake_nothing_is_found() {
    let seeds = size::of(2_000, 10_000);
    let build = |driver: &_| CanaryPool::build(driver, None);
    let sweep = Sweep::operations(u64::MAX).seeds(0..seeds);
    match program::sweep(&sweep, &config(), &build) {
        Ok(summary) => assert_eq!(summary.programs, seeds, "{summary:?}"),
        Err(failure) => panic!("{failure}"),
    }
}

/// The tests find a layer that submits work and breaks its order. Programs find it in a stack with the layer,
/// below a pool and alone. The suite finds it if the layer claims that its blocks are ready for every stream.
#[test]
fn every_mistake_of_a_layer_that_submits_work_is_found() {
    let table = subjects::layers();
    let subject = |text: &str, wrong: Option<WrongWork>| {
        let layer = wrong.map_or("zeroing".to_owned(), |wrong| format!("zeroing:wrong={}", wrong.name()));
        Subject::from_text(&text.replace("zeroing", &layer), &table).hands_on()
    };
    let by_programs = |text: &str, wrong: Option<WrongWork>| {
        let subject = subject(text, wrong);
        let config = Config::for_subject(&subject).verify_out_of_memory(false);
        (0..20).any(|seed| program::run(seed, &config, &|driver| subject.build(driver)).is_err())
    };
    let by_suite = |wrong: Option<WrongWork>| {
        let report = conformance::run(&subject("cuda+zeroing", wrong));
        report.failures().any(|(body, _)| body == "a_block_is_ready_where_the_resource_says")
    };
    assert_eq!((by_suite(None), by_suite(Some(WrongWork::SaysReady))), (false, true));
    for stack in ["cuda+zeroing+pool", "cuda+zeroing+binning", "cuda+zeroing+arena:size=20%"] {
        assert!(!by_programs(stack, None), "{stack}");
        assert!(by_programs(stack, Some(WrongWork::SaysReady)), "{stack}");
    }
    for (stack, wrong) in [
        ("cuda+zeroing", WrongWork::OnItsOwnStream),
        ("cuda+pool+zeroing", WrongWork::OnItsOwnStream),
        ("cuda+zeroing", WrongWork::AfterPassingOn),
    ] {
        assert!(!by_programs(stack, None), "{stack}");
        assert!(by_programs(stack, Some(wrong)), "{wrong:?} in {stack}");
    }
}
