//! Tests figures on the simulated device that follow from the work.

use std::fmt::Write as _;
use std::path::Path;

use millpond_engine::log::LogReader;
use millpond_engine::program::Limits;

use super::*;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";
const MIB: u64 = 1 << 20;
/// The nanoseconds that the device needs between two kernels.
const GAP_NS: u64 = 1_300;
const HOST_NS: u64 = 4_000;
/// The nanoseconds that a host loses when it waits for its last kernel.
const WAKING_NS: u64 = 3_400;

/// Allocations and frees of one log.
#[derive(Default)]
struct Rows(String);

impl Rows {
    fn allocate(&mut self, block: u64, bytes: u64, stream: u64) {
        writeln!(self.0, "1,05:01:18.0,allocate,{:#x},{bytes},{stream}", 0x7f00_0000_0000 + block * 0x100)
            .unwrap();
    }

    fn free(&mut self, block: u64, bytes: u64, stream: u64) {
        writeln!(self.0, "1,05:01:18.0,free,{:#x},{bytes},{stream}", 0x7f00_0000_0000 + block * 0x100)
            .unwrap();
    }

    fn program(&self) -> Program {
        let text = format!("{HEADER}{}", self.0);
        Program::read(LogReader::from_reader("rows", text.as_bytes()).unwrap(), Limits::default()).unwrap()
    }
}

/// Rounds in which two streams take and free blocks in turn, each while the other's kernels are still in
/// flight.
fn by_turns(rounds: u64, blocks: u64) -> Program {
    let mut rows = Rows::default();
    for round in 0..rounds {
        let stream = 1 + round % 2;
        (0..blocks).for_each(|block| rows.allocate(round * blocks + block, MIB, stream));
        (0..blocks).for_each(|block| rows.free(round * blocks + block, MIB, stream));
    }
    rows.program()
}

fn example() -> Program {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/logs/rmm_cupy_4streams.csv.gz");
    Program::open(Path::new(path), Limits::default()).unwrap()
}

fn settings(subjects: &[&str], host: Host) -> Settings {
    Settings {
        device: "sim:h200".parse().unwrap(),
        subjects: subjects.iter().map(|text| text.parse().unwrap()).collect(),
        kernels: vec![Kernels::LONG],
        hosts: vec![host],
        host_ns: HOST_NS,
        passes: 2,
        seed: 42,
        first: None,
        capacity: None,
    }
}

fn run_on(program: &Program, settings: &Settings) -> Report {
    run(program, settings, &crate::layers(), &mut |_| ()).unwrap()
}

/// Returns the passes of a stack in the only case of a report.
fn passes<'a>(report: &'a Report, spec: &str) -> &'a [PassFigures] {
    let stack = report.cases[0].stacks.iter().find(|stack| stack.spec == spec).unwrap();
    assert!(matches!(stack.result, SubjectResult::Ran { .. }), "{stack:?}");
    stack.passes()
}

#[test]
fn the_least_memory_without_waits_is_what_the_model_of_the_measurements_says() {
    // In MiB, from the Python program that the measurements were first compared with.
    let program = example();
    for (kernels, host_us, mib) in [
        (Kernels::LONG, 4, 742),
        (Kernels::LONG, 20, 593),
        (Kernels::LONG, 60, 555),
        (Kernels::SHORT, 4, 660),
        (Kernels::SHORT, 20, 555),
    ] {
        let plan = Plan::new(&program, None, kernels, 42).unwrap();
        let least = bound::least_bytes_without_waits(&plan, Host::Ahead, host_us * 1000);
        assert_eq!(least / MIB, mib, "kernels of {kernels}, {host_us} µs");
        // A host that waits at every step needs only the live memory.
        let least = bound::least_bytes_without_waits(&plan, Host::Sync, host_us * 1000);
        assert_eq!(least, plan.peak_live_bytes());
    }
}

#[test]
fn streams_that_follow_each_other_need_their_memory_twice_as_long_as_kernels_are_in_flight() {
    let plan = |rounds| Plan::new(&by_turns(rounds, 20), None, Kernels::LONG, 1).unwrap();
    let least =
        |rounds, host, host_us: u64| bound::least_bytes_without_waits(&plan(rounds), host, host_us * 1000);
    assert_eq!(least(1, Host::Ahead, 4), 20 * MIB);
    assert_eq!(least(6, Host::Ahead, 4), 40 * MIB);
    // The last few of those 20 are in flight when the other stream begins.
    assert!((21 * MIB..30 * MIB).contains(&least(6, Host::Level, 4)), "{}", least(6, Host::Level, 4) / MIB);
    assert_eq!(least(6, Host::Ahead, 200), 20 * MIB, "the host is slower than the kernels");
}

