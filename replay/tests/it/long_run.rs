//! Tests the copies of logs and the passes of examples/long_run.

#[path = "../../examples/long_run/beside.rs"]
mod beside;
#[path = "../../examples/long_run/copy.rs"]
mod copy;
#[path = "../../examples/long_run/random.rs"]
mod random;
#[path = "../../examples/long_run/report.rs"]
mod report;
#[path = "../../examples/long_run/run.rs"]
mod run;

use std::collections::{HashMap, HashSet};

use millpond_engine::Options;
use millpond_engine::log::LogReader;
use millpond_engine::program::{Limits, OpKind, Program};

use beside::Beside;
use copy::Log;
use millpond_core::stack::StackSpec;
use millpond_replay::compare::{self, Settings, StackResult};
use millpond_replay::progress::Progress;
use random::Random;
use report::{Format, Row};
use run::{Mode, Pass, Passes};

/// A log of 4000 operations on two streams: repeated sizes, blocks that are never freed, and empty requests.
fn program(seed: u64) -> Program {
    let mut random = Random::new(seed, 0);
    let mut text = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,(nil),0,0\n".to_owned();
    let mut live = Vec::new();
    for number in 1..=2000_u64 {
        let size = [1, 300, 4096, 100_000, 3 << 20, 5 << 20][(random.unit() * 6.0) as usize];
        let stream = (random.unit() * 2.0) as u32 * 7;
        text += &format!("1,0,allocate,{number:#x},{size},{stream}\n");
        live.push((number, size, stream));
        if live.len() > 40 {
            let (number, size, stream) = live.swap_remove((random.unit() * live.len() as f64) as usize);
            text += &format!("1,0,free,{number:#x},{size},{stream}\n");
        }
    }
    Program::read(LogReader::from_reader("log", text.as_bytes()).unwrap(), Limits::default()).unwrap()
}

fn log(seed: u64) -> Log {
    Log::new(&program(seed)).unwrap()
}

fn perturbed(log: &Log, seed: u64, copy: u64) -> Log {
    log.perturbed(0.1, 0.5, &mut Random::new(seed, copy))
}

fn replay(logs: Vec<Log>, stack: &str, mode: Mode, count: u32) -> Vec<Pass> {
    let (stack, device) = (stack.parse::<StackSpec>().unwrap(), "sim:h200".parse().unwrap());
    let passes = Passes { mode, count, drift: 0.03 };
    run::run(logs, &stack, &compare::layers(), &device, &passes, &mut Random::new(3, 0)).unwrap()
}

#[test]
fn a_copy_is_drawn_from_its_seed_and_number() {
    let log = log(1);
    let of = |seed, copy| perturbed(&log, seed, copy);
    assert_eq!((of(1, 1).sizes, of(1, 1).steps), (of(1, 1).sizes, of(1, 1).steps));
    assert_ne!(of(1, 1).sizes, of(2, 1).sizes);
    assert_ne!(of(1, 1).sizes, of(1, 2).sizes);
    assert_ne!(of(1, 1).steps, of(1, 2).steps);
}

#[test]
fn sizes_stay_near_the_logs_and_repeat_as_they_do() {
    let log = log(1);
    assert_eq!(log.sizes.iter().collect::<HashSet<_>>().len(), log.sizes.len());
    let copy = log.perturbed(0.1, 0.0, &mut Random::new(1, 1));
    assert_eq!(copy.steps, log.steps, "equal sizes have one index, and without swaps the order stays");
    for (old, new) in log.sizes.iter().zip(&copy.sizes) {
        let share = *new as f64 / *old as f64;
        assert!(*old <= 1 && new == old || (0.89..1.11).contains(&share), "{old} to {new}");
    }
    let mut copy = copy;
    (0..200).for_each(|_| copy.change_sizes(0.9, &mut Random::new(9, 1)));
    assert!(copy.sizes.iter().zip(&log.sizes).all(|(new, old)| (*new == 0) == (*old == 0)));
}

