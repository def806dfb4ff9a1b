//! Tests random programs over random stacks of three to six layers, drawn from every layer of the project.
//!
//! The programs have kernels in flight on many streams, captures, scopes for captured graphs, mistakes,
//! failing calls, resets, several devices and threads. Callbacks, hooks and subscribers use the stack. A
//! watchdog names the layer in which a call hangs.
//!
//! `MILLPOND_STACKS_OPS` sets the number of operations, `MILLPOND_STACKS_RACES` the number of races, and
//! `MILLPOND_STACKS_FROM` the first seed. `MILLPOND_SEED` runs one seed.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use millpond_adaptors::{FailedRequest, FailureCallbackLayer};
use millpond_core::driver::DriverHandle;
use millpond_core::stack::{LayerEntry, LayerKind, LayerTable, Params, StackSpec};
use millpond_core::{AnyResource, Layer, Result, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::CaptureScope;
use millpond_testkit::canary::{CanaryLayer, WrongLayer};
use millpond_testkit::conformance::Subject;
use millpond_testkit::guest;
use millpond_testkit::program::{self, Case, Config, Failure, ScopeOfGraphs, Summary, Sweep, sweep_cases};
use millpond_testkit::race::Race;
use millpond_testkit::random_stacks::{Stacks, is_drawn};
use millpond_testkit::size;
use millpond_testkit::watch::Watchdog;

use crate::looks::{decay_pools, validate_pools};

/// Races of the ordinary test run.
const RACES: u64 = 60;

/// Each mistake of a layer must show within this many seeds.
const CANARY_SEEDS: u64 = 1_000;

/// A call that takes longer counts as hanging. The machine may be busy.
const HANGS_AFTER: Duration = Duration::from_secs(60);

struct Scope(CaptureScope);

impl ScopeOfGraphs for Scope {
    fn open(&self, stream: StreamRef) -> Result<Box<dyn Send>> {
        Ok(Box::new(self.0.begin(stream)?))
    }
}

fn new_scope(stack: &AnyResource) -> Result<Box<dyn ScopeOfGraphs>> {
    Ok(Box::new(Scope(CaptureScope::of(stack)?)))
}

/// A layer that text cannot name. Its callback lets the thread's guest use the whole stack.
const FAILURE_CALLBACK: LayerEntry = LayerEntry {
    name: "failure_callback",
    about: "lets a guest use the stack when memory is out",
    params: &[],
    kind: LayerKind::Layer(|_, upstream| {
        let layer = FailureCallbackLayer::new(|failed: &FailedRequest<'_>| {
            failed.attempt < 3 && guest::called(Some(failed.stream))
        });
        Ok(Arc::new(layer.layer(upstream)?))
    }),
};

fn table() -> LayerTable {
    let layers = LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied());
    layers.with(millpond_adaptors::LAYERS.iter().copied()).with([FAILURE_CALLBACK])
}

/// Returns the stack and the program of a seed, if the stack can be built.
fn case(stacks: &Stacks, seed: u64) -> Option<(StackSpec, Config)> {
    let stack = stacks.draw(seed).expect("the options are right");
    let mut config = stacks.config(seed, &stack, new_scope);
    config.command = "cargo test -p millpond-resources --test it random_stacks::".to_owned();
    config.inspect = Some(validate_pools);
    config.decay = Some(decay_pools);
    let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(config.capacity_bytes));
    stacks.build(&stack, &driver).is_ok().then_some((stack, config))
}

fn run(stacks: &Stacks, sweep: &Sweep) -> Result<Summary, Box<Failure>> {
    sweep_cases(sweep, &|seed| {
        let (stack, config) = case(stacks, seed)?;
        let build = move |driver: &DriverHandle| stacks.build(&stack, driver);
        Some(Case { config, build })
    })
}

#[test]
fn programs_on_random_stacks_keep_the_rules() {
    let _watchdog = Watchdog::abort_after(HANGS_AFTER);
    let stacks = Stacks::new(table());
    let start = Instant::now();
    let operations = size::named("MILLPOND_STACKS_OPS").unwrap_or_else(|| size::of(300_000, 1_000_000));
    let seeds = size::named("MILLPOND_STACKS_FROM").unwrap_or(0)..u64::MAX;
    let sweep = Sweep::operations(operations).seeds(seeds).or_seed_of_environment();
    let summary = run(&stacks, &sweep).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{summary} in {:.1} s", start.elapsed().as_secs_f64());
    if std::env::var_os("MILLPOND_SEED").is_none() {
        assert!(summary.operations >= operations, "{summary}");
        let Summary { captures, launches, scopes, misuses, resets, losses, guest_calls, faults, .. } =
            summary;
        let counts = [captures, launches, scopes, misuses, resets, losses, guest_calls, faults];
        assert!(counts.iter().all(|count| *count > 0), "{summary}");
        assert!(summary.on_other_devices > 0 && summary.on_other_threads > 0, "{summary}");
    }
}

/// The draw includes every layer that text can name, with every option except those left out on purpose.
#[test]
fn every_layer_and_option_is_drawn() {
    for entry in table().entries().iter().filter(|entry| entry.name != FAILURE_CALLBACK.name) {
        assert!(is_drawn(entry.name, None), "add the layer `{}` to testkit/src/random_stacks", entry.name);
        for (option, _) in entry.params {
            assert!(is_drawn(entry.name, Some(option)), "add {option} of `{}`", entry.name);
        }
    }
}