#[test]
fn without_an_allocator_a_host_far_ahead_takes_as_long_as_the_busiest_stream() {
    for program in [by_turns(6, 20), by_turns(1, 300)] {
        let report = run_on(&program, &settings(&[], Host::Ahead));
        let case = &report.cases[0];
        let plan = Plan::new(&program, None, Kernels::LONG, 42).unwrap();
        let kernels = |stream: u32| {
            let of_it = plan.steps().iter().enumerate();
            of_it.filter(move |(_, step)| step.allocates() && step.stream == stream)
        };
        let ends = (0..plan.streams().len() as u32).map(|stream| {
            let launched_before = kernels(stream).next().unwrap().0 as u64;
            assert!(
                plan.steps()[..launched_before as usize].iter().filter(|step| step.allocates()).count() <= 20
            );
            let allocations = plan.steps()[..launched_before as usize].iter().filter(|step| step.allocates());
            let begins = (allocations.count() as u64 + 1) * HOST_NS;
            begins + kernels(stream).map(|(_, step)| u64::from(step.kernel_ns) + GAP_NS).sum::<u64>()
        });
        let end_ns = ends.max().unwrap();
        // Asking the streams for their ends takes time, too.
        let ended = end_ns..end_ns + 10_000;
        assert!(
            passes(&report, "none").iter().all(|pass| ended.contains(&pass.end_ns)),
            "{end_ns} {report:?}"
        );
        assert!((case.busiest_stream_ns..case.busiest_stream_ns * 11 / 10).contains(&end_ns));
        assert!(passes(&report, "none").iter().all(|pass| pass.host_ns < pass.end_ns / 5));
    }
}

#[test]
fn a_pool_that_has_to_wait_is_slower_and_one_that_has_not_takes_the_least_memory_without_waits() {
    // Half of the memory that needs no wait, and a few pages.
    const SHORT: &str = "cuda+pool:max=48MiB";
    let program = by_turns(10, 40);
    let report = run_on(&program, &settings(&["cuda+pool", SHORT], Host::Ahead));
    let case = &report.cases[0];
    assert_eq!(case.least_bytes_without_waits, 80 * MIB);
    let [none, pool, short] = ["none", "cuda+pool", SHORT].map(|spec| passes(&report, spec));
    for pass in 0..2 {
        assert!(pool[pass].peak_taken_bytes >= case.least_bytes_without_waits, "{pool:?}");
        assert_eq!((pool[pass].stream_waits, pool[pass].host_waits), (Some(0), Some(0)));
        assert_eq!(pool[pass].ladder.unwrap().waited, 0);
        // The pool's own calls cost little compared with the kernels.
        assert!(pool[pass].end_ns < none[pass].end_ns * 12 / 10, "{pool:?} {none:?}");
    }
    let pass = &short[0];
    assert!(pass.stream_waits.unwrap() + pass.host_waits.unwrap() > 0, "{pass:?}");
    assert!(pass.peak_taken_bytes < case.least_bytes_without_waits, "{pass:?}");
    assert!(pass.end_ns > pool[0].end_ns * 15 / 10, "one stream behind the other: {pass:?} {pool:?}");
    // The log has as many allocations in each pass as kernels.
    assert_eq!(pool[1].ladder.unwrap().served(), 400);
}

#[test]
fn a_host_that_waits_at_every_step_adds_up_all_kernels_and_needs_what_is_live() {
    let program = by_turns(6, 20);
    let ends = Host::ALL.map(|host| {
        let report = run_on(&program, &settings(&["cuda+pool"], host));
        let pass = &passes(&report, "none")[0];
        (pass.end_ns, report.cases[0].all_streams_ns, passes(&report, "cuda+pool")[1].peak_taken_bytes)
    });
    let [ahead, level, sync] = ends;
    let each = 120 * (HOST_NS + GAP_NS + WAKING_NS);
    assert!(sync.0 >= sync.1 + each, "{sync:?}");
    assert!(ahead.0 < level.0 && level.0 < sync.0, "{ends:?}");
    assert_eq!(sync.2, 20 * MIB);
}

