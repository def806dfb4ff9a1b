//! Tests the three formats of reports.

use std::io;

use millpond_core::{FreeCounts, LadderCounts};
use millpond_driver::{CallKind, DeviceSpec};
use millpond_engine::log::Flaws;
use millpond_engine::program::LogSummary;
use millpond_engine::{AskedAgain, Failure};
use serde_json::{Value, json};

use super::*;
use crate::compare::{
    Comparison, DeviceFigures, DriverFigures, PassFigures, StackFigures, StackReport, StackResult,
};

/// A log that begins late.
fn late() -> Flaws {
    let mut flaws = Flaws::default();
    (flaws.unknown_frees, flaws.first_unknown_free_line, flaws.bytes_before) = (9, Some(44), 64);
    flaws
}

fn asked_again(requests: u64, served: u64) -> AskedAgain {
    let mut asked = AskedAgain::default();
    (asked.requests, asked.served) = (requests, served);
    asked
}

/// A log through three stacks: one ran with a failure, one was skipped, one could not be built.
fn comparison() -> Comparison {
    let figures = StackFigures {
        operations: 1000,
        failures: 3,
        failures_all_passes: 15,
        first_failure: Some(Failure::new(17, "out of memory for 1GiB\n  cause: it is")),
        misuses_all_passes: 0,
        asked_again: None,
        peak_reserved_bytes_first: 3 << 20,
        peak_reserved_bytes_last: 4 << 20,
        peak_reserved_bytes_asked_again: None,
        peak_live_bytes: 2 << 20,
        peak_needed_bytes: 2 << 20,
        reserved_over_live_first: Some(1.5),
        reserved_over_live_last: Some(2.0),
        reserved_over_apart_first: Some(1.25),
        largest_free_block_bytes: Some(1 << 20),
        bytes_beyond_slack: Some(5 << 20),
        ns_per_op_first: None,
        ns_per_op_best: None,
        own_ns_per_op_first: 120.6,
        own_ns_per_op_best: 41.25,
        driver: DriverFigures {
            calls_building: 1,
            calls_first_pass: 1_234_567,
            calls_best_pass: 2,
            calls_all_passes: 1_234_600,
            failures: 3,
            ns_first_pass: 12_345_678,
            ns_best_pass: 9,
            unmeasured: vec![CallKind::MemAllocManaged],
            by_kind: Default::default(),
        },
        ladder: Some(LadderCounts::default().own_stream(5).waited(6).grow(7)),
        frees: Some(FreeCounts::default().cached(8).evicted(9)),
        passes: vec![PassFigures { peak_taken_bytes: 3 << 20, ns: None, driver_calls: 9, failures: 3 }],
    };
    let stack = |spec: &str, result| StackReport { spec: spec.to_owned(), result };
    let spec = DeviceSpec::SimH200;
    let mut device = DeviceFigures::new(&spec, &spec.open_new().unwrap()).unwrap();
    (device.total_bytes, device.free_bytes) = (141 << 30, 140 << 30);
    let mut log = LogSummary::default();
    log.file = "app.csv".to_owned();
    (log.events, log.operations, log.streams, log.threads) = (24_368, 1000, 4, 1);
    (log.peak_live_bytes, log.peak_needed_bytes) = (2 << 20, 2 << 20);
    log.flaws = late();
    Comparison {
        version: Comparison::VERSION,
        device,
        log,
        thread_order: "as-logged".to_owned(),
        passes: 5,
        at_once: 1,
        stacks: vec![
            stack("cuda+pool", StackResult::Ran(Box::new(figures))),
            stack("managed", StackResult::Skipped { reason: "too large".to_owned() }),
            stack("cuda+pond", StackResult::Failed { error: "no such layer".to_owned(), is_bad_input: true }),
        ],
        has_own_layers: false,
    }
}