/// Races of several threads over random stacks. Programs with one thread at a time do not cover them.
#[test]
fn races_over_random_stacks_keep_the_rules() {
    let _watchdog = Watchdog::abort_after(HANGS_AFTER);
    let stacks = Arc::new(Stacks::new(table()));
    let races = size::named("MILLPOND_STACKS_RACES").unwrap_or(RACES);
    let mut total = Summary::default();
    let seeds = 0..u64::MAX;
    for (seed, (stack, config)) in seeds.filter_map(|seed| Some((seed, case(&stacks, seed)?))) {
        let race = Race::new(seed, 400);
        let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(race.capacity_bytes));
        if stacks.build(&stack, &driver).is_err() {
            continue; // too little memory for its options
        }
        let text = stack.to_string();
        let built = Arc::clone(&stacks);
        let subject = Subject::new(text.clone(), move |driver| built.build(&stack, driver))
            .statistics(config.statistics)
            .largest_bytes(config.largest_bytes)
            .inspected_by(validate_pools)
            .decayed_by(decay_pools);
        match race.run(&subject) {
            Ok(summary) => total += summary,
            Err(message) => panic!("race {seed} over `{text}`: {message}"),
        }
        if total.programs >= races {
            break;
        }
    }
    println!("{total}");
}

/// The layer without a mistake, and with each mistake.
const CANARIES: &[LayerEntry] = &[
    canary("canary", |_, upstream| CanaryLayer::build(upstream, None)),
    canary("trusts_captures", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::TrustsCaptures))),
    canary("hides_work", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::HidesWork))),
    canary("holds_lock", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::HoldsLock))),
    canary("loses_free", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::LosesFree))),
    canary("keeps_at_reset", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::KeepsAtReset))),
    canary("frees_early_epoch", |_, upstream| {
        CanaryLayer::build(upstream, Some(WrongLayer::FreesEarlyEpoch))
    }),
    canary("ends_captures", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::EndsCaptures))),
    canary("blurs_errors", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::BlursErrors))),
    canary("waits_when_lost", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::WaitsWhenLost))),
    canary("frees_again", |_, upstream| CanaryLayer::build(upstream, Some(WrongLayer::FreesAgain))),
];

type BuildLayer = fn(&Params<'_>, AnyResource) -> Result<AnyResource>;

const fn canary(name: &'static str, build: BuildLayer) -> LayerEntry {
    LayerEntry { name, about: "a layer that may make a mistake", params: &[], kind: LayerKind::Layer(build) }
}

fn stacks_with(layer: &'static str) -> Stacks {
    let one = CANARIES.iter().filter(|entry| entry.name == layer).copied();
    Stacks::new(table().with(one)).always(layer)
}

/// Each mistake is found. Without the mistake, the same program over the same stack keeps all rules. The
/// mistake that hangs has its own test.
#[test]
fn every_mistake_of_a_layer_is_found() {
    let right = stacks_with("canary");
    for &(name, wrong) in WrongLayer::ALL.iter().filter(|(_, wrong)| *wrong != WrongLayer::HoldsLock) {
        let stacks = stacks_with(name);
        let found = (0..CANARY_SEEDS).find_map(|seed| {
            let (stack, config) = case(&stacks, seed)?;
            program::run(seed, &config, &|driver| stacks.build(&stack, driver)).err()
        });
        let Some(found) = found else { panic!("{wrong:?} is not found in {CANARY_SEEDS} seeds") };
        println!("{wrong:?}: {:?}, seed {}, `{}`: {}", found.kind, found.seed, found.subject, found.message);
        let (stack, config) = case(&right, found.seed).expect("it is built with the mistake, too");
        let again = program::run(found.seed, &config, &|driver| right.build(&stack, driver));
        assert!(again.is_ok(), "without {wrong:?}: {}", again.expect_err("it is not ok"));
    }
}

/// If a layer holds a lock across upstream, it hangs once a callback below uses the stack. The watchdog names
/// the layer.
#[test]
fn the_watchdog_names_the_layer_that_hangs() {
    const STACK: &str = "cuda+failure_callback+holds_lock+statistics";
    let (send, hangs) = mpsc::channel();
    let _watchdog = Watchdog::start(Duration::from_secs(3), move |hang| {
        if hang.stack == STACK {
            hang.give_up();
            let _ = send.send(hang.clone());
        }
    });
    // This thread never ends.
    std::thread::spawn(|| {
        let stacks = stacks_with("holds_lock");
        let stack: StackSpec = STACK.parse().expect("the text is right");
        let config = Config::new(STACK).guests(true);
        for seed in 0..size::of(CANARY_SEEDS, 3 * CANARY_SEEDS) {
            let _ = program::run(seed, &config, &|driver| stacks.build(&stack, driver));
        }
    });
    let hang = hangs.recv_timeout(HANGS_AFTER).expect("the watchdog sees the thread that hangs");
    println!("{hang}");
    assert_eq!(hang.layer(), Some("holds_lock"), "{hang}");
    assert!(hang.seed.is_some(), "{hang}");
}