#[test]
fn a_level_host_has_few_kernels_of_a_stream_in_flight() {
    let mut rows = Rows::default();
    (0..50).for_each(|block| rows.allocate(block, 256, 1));
    let report = run_on(&rows.program(), &settings(&[], Host::Level));
    let plan = Plan::new(&rows.program(), None, Kernels::LONG, 42).unwrap();
    let in_flight: u64 = plan.steps()[46..].iter().map(|step| u64::from(step.kernel_ns) + GAP_NS).sum();
    let pass = &passes(&report, "none")[0];
    // When the last kernel was launched, it and the three before it were unfinished.
    assert!(pass.end_ns - pass.host_ns <= in_flight, "{pass:?}");
    assert!(pass.end_ns - pass.host_ns > in_flight / 4, "{pass:?}");
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_one_others() {
    let program = by_turns(10, 40);
    let figures = |seed, spec: &str| {
        let report = run_on(&program, &Settings { seed, ..settings(&[spec], Host::Ahead) });
        let each = passes(&report, spec).iter();
        each.map(|pass| (pass.end_ns, pass.host_ns, pass.peak_taken_bytes, pass.stream_waits))
            .collect::<Vec<_>>()
    };
    for spec in ["none", "async", "cuda+pool", "cuda+pool:reuse=own"] {
        assert_eq!(figures(42, spec), figures(42, spec), "{spec}");
        assert_ne!(figures(42, spec), figures(43, spec), "{spec}");
    }
}

#[test]
fn a_block_that_another_stream_frees_is_free_after_its_kernel() {
    // Each block of stream 1 is freed on stream 2, which has nothing to do, and is taken there again.
    let mut rows = Rows::default();
    for block in 0..50 {
        rows.allocate(2 * block, MIB, 1);
        rows.free(2 * block, MIB, 2);
        rows.allocate(2 * block + 1, MIB, 2);
        rows.free(2 * block + 1, MIB, 2);
    }
    let program = rows.program();
    let report = run_on(&program, &settings(&["cuda+pool", "async", "cuda+pool:reuse=own"], Host::Ahead));
    // The device's oracle found no violation; otherwise the stacks would have failed.
    for spec in ["cuda+pool", "async", "cuda+pool:reuse=own"] {
        assert_eq!(passes(&report, spec).len(), 2);
    }
    assert_eq!(report.cases[0].least_bytes_without_waits, MIB);
}

#[test]
fn async_keeps_what_is_freed_and_its_peak_starts_again_in_each_pass() {
    let report = run_on(&by_turns(4, 10), &settings(&["async"], Host::Sync));
    let passes = passes(&report, "async");
    assert!(passes[0].peak_taken_bytes >= 10 * MIB);
    assert_eq!(passes[0].peak_taken_bytes, passes[1].peak_taken_bytes);
    assert_eq!((passes[0].stream_waits, passes[0].driver_calls), (None, None));
}

#[test]
fn the_first_operations_alone_are_a_log_with_what_they_leave_live() {
    let program = by_turns(6, 20);
    let report = run_on(&program, &Settings { first: Some(70), ..settings(&["cuda+pool"], Host::Ahead) });
    assert_eq!((report.operations, report.peak_live_bytes), (70, 20 * MIB));
    // 20 are allocated and freed, 20 allocated, 10 of them freed.
    assert_eq!(passes(&report, "cuda+pool")[1].ladder.unwrap().served(), 40);
}

#[test]
fn a_stack_that_fails_does_not_lose_the_others() {
    let few = "cuda+limiting:limit=3MiB";
    let settings = settings(&["cuda+pool:initial=1TiB", few, "cuda+pool"], Host::Ahead);
    let report = run_on(&by_turns(2, 5), &settings);
    let result = |index: usize| &report.cases[0].stacks[index].result;
    for index in [1, 2] {
        assert!(matches!(result(index), SubjectResult::Failed { error } if !error.is_empty()), "{report:?}");
    }
    assert_eq!((passes(&report, "none").len(), passes(&report, "cuda+pool").len()), (2, 2));
    let mut out = Vec::new();
    table(&mut out)(&report).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains(&format!("note: {few} failed with kernels of 10..100 µs, host ahead: ")), "{text}");
}