fn printed(format: Format) -> String {
    let mut out = Vec::new();
    format.reporter(&mut out).report(&comparison()).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn json_has_the_documented_shape() {
    let text = printed(Format::Json);
    assert_eq!(text.matches('\n').count(), 1, "one object, one line");
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["version"], 2);
    assert_eq!(value["thread_order"], "as-logged");
    let log = &value["log"];
    assert_eq!(
        json!([log["events"], log["streams"], log["threads"], log["peak_live_bytes"]]),
        json!([24_368, 4, 1, 2 << 20])
    );
    let stack = &value["stacks"][0];
    for (field, expected) in [
        ("spec", json!("cuda+pool")),
        ("status", json!("ran")),
        ("failures", json!(3)),
        ("failures_all_passes", json!(15)),
        (
            "first_failure",
            json!({"line": 17, "error": "out of memory for 1GiB\n  cause: it is", "report": null}),
        ),
        ("peak_reserved_bytes_first", json!(3 << 20)),
        ("peak_reserved_bytes_last", json!(4 << 20)),
        ("reserved_over_live_first", json!(1.5)),
        ("reserved_over_live_last", json!(2.0)),
        ("reserved_over_apart_first", json!(1.25)),
        ("largest_free_block_bytes", json!(1 << 20)),
        ("bytes_beyond_slack", json!(5 << 20)),
        ("ns_per_op_first", json!(null)),
        ("own_ns_per_op_first", json!(120.6)),
        ("own_ns_per_op_best", json!(41.25)),
    ] {
        assert_eq!(stack[field], expected, "{field}");
    }
    assert_eq!(stack["driver"]["calls_best_pass"], 2);
    assert_eq!((&stack["frees"]["cached"], &stack["frees"]["evicted"]), (&json!(8), &json!(9)));
    assert_eq!((&stack["ladder"]["own_stream"], &stack["ladder"]["waited"]), (&json!(5), &json!(6)));
    assert_eq!(value["stacks"][1], json!({"spec": "managed", "status": "skipped", "reason": "too large"}));
    assert_eq!(
        value["stacks"][2],
        json!({"spec": "cuda+pond", "status": "failed", "error": "no such layer"})
    );
}

#[test]
fn the_details_say_all_that_matters() {
    let text = printed(Format::Details);
    assert!(text.starts_with("app.csv: 24,368 events, 4 streams, 1 thread, peak live 2MiB\n"), "{text}");
    assert!(text.contains("replayed 5 times, threads as-logged, on sim:h200 (simulated H200, 141GiB)"));
    let row = text.lines().find(|line| line.starts_with("| cuda+pool ")).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert!(text.contains("whose streams share no memory"), "{text}");
    assert_eq!(
        cells,
        ["cuda+pool", "3MiB", "1.500", "1.250", "4MiB", "2.000", "-", "-", "1,234,567", "2", "3"]
    );
    let details = text.lines().filter(|line| line.starts_with("| cuda+pool ")).nth(1).unwrap();
    let cells: Vec<&str> = details.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells, ["cuda+pool", "1MiB", "121", "-", "5/0/0/6/7/0/0"], "no time where one is unknown");
    assert!(!text.contains("least memory: "), "one stack is no comparison");
    for note in [
        "note: the log begins late: it frees 9 blocks, in all at least 64B, that it never allocates (first \
         at line 44)",
        "note: cuda+pool: 3 failures (15 in all passes), the first at line 17: out of memory for 1GiB\n",
        "note: managed was left out: too large",
        "driver time is virtual",
        "note: cuda+pool: no driver time, because the cost of mem_alloc_managed was not measured",
    ] {
        assert!(text.contains(note), "{note} in\n{text}");
    }
}

#[test]
fn the_stacks_that_took_least_are_named_and_failing_ones_do_not_count() {
    let mut comparison = comparison();
    let StackResult::Ran(first) = &comparison.stacks[0].result else { panic!() };
    let figures = |failures, taken, ns| StackFigures {
        failures_all_passes: failures,
        peak_reserved_bytes_first: taken,
        peak_needed_bytes: 100,
        ns_per_op_best: ns,
        ..(**first).clone()
    };
    let ran = [
        ("a", figures(0, 150, Some(70.0))),
        ("b", figures(0, 120, Some(90.0))),
        ("near", figures(0, 121, Some(76.0))),
        ("unknown", figures(0, 122, None)),
        ("c", figures(1, 50, Some(9.0))),
        ("of the host", figures(0, 0, Some(9.0))),
    ];
    comparison.stacks = ran
        .map(|(spec, figures)| StackReport {
            spec: spec.to_owned(),
            result: StackResult::Ran(Box::new(figures)),
        })
        .into();
    let mut out = Vec::new();
    Format::Details.reporter(&mut out).report(&comparison).unwrap();
    let text = String::from_utf8(out).unwrap();
    let expected =
        "among the stacks without failures, least memory: b (1.200 × live); least time: a, near (70 ns/op)";
    assert!(text.lines().any(|line| line == expected), "{text}");
}

