//! Seeded programs of operations over several streams, on every stack, under the oracles of stream order.
//!
//! `MILLPOND_SEED` runs one seed, `MILLPOND_STACK` one stack, and `MILLPOND_ORDER_OPS` says how many operations
//! are run in all.

mod subjects;

use std::time::Instant;

use millpond_testkit::program::{self, Config, Summary, Sweep};

/// Operations in the ordinary test run, all stacks together.
const OPERATIONS: u64 = 10_000_000;

#[test]
fn programs_on_every_stack_keep_the_order() {
    let wanted = std::env::var("MILLPOND_ORDER_OPS").ok().map(|text| text.replace('_', ""));
    let wanted = wanted.map_or(OPERATIONS, |text| text.parse().expect("MILLPOND_ORDER_OPS is a number"));
    let only = std::env::var("MILLPOND_STACK").ok();
    let mut subjects = subjects::all();
    subjects.retain(|subject| only.as_deref().is_none_or(|only| only == subject.name()));
    assert!(!subjects.is_empty(), "no stack in tests/subjects is called {only:?}");

    let mut failed = Vec::new();
    let mut total = Summary::default();
    for subject in &subjects {
        let start = Instant::now();
        let config = Config { command: "cargo test --test order".to_owned(), ..Config::for_subject(subject) };
        let sweep = Sweep::operations(wanted.div_ceil(subjects.len() as u64)).or_seed_of_environment();
        match program::sweep(&sweep, &config, &|driver| subject.build(driver)) {
            Ok(summary) => {
                println!("`{}`: {summary} in {:.1} s", subject.name(), start.elapsed().as_secs_f64());
                total += summary;
            }
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n\n"));
    println!("all: {total}");
    if std::env::var_os("MILLPOND_SEED").is_none() {
        assert!(total.operations >= wanted, "{total}");
        assert!(total.out_of_memory > 0 && total.streams_destroyed > 0 && total.cross_stream_frees > 0);
    }
}