#[test]
fn swaps_keep_operations_and_each_blocks_order() {
    let log = log(1);
    let copy = perturbed(&log, 1, 1);
    let mut live = HashMap::new();
    for step in &copy.steps {
        match step.kind {
            OpKind::Allocate => assert_eq!(live.insert(step.slot, step.size), None),
            OpKind::Free => assert_eq!(live.remove(&step.slot), Some(step.size)),
            _ => {}
        }
    }
    let moved = log.steps.iter().zip(&copy.steps).filter(|(old, new)| old != new).count();
    assert!(moved > log.steps.len() / 4, "{moved}");
    let sorted = |log: &Log| {
        let mut keys: Vec<_> =
            log.steps.iter().map(|step| (step.slot, step.kind as u8, step.lane, step.size)).collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(sorted(&log), sorted(&copy));
}

#[test]
fn the_log_itself_has_the_figures_of_millpond_replay() {
    let program = program(1);
    let (device, stacks) = ("sim:h200".parse().unwrap(), vec!["cuda+pool".parse().unwrap()]);
    let settings = Settings::new(device, stacks).options(Options::default().passes(3));
    let theirs = compare::compare(&program, &settings, &compare::layers(), &Progress::default()).unwrap();
    let StackResult::Ran(theirs) = &theirs.stacks[0].result else { panic!("{theirs:?}") };
    let ours = replay(vec![log(1)], "cuda+pool", Mode::Repeat, 3);
    let first = &ours[0];
    assert_eq!(first.peak_taken, theirs.peak_reserved_bytes_first);
    assert_eq!((first.peak_live, first.operations), (theirs.peak_live_bytes, theirs.operations));
    assert_eq!(first.calls, theirs.driver.calls_first_pass);
    assert!(ours[2].peak_taken >= theirs.peak_reserved_bytes_last);
    assert_eq!(ours.iter().map(|pass| pass.failures).sum::<u64>(), 0);
}

#[test]
fn a_pass_that_is_cut_gives_everything_back() {
    let whole = replay(vec![log(1)], "cuda", Mode::Repeat, 1)[0];
    let passes = replay(vec![log(1)], "cuda", Mode::Cut, 40);
    assert!(passes.iter().all(|pass| pass.peak_taken <= whole.peak_taken && pass.failures == 0));
    let operations: HashSet<u64> = passes.iter().map(|pass| pass.operations).collect();
    assert!(operations.len() > 30);
    assert!(operations.iter().all(|count| (whole.operations / 10..whole.operations).contains(count)));
}

#[test]
fn passes_drift_or_alternate() {
    let drifting = replay(vec![log(1)], "cuda", Mode::Drift, 2);
    assert_eq!(drifting[0].peak_live, replay(vec![log(1)], "cuda", Mode::Repeat, 1)[0].peak_live);
    let same = replay(vec![log(1)], "cuda", Mode::Repeat, 60).last().map(|pass| pass.peak_live);
    assert_ne!(replay(vec![log(1)], "cuda", Mode::Drift, 60).last().map(|pass| pass.peak_live), same);
    let (one, other) = (log(1), log(2));
    let counts = [one.steps.len(), other.steps.len()].map(|count| count as u64);
    let turns = replay(vec![one.clone(), other.clone()], "cuda+pool", Mode::Alternate, 4);
    let operations: Vec<u64> = turns.iter().map(|pass| pass.operations).collect();
    assert_eq!(operations, [counts, counts].concat());
    let live = [&one, &other].map(|log| log.peak_live(log.steps.len()));
    assert_eq!(turns[1].peak_live, live[0].max(live[1]));
}

#[test]
fn passes_resize_or_skip_or_take_one_of_two_logs() {
    let log = log(1);
    let kinds = |log: &Log, kind| log.steps.iter().filter(|step| step.kind == kind).count();
    let resized = log.resized(0.01, &mut Random::new(3, 0));
    assert_eq!(resized.steps.len(), log.steps.len());
    let changed = resized.sizes.len() - log.sizes.len();
    let share = changed as f64 / kinds(&log, OpKind::Allocate) as f64;
    assert!((0.002..0.03).contains(&share), "{share}");
    let cut = log.without_stretch(0.02, &mut Random::new(3, 0));
    assert!(cut.steps.len() < log.steps.len() && cut.steps.len() > log.steps.len() * 9 / 10);
    for copy in [&resized, &cut] {
        let mut live = HashMap::new();
        for step in &copy.steps {
            match step.kind {
                OpKind::Allocate => assert_eq!(live.insert(step.slot, step.size), None),
                OpKind::Free => assert_eq!(live.remove(&step.slot), Some(step.size)),
                _ => {}
            }
        }
    }
    let counts = |mode, logs| {
        let passes = replay(logs, "cuda+pool", mode, 12);
        assert!(passes.iter().all(|pass| pass.failures == 0));
        passes.iter().map(|pass| pass.operations).collect::<HashSet<_>>().len()
    };
    assert_eq!(counts(Mode::Resize, vec![log.clone()]), 1);
    assert!(counts(Mode::Skip, vec![log.clone()]) > 2, "passes leave out other stretches, or none");
    assert_eq!(counts(Mode::Random, vec![log, cut]), 2);
}

#[test]
fn a_stack_is_compared_with_the_first_one() {
    let pass = |taken, own_ns| Pass {
        peak_taken: taken,
        peak_live: 100,
        calls: 4,
        operations: 100,
        failures: 0,
        ns: own_ns,
        own_ns,
    };
    let first = vec![vec![vec![pass(100, 1000)]], vec![vec![pass(100, 1000)]]];
    let other = vec![vec![vec![pass(110, 3000)]], vec![vec![pass(440, 1000)]]];
    let names = ["one", "other"].map(str::to_owned);
    let [one, _, all] = Beside::rows(&names, "stack", &other, &first).try_into().unwrap();
    assert!((one.taken_over_first - 1.1).abs() < 1e-9 && (one.own_ns_over_first - 20.0).abs() < 1e-9);
    assert!((all.taken_over_first - 2.2).abs() < 1e-9 && (all.most_taken_over_first - 4.4).abs() < 1e-9);
    assert!((all.ns_over_first - 10.0).abs() < 1e-9 && all.calls_per_1000_over_first == 0.0);
}

#[test]
fn rows_are_means_over_copies_and_geometric_ones_over_logs() {
    let pass = |taken, calls| Pass {
        peak_taken: taken,
        peak_live: 100,
        calls,
        operations: 1000,
        failures: 1,
        ns: 5000,
        own_ns: 4000,
    };
    let one = vec![vec![pass(100, 9), pass(110, 3)], vec![pass(120, 9), pass(130, 5)]];
    let other = vec![vec![pass(400, 2), pass(440, 1)], vec![pass(480, 2), pass(520, 3)]];
    let row = Row::new("one", "cuda+pool", &[&one], true);
    let [first, last] = row.taken_over_live.as_slice() else { panic!("{row:?}") };
    assert_eq!((first.pass, last.pass, row.failures), (1, 2, 4));
    assert!((last.ratio.mean - 1.2).abs() < 1e-9 && (last.ratio.min - 1.1).abs() < 1e-9);
    assert!((last.ratio.deviation - 0.02_f64.sqrt()).abs() < 1e-9);
    assert_eq!((row.calls_per_1000_last.mean, row.calls_per_1000_best.max), (4.0, 5.0));
    assert_eq!(row.curve[0].ns_per_op, 5.0);

    let all = Row::new("all", "cuda+pool", &[&one, &other], false);
    assert!((all.taken_over_live[0].ratio.min - 2.0).abs() < 1e-9, "of 1 and 4");
    assert_eq!((all.calls_per_1000_last.min, all.calls_per_1000_best.max, all.failures), (2.0, 3.5, 8));
    assert!(all.curve.is_empty());

    let printed = |row: &Row, format| {
        let mut text = Vec::new();
        report::print(std::slice::from_ref(row), &[], format, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    assert!(printed(&row, Format::Table).contains("1.2000 (1.1000..1.3000, ±0.1414)"));
    let json: serde_json::Value = serde_json::from_str(&printed(&row, Format::Json)).unwrap();
    assert_eq!(json["taken_over_live"][1]["pass"], 2);
    assert_eq!(printed(&row, Format::Csv).lines().count(), 3, "with curves, a row for each pass");
    assert_eq!(printed(&all, Format::Csv).lines().count(), 3, "a row for each pass that is reported");
}