/// A stack, and how its figures differ from the others.
type Changed = (&'static str, fn(&mut StackFigures));

/// Prints tables of stacks, each with changed figures.
fn table_with(format: Format, ran: &[Changed]) -> String {
    table_of_log(format, ran, |_| ())
}

/// Prints tables of a changed log.
fn table_of_log(format: Format, ran: &[Changed], change: fn(&mut LogSummary)) -> String {
    let mut comparison = comparison();
    change(&mut comparison.log);
    let StackResult::Ran(first) = &comparison.stacks[0].result else { panic!() };
    let plain =
        StackFigures { failures: 0, failures_all_passes: 0, first_failure: None, ..(**first).clone() };
    comparison.log.operations = 100_000;
    comparison.stacks = ran
        .iter()
        .map(|(spec, change)| {
            let mut figures = StackFigures { operations: 100_000, ..plain.clone() };
            figures.driver.calls_first_pass = 1000;
            (figures.ns_per_op_first, figures.ns_per_op_best) = (Some(100.0), Some(100.0));
            change(&mut figures);
            StackReport { spec: (*spec).to_owned(), result: StackResult::Ran(Box::new(figures)) }
        })
        .collect();
    let mut out = Vec::new();
    format.reporter(&mut out).report(&comparison).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_stack_that_did_not_serve_what_had_failed_is_no_winner() {
    let text = table_with(
        Format::Details,
        &[
            ("cuda+pool", |figures| {
                figures.asked_again = Some(asked_again(1, 1));
            }),
            ("cuda+binning", |figures| {
                figures.asked_again = Some(asked_again(1, 1));
                figures.peak_reserved_bytes_first = 8 << 20;
            }),
            ("cuda+fixed_size", |figures| {
                figures.asked_again = Some(asked_again(1, 0));
                (figures.ns_per_op_best, figures.peak_reserved_bytes_first) = (Some(1.0), 1);
            }),
        ],
    );
    assert!(text.contains("least time: cuda+pool, cuda+binning (100 ns/op)"), "{text}");
    assert!(text.contains("least memory: cuda+pool ("), "{text}");
}

/// `tune` then says that no other settings save memory.
#[test]
fn the_programs_own_allocator_is_kept_if_no_stack_needs_less() {
    let with_failure = |log: &mut LogSummary| {
        (log.recorded_with, log.failed_requests) = (Some("torch".to_owned()), 1);
    };
    fn again(figures: &mut StackFigures, served: u64, peak: u64) {
        figures.asked_again = Some(asked_again(1, served));
        figures.peak_reserved_bytes_asked_again = Some(peak << 20);
    }
    let pool: Changed = ("cuda+pool", |figures| again(figures, 1, 1000));
    let text =
        table_of_log(Format::Table, &[("torch", |figures| again(figures, 1, 1010)), pool], with_failure);
    let keep =
        "what to do: run the program where its allocator can reserve 1010MiB, or keep less memory live";
    assert!(text.contains(keep) && !text.contains("use this one"), "{text}");
    let models: [Changed; 2] =
        [("torch", |figures| again(figures, 1, 1030)), ("torch", |figures| again(figures, 0, 1000))];
    for model in models {
        let text = table_of_log(Format::Table, &[model, pool], with_failure);
        assert_eq!(row(&text, "cuda+pool").last(), Some(&"use this one"), "{text}");
    }
}

#[test]
fn a_log_with_private_pools_gets_no_stack() {
    let pool: [Changed; 1] = [("cuda+pool", |_| ())];
    let text = table_of_log(Format::Table, &pool, |log| log.private_pools = 5);
    let note = "note: the file has 5 private pools (CUDA graphs), which a replay merges: no setting can be \
                recommended. Share one graph pool: see `millpond-replay explain \
                app.csv`.\n";
    assert!(text.contains(note) && text.find(note) < text.find("| stack"), "{text}");
    assert!(!text.contains("what to do") && !text.contains("use this one"), "{text}");
}

/// The pool of the driver is only a rough model, and plain CUDA waits for the device at each free.
#[test]
fn after_a_failure_many_calls_do_not_count_against_a_pool() {
    fn again(figures: &mut StackFigures, calls: u64) {
        (figures.asked_again, figures.driver.calls_first_pass) = (Some(asked_again(1, 1)), calls);
    }
    let ran: [Changed; 4] = [
        ("cuda", |figures| again(figures, 1)),
        ("cuda_async", |figures| again(figures, 1)),
        ("cuda+pool", |figures| again(figures, 90_000)),
        ("cuda+arena", |figures| again(figures, 100_000)),
    ];
    let text = table_of_log(Format::Table, &ran, |log| log.failed_requests = 1);
    assert_eq!(row(&text, "cuda+pool").last(), Some(&"use this one"), "{text}");
    assert!(text.contains("; `millpond-replay tune app.csv` finds the smallest device"), "{text}");
}

#[test]
fn peaks_that_differ_have_different_texts() {
    let text = table_with(
        Format::Table,
        &[
            ("cuda+pool", |figures| figures.peak_reserved_bytes_last = 1320 << 20),
            ("cuda+arena", |figures| figures.peak_reserved_bytes_last = 1322 << 20),
            ("cuda+binning", |figures| figures.peak_reserved_bytes_last = 2 << 30),
        ],
    );
    for (stack, peak) in [("cuda+pool", "1.289GiB"), ("cuda+arena", "1.291GiB"), ("cuda+binning", "2GiB")] {
        assert_eq!(row(&text, stack)[1], peak, "{text}");
    }
    let text =
        table_with(Format::Table, &[("cuda+pool", |figures| figures.peak_needed_bytes = (4 << 20) - 1)]);
    assert!(text.contains("took 4MiB for 4194303B of live memory"), "{text}");
}

#[test]
fn calls_and_then_time_decide_between_stacks_with_nearly_the_same_memory() {
    let advised = |text: &str| text.lines().nth(1).unwrap().split('`').nth(1).map(str::to_owned);
    let text = table_with(
        Format::Table,
        &[
            ("cuda+pool", |figures| figures.peak_reserved_bytes_last = 100 << 20),
            ("cuda+pool+binning", |figures| {
                (figures.peak_reserved_bytes_last, figures.driver.calls_first_pass) = (101 << 20, 500);
            }),
            ("cuda+arena", |figures| {
                (figures.peak_reserved_bytes_last, figures.driver.calls_first_pass) = (103 << 20, 1);
            }),
        ],
    );
    assert_eq!(advised(&text).as_deref(), Some("cuda+pool+binning"), "{text}");
    let text = table_with(
        Format::Table,
        &[
            ("cuda+pool", |figures| figures.ns_per_op_first = Some(200.0)),
            ("cuda+pool+binning", |figures| figures.driver.calls_first_pass = 1001),
        ],
    );
    assert_eq!(advised(&text).as_deref(), Some("cuda+pool+binning"), "{text}");
    let text = table_with(Format::Table, &[("cuda+pool+binning", |_| ()), ("cuda+pool", |_| ())]);
    assert_eq!(advised(&text).as_deref(), Some("cuda+pool"), "{text}");
}

/// Returns the cells of a stack's row.
fn row<'a>(text: &'a str, stack: &str) -> Vec<&'a str> {
    let row = text.lines().find(|line| line.starts_with(&format!("| {stack} ")));
    row.into_iter().flat_map(|row| row.split('|')).map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn the_first_table_comes_after_the_advice_and_has_at_most_eight_rows() {
    let mut ran: Vec<Changed> = vec![("failing", |figures| figures.failures_all_passes = 3)];
    let others = ["a", "b", "c", "d", "e", "f", "g", "h"];
    ran.extend(
        others.map(|spec| -> Changed { (spec, |figures| figures.peak_reserved_bytes_last = 8 << 20) }),
    );
    ran.push(("cuda+pool", |figures| figures.driver.calls_first_pass = 100));
    let text = table_with(Format::Table, &ran);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[1].starts_with("what to do: build the program's resource from the text `cuda+pool`"),
        "{text}"
    );
    let rows = lines.iter().filter(|line| line.starts_with("| ") && !line.contains("verdict")).count();
    assert_eq!(rows, 8 + 1, "the heading has two lines: {text}");
    assert!(row(&text, "failing").is_empty() && row(&text, "h").is_empty(), "{text}");
    assert!(text.contains("--details also shows 2 more stacks"), "{text}");
    assert_eq!(
        row(&text, "cuda+pool"),
        ["cuda+pool", "4MiB", "2.000", "100", "100", "100", "2", "use this one"]
    );
    assert_eq!(row(&text, "a").last(), Some(&"takes 100 % more memory"));
    assert!(table_with(Format::Details, &ran).lines().any(|line| line.starts_with("| failing ")));
}

