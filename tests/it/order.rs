//! Tests seeded programs over several streams, on every stack, under the oracles of stream order.
//!
//! `MILLPOND_SEED` runs one seed, `MILLPOND_SUBJECT` one stack. `MILLPOND_ORDER_OPS` sets the number of
//! operations of all stacks together, `MILLPOND_ORDER_FROM` the first seed, and `MILLPOND_ORDER_RACES` the
//! number of races over each stack.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use millpond::adaptors::logging::LoggingLayer;
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{DeviceMemoryResourceExt, Layout};
use millpond_engine::log::{Action, LogReader};
use millpond_testkit::program::{self, Config, StatisticsCheck, Summary, Sweep};
use millpond_testkit::race::Race;
use millpond_testkit::shadow::ShadowAllocator;
use millpond_testkit::{size, stacks};

use crate::subjects;

/// The number of operations in the ordinary test run, all stacks together: 80 programs over each stack on
/// device memory. The museum's mistakes are found in this many; `.ci/full` runs 50 times as many.
const OPERATIONS: u64 = 2_000_000;

/// Races of eight threads over each stack.
const RACES: u64 = 2;

#[test]
fn programs_on_every_stack_keep_the_order() {
    let wanted = size::named("MILLPOND_ORDER_OPS").unwrap_or(OPERATIONS);
    let first = size::named("MILLPOND_ORDER_FROM").unwrap_or(0);
    let subjects = subjects::wanted();
    let shares: u64 = subjects.iter().map(stacks::share).sum();
    let mut failed = Vec::new();
    let mut total = Summary::default();
    for (subject, index) in subjects.iter().zip(0..) {
        let start = Instant::now();
        let command = "cargo test -p millpond-tests --test it order::".to_owned();
        let config = Config::for_subject(subject).command(command);
        // Each stack gets its own programs.
        let seeds = (first + index * 10_000_000)..u64::MAX;
        let operations = (wanted * stacks::share(subject)).div_ceil(shares);
        let sweep = Sweep::operations(operations).seeds(seeds).or_seed_of_environment();
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

/// A user's layer clears blocks on the stream of each call, and declares that it submits work. It keeps the
/// order below every layer and above every stack, and so does each of our layers above it.
#[test]
fn a_layer_that_submits_work_keeps_the_order_wherever_it_stands() {
    let mut failed = Vec::new();
    let subjects = subjects::builder().with_submitted_work();
    assert!(subjects.len() > 80, "{}", subjects.len());
    for (subject, index) in subjects.iter().zip(0..) {
        let config = Config::for_subject(subject).verify_out_of_memory(false);
        let operations = size::of(250, 500) * stacks::share(subject);
        let sweep = Sweep::operations(operations).seeds(index * 1_000_000..u64::MAX);
        if let Err(failure) = program::sweep(&sweep, &config, &|driver| subject.build(driver)) {
            failed.push(failure.to_string());
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n\n"));
}

/// Needs several threads: blocks change hands while other threads free, allocate, record and wait.
#[test]
fn racing_threads_keep_the_order() {
    let steps = size::of(500, 2_000);
    let races = size::named("MILLPOND_ORDER_RACES").unwrap_or(RACES);
    for subject in subjects::wanted() {
        let mut total = Summary::default();
        for seed in 0..races {
            match Race::new(seed, steps).run(&subject) {
                Ok(summary) => total += summary,
                Err(message) => panic!("race {seed} over `{}`: {message}", subject.name()),
            }
        }
        println!("`{}`: {total}", subject.name());
        assert_eq!(total.programs, races);
    }
}

/// A writer whose bytes can be read afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Oracle 10: the log tells what happened. A simple allocator follows the log's rows. They never contradict
/// each other, and they lead to the state in which the program ended.
#[test]
fn a_log_replays_to_the_same_state() {
    // The check for out of memory would try again, and the log would contain that.
    let config =
        Config::new("cuda+pool+logging").statistics(StatisticsCheck::Exact).verify_out_of_memory(false);
    for seed in 0..200 {
        let log = Shared::default();
        let summary = program::run(seed, &config, &|driver| {
            let pool = CudaMemoryResource::new(Arc::clone(driver)).layer(PoolLayer::new())?;
            Ok(pool.layer(LoggingLayer::new().writer(log.clone()))?.into_any())
        });
        let summary = summary.unwrap_or_else(|failure| panic!("{failure}"));
        let bytes = log.0.lock().expect("no writer panics").clone();
        let mut shadow = ShadowAllocator::new();
        let (mut served, mut failures) = (0, 0);
        for event in LogReader::from_reader("log", &bytes[..]).expect("a header") {
            let event = event.expect("a row");
            let layout = Layout::with_alignment(event.bytes, event.alignment).expect("a power of two");
            let noted = match event.action {
                Action::Allocate => {
                    served += 1;
                    shadow.allocate(event.pointer, layout)
                }
                Action::Free => shadow.deallocate(event.pointer, layout),
                Action::AllocateFailure => {
                    failures += 1;
                    Ok(())
                }
            };
            noted.unwrap_or_else(|fault| panic!("seed {seed}, line {}: {fault}", event.line));
        }
        assert_eq!((served, failures), (summary.allocations, summary.out_of_memory), "seed {seed}");
        assert_eq!(shadow.live_blocks(), 0, "seed {seed}: blocks are left after the last row");
    }
}