#[test]
fn at_a_capacity_a_pool_waits_and_what_does_not_fit_is_counted() {
    let program = by_turns(10, 40);
    let own = "cuda+pool:reuse=own";
    let at = |capacity: &str| {
        let capacity = Some(capacity.parse().unwrap());
        run_on(&program, &Settings { capacity, ..settings(&["cuda+pool", own, "async"], Host::Ahead) })
    };
    // Without a limit, it takes 80 MiB and does not wait.
    let report = at("125%");
    assert_eq!(report.capacity_bytes, Some(50 * MIB));
    for pass in passes(&report, own) {
        assert!(pass.peak_taken_bytes <= 50 * MIB && pass.failures == 0, "{pass:?}");
        assert!(pass.host_waits.unwrap() > 0, "{pass:?}");
    }
    // 40 MiB are live.
    let report = at("30MiB");
    assert_eq!(passes(&report, "none").iter().map(|pass| pass.failures).sum::<u64>(), 0);
    for spec in ["cuda+pool", own, "async"] {
        let passes = passes(&report, spec);
        assert!(passes.iter().all(|pass| (1..400).contains(&pass.failures)), "{passes:?}");
        assert!(passes.iter().all(|pass| pass.peak_taken_bytes <= 30 * MIB), "{passes:?}");
    }
    let mut out = Vec::new();
    table(&mut out)(&report).unwrap();
    let table = String::from_utf8(out).unwrap();
    assert!(
        table.contains("each stack can use 30MiB of device memory") && table.contains("| failures"),
        "{table}"
    );

    let report = at("1TiB");
    let SubjectResult::Failed { error } = &report.cases[0].stacks[1].result else { panic!("{report:?}") };
    assert!(error.contains("but the device has only"), "{error}");
}

#[test]
fn every_format_has_the_figures() {
    let report = run_on(&by_turns(4, 10), &settings(&["cuda+pool", "async"], Host::Ahead));
    let (mut of_table, mut of_json, mut of_csv) = (Vec::new(), Vec::new(), Vec::new());
    for mut print in [table(&mut of_table), json(&mut of_json), csv(&mut of_csv)] {
        print(&report).unwrap();
    }
    let [table, json, csv] = [of_table, of_json, of_csv].map(|out| String::from_utf8(out).unwrap());
    let [none, pool] = ["none", "cuda+pool"].map(|spec| passes(&report, spec));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let case = &json["cases"][0];
    assert_eq!((&case["host"], &case["kernels"]["longest_ns"]), (&"ahead".into(), &100_000.into()));
    assert_eq!(case["stacks"][1]["passes"][1]["end_ns"], pool[1].end_ns);
    assert_eq!(case["stacks"][2]["passes"][0]["stream_waits"], serde_json::Value::Null);

    let row = |name: &str| {
        let line = table.lines().find(|line| line.starts_with(&format!("| {name} "))).unwrap();
        line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let ms = |pass: &PassFigures| format!("{:.1}", pass.end_ns as f64 / 1e6);
    assert_eq!(row("none")[1], format!("{}, {}", ms(&none[0]), ms(&none[1])));
    assert_eq!(row("none")[2..], ["1.000, 1.000", "-", "-", "-", "-", "-"]);
    let by_none = |pass: usize| pool[pass].end_ns as f64 / none[pass].end_ns as f64;
    assert_eq!(row("cuda+pool")[2], format!("{:.3}, {:.3}", by_none(0), by_none(1)));
    let least = report.cases[0].least_bytes_without_waits as f64;
    let by_least = |pass: usize| pool[pass].peak_taken_bytes as f64 / least;
    assert_eq!(row("cuda+pool")[4], format!("{:.3}, {:.3}", by_least(0), by_least(1)));
    let waits = pool.iter().map(|pass| pass.stream_waits.unwrap().to_string()).collect::<Vec<_>>();
    assert_eq!(row("cuda+pool")[6], waits.join(", "));
    assert!(!table.contains("failures"), "{table}");

    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name| headers.iter().position(|header| header == name).unwrap();
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 6);
    assert_eq!((&rows[3][column("spec")], &rows[3][column("pass")]), ("cuda+pool", "2"));
    assert_eq!(rows[3][column("end_ns")], pool[1].end_ns.to_string());
    assert_eq!(&rows[5][column("stream_waits")], "");
}