#[test]
fn verdicts_say_why_a_stack_is_not_advised() {
    let text = table_with(
        Format::Table,
        &[
            ("cuda+pool", |_| ()),
            ("cuda", |figures| figures.driver.calls_first_pass = 100_000),
            ("managed", |_| ()),
            ("torch", |_| ()),
            ("cuda+pool+alike", |figures| figures.peak_reserved_bytes_first += 1),
            ("calling", |figures| figures.driver.calls_first_pass = 1200),
            ("slow", |figures| figures.ns_per_op_first = Some(200.0)),
            ("refusing", |figures| figures.asked_again = Some(asked_again(3, 2))),
        ],
    );
    for (stack, verdict) in [
        ("cuda+pool", "use this one"),
        ("cuda", "calls the driver too often"),
        ("managed", "pages move on demand: slow"),
        ("torch", "a model, for comparison"),
        ("cuda+pool+alike", "as good"),
        ("calling", "makes more calls"),
        ("slow", "slower"),
        ("refusing", "1 of 3 requests failed again"),
    ] {
        assert_eq!(row(&text, stack).last(), Some(&verdict), "{stack}: {text}");
    }
    let original = "pytorch:folder=/opt";
    let text = table_with(Format::Table, &[("cuda+pool", |_| ()), (original, |_| ())]);
    assert_eq!(row(&text, original).last(), Some(&"PyTorch itself, for comparison"), "{text}");
}

#[test]
fn a_stack_with_much_less_memory_and_more_calls_is_named_too() {
    let calls = |figures: &mut StackFigures| figures.driver.calls_first_pass = 60_000;
    let half = |figures: &mut StackFigures| {
        figures.driver.calls_first_pass = 60_000;
        figures.peak_reserved_bytes_first /= 2;
        figures.peak_reserved_bytes_last /= 2;
    };
    let named = "; if memory is short, use `cuda+pool`, which took 2MiB and made 60,000 driver calls";
    let text = table_with(Format::Table, &[("cuda+binning", |_| ()), ("cuda+pool", half), ("cuda", half)]);
    assert!(text.contains("the text `cuda+binning`") && text.contains(named), "{text}");
    let text = table_with(Format::Table, &[("cuda+binning", |_| ()), ("cuda+pool", calls), ("cuda", half)]);
    assert!(!text.contains("if memory is short"), "{text}");
}

#[test]
fn where_nothing_ran_there_is_no_table() {
    let mut comparison = comparison();
    comparison.log = LogSummary::default();
    comparison.log.file = "a.csv".to_owned();
    (comparison.log.events, comparison.log.streams, comparison.log.threads) = (1, 1, 1);
    comparison.stacks.drain(..2);
    let mut out = Vec::new();
    Format::Table.reporter(&mut out).report(&comparison).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "a.csv: 1 event, 1 stream, 1 thread, peak live 0B\n");
}

#[test]
fn csv_has_one_header_and_a_row_for_each_stack() {
    let mut out = Vec::new();
    let mut reporter = Format::Csv.reporter(&mut out);
    reporter.report(&comparison()).unwrap();
    reporter.report(&comparison()).unwrap();
    drop(reporter);
    let mut reader = ::csv::Reader::from_reader(out.as_slice());
    let headers = reader.headers().unwrap().clone();
    let rows: Vec<::csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 6);
    let cell = |row: usize, name: &str| {
        let column = headers.iter().position(|header| header == name).unwrap();
        rows[row][column].to_owned()
    };
    assert_eq!(
        (cell(0, "spec"), cell(0, "reserved_over_live_first")),
        ("cuda+pool".to_owned(), "1.5".to_owned())
    );
    assert_eq!(cell(0, "bytes_beyond_slack"), "5242880");
    assert_eq!((cell(0, "threads"), cell(0, "thread_order")), ("1".to_owned(), "as-logged".to_owned()));
    assert_eq!(cell(0, "first_failure"), "out of memory for 1GiB", "one line");
    assert_eq!((cell(0, "failures"), cell(0, "failures_all_passes")), ("3".to_owned(), "15".to_owned()));
    assert_eq!((cell(1, "status"), cell(1, "reason")), ("skipped".to_owned(), "too large".to_owned()));
    assert_eq!((cell(5, "status"), cell(5, "failures")), ("failed".to_owned(), String::new()));
}

#[test]
fn a_broken_pipe_stays_one() {
    struct Closed;
    impl io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for format in [Format::Table, Format::Details, Format::Json, Format::Csv] {
        let error = format.reporter(Closed).report(&comparison()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{format:?}");
    }
}
