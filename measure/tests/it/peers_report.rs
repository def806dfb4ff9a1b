//! Tests the tables and plots of `benches/peers`: examples/peers_report.

#[path = "../../examples/peers_report/data.rs"]
mod data;
#[path = "../../examples/peers_report/plots.rs"]
mod plots;
#[path = "../../examples/peers_report/tables.rs"]
mod tables;

use std::fmt::Write as _;

use data::Data;

/// Returns a line of a peer, with figures.
fn line(stack: &str, workload: &str, live: u64, ns: f64) -> String {
    format!(
        r#"{{"workload":"{workload}","stack":"{stack}","threads":2,"streams":1,"live":{live},
        "freed_percent":0,"bytes":4096,"steps":9,"ns_per_step":{ns},"p99_ns":{},
        "steps_per_second":2500000,"ns_per_fill":null,
        "reserved_bytes":6144}}"#,
        ns * 3.0
    )
    .replace('\n', " ")
}

/// Returns millpond's output for a log.
fn comparison(passes: u32, first: u32, ratio: f64) -> String {
    format!(
        r#"{{"passes":{passes},"log":{{"file":"some/where/small.csv"}},"stacks":[{{"spec":"cuda+pool",
        "ns_per_op_first":{first},"ns_per_op_best":7,"reserved_over_live_first":{ratio},"peak_live_bytes":200,
        "driver":{{"calls_best_pass":0}},"passes":[{{"peak_taken_bytes":250}},{{"peak_taken_bytes":360}},
        {{"peak_taken_bytes":320}}]}}]}}"#
    )
    .replace('\n', " ")
}

fn sample() -> Data {
    let mut text =
        r#"{"date":"2026-01-01","machine":"one GPU","versions":"commit 1","command":"run.sh"}"#.to_owned();
    let ours = line("cuda+pool", "churn", 1000, 12.3);
    let setback = r#"{"workload":"churn","stack":"rmm pool","threads":2,"streams":1,"live":9,
        "freed_percent":0,"bytes":4096,"status":"skipped","reason":"it takes too long"}"#;
    write!(text, "\n{{\"results\":[{ours}],\"not_run\":[]}}\n{}\n", setback.replace('\n', " ")).unwrap();
    for (live, ns) in [(9, 40.0), (1000, 80.0)] {
        writeln!(text, "{}", line("torch", "churn", live, ns)).unwrap();
    }
    writeln!(text, "{}", line("torch", "threads_own_stream", 1000, 80.0)).unwrap();
    writeln!(text, "{}\n{}", comparison(1, 50, 1.5), comparison(3, 40, 1.25)).unwrap();
    for line in [
        r#"{"workload":"replay","log":"small","stack":"torch","operations":4,"ns_per_op_first":90.4,
        "ns_per_op_best":60,"peak_reserved_bytes_first":300,"peak_live_bytes":200,
        "reserved_over_live_first":1.5,"passes":[{"peak_taken_bytes":300,"ns":362},
        {"peak_taken_bytes":420,"ns":240}]}"#,
        r#"{"workload":"replay","log":"small","stack":"rmm arena","operations":4,"ns_per_op_first":9,
        "ns_per_op_best":8,"peak_live_bytes":200,"reserved_over_live_first":null,
        "passes":[{"peak_taken_bytes":null,"ns":36}]}"#,
    ] {
        writeln!(text, "{}", line.replace('\n', " ")).unwrap();
    }
    text += "{\"workload\":\"churn\",\"stack\":\"cut o";
    let mut data = Data::default();
    data.read(&text).unwrap();
    data
}

/// Returns the cells of the named row, in the titled table.
fn row<'a>(text: &'a str, title: &str, name: &str) -> Vec<&'a str> {
    let table = text.split("\n**").find(|table| table.starts_with(title)).unwrap_or_else(|| panic!("{text}"));
    let line = table.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name} in {table}"));
    line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn each_figure_is_in_its_row_and_column() {
    let text = tables::markdown(&sample());
    let step = "Nanoseconds a step";
    // Lines stay in order: millpond's come first. An allocator without a figure has no column.
    assert_eq!(row(&text, step, "| | "), ["cuda+pool", "torch"]);
    assert_eq!(row(&text, step, "1000 live"), ["churn, 1000 live", "12", "80"]);
    assert_eq!(row(&text, step, "9 live"), ["churn, 9 live", "–", "40"]);
    assert_eq!(row(&text, "The 99th", "1000 live"), ["churn, 1000 live", "37", "240"]);
    assert_eq!(row(&text, "Million", "threads_own"), ["threads_own_stream, 2", "2.5"]);
    assert_eq!(row(&text, "Bytes taken", "1000 live"), ["churn, 1000 live", "1.500", "1.500"]);
    assert!(!text.contains("**Nanoseconds of an allocation"), "growth was not measured: {text}");
    assert!(text.contains("- rmm pool: churn, 9 live: it takes too long"), "{text}");
    assert!(text.contains("a line was cut off") && text.contains("`run.sh`, one GPU; commit 1"), "{text}");
}

#[test]
fn of_logs_the_first_pass_and_the_last_are_shown_and_the_last_run_counts() {
    let text = tables::markdown(&sample());
    assert_eq!(row(&text, "Logs: nanoseconds an operation, first", "small"), ["small", "40", "90", "9"]);
    assert_eq!(row(&text, "Logs: nanoseconds an operation, best", "small"), ["small", "7", "60", "8"]);
    assert_eq!(row(&text, "Logs: bytes taken by bytes live, each", "| | "), ["cuda+pool", "torch"]);
    assert_eq!(row(&text, "Logs: bytes taken by bytes live, each", "small"), ["small", "1.250", "1.500"]);
    let all = "Logs: bytes taken by bytes live, all passes";
    assert_eq!(row(&text, all, "small"), ["small", "1.800", "2.100"], "the most in any pass");
    assert_eq!(row(&text, "Logs: driver calls", "small"), ["small", "0"]);
}

/// The outputs of millpond and a peer for a log with work in flight.
const BUSY: [&str; 2] = [
    r#"{"version":1,"log":{"file":"some/where/small.csv"},"cases":[{"kernels":{"shortest_ns":5000,
    "longest_ns":25000},"host":"ahead","least_bytes_without_waits":3145728,"stacks":[{"spec":"none",
    "passes":[{"end_ns":1000000,"peak_taken_bytes":0,"stream_waits":null,"host_waits":null}]},
    {"spec":"cuda+pool","passes":[{"end_ns":2000000,"peak_taken_bytes":1048576,"stream_waits":9,
    "host_waits":0},{"end_ns":1500000,"peak_taken_bytes":2097152,"stream_waits":7,"host_waits":0}]},
    {"spec":"cuda","status":"failed","error":"no"}]}]}"#,
    r#"{"workload":"busy","log":"small","stack":"torch","shortest_ns":5000,"longest_ns":25000,"host":"ahead",
    "operations":4,"passes":[{"end_ns":1100000,"host_ns":7,"peak_taken_bytes":4194304}]}"#,
];

#[test]
fn of_logs_with_work_in_flight_the_first_and_the_last_pass_are_shown_beside_no_allocator() {
    let mut data = Data::default();
    BUSY.iter().for_each(|line| data.read(&line.replace('\n', " ")).unwrap());
    let text = tables::markdown(&data);
    let name = "small, 5..25 µs, ahead";
    let first = "Work in flight: milliseconds to the end";
    assert_eq!(row(&text, first, "| | "), ["none", "cuda+pool", "torch"]);
    assert_eq!(row(&text, first, name), [name, "1.0", "2.0", "1.1"]);
    assert_eq!(row(&text, "Work in flight: milliseconds, last", name), [name, "1.0", "1.5", "1.1"]);
    let taken = "Work in flight: MiB";
    assert_eq!(row(&text, taken, "| | "), ["cuda+pool", "least without waits", "torch"]);
    assert_eq!(row(&text, taken, name), [name, "2", "3", "4"]);
    assert_eq!(row(&text, "Work in flight: waits between", name), [name, "7"]);
    assert_eq!(row(&text, "Work in flight: waits of the host", name), [name, "0"]);
}

#[test]
fn at_a_capacity_rows_say_it_and_failures_are_added_up() {
    let mut data = Data::default();
    BUSY.iter().for_each(|line| data.read(&line.replace('\n', " ")).unwrap());
    assert!(!tables::markdown(&data).contains("failed, all passes"), "they were not counted");
    let limited = [
        r#"{"version":1,"log":{"file":"small.csv"},"capacity_bytes":3145728,"cases":[{"kernels":
        {"shortest_ns":5000,"longest_ns":25000},"host":"ahead","stacks":[{"spec":"none","passes":
        [{"end_ns":9,"failures":0}]},{"spec":"cuda+pool","passes":[{"end_ns":9,"failures":2},
        {"end_ns":9,"failures":3}]}]}]}"#,
        r#"{"workload":"busy","log":"small","stack":"torch","shortest_ns":5000,"longest_ns":25000,
        "host":"ahead","capacity_bytes":3145728,"passes":[{"end_ns":9,"failures":0}]}"#,
    ];
    limited.iter().for_each(|line| data.read(&line.replace('\n', " ")).unwrap());
    let text = tables::markdown(&data);
    let (title, name) =
        ("Work in flight: allocations that failed, all passes", "small, 5..25 µs, ahead, of 3 MiB");
    assert_eq!(row(&text, title, "| | "), ["cuda+pool", "torch"]);
    assert_eq!(row(&text, title, name), [name, "5", "0"]);
}

#[test]
fn a_sweep_that_was_measured_is_drawn_with_each_allocator_that_has_figures() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(plots::draw(&sample(), folder.path()).unwrap(), ["live.svg", "threads.svg"]);
    let read = |name| std::fs::read_to_string(folder.path().join(name));
    let live = read("live.svg").unwrap();
    assert!(live.contains("torch") && live.contains("cuda+pool") && live.contains("blocks live"));
    assert!(!live.contains("rmm pool"), "it has no figures");
    // The allocator with two points has a line in each of two panels.
    assert!(live.matches("<polyline").count() >= 2, "{live}");
    assert!(read("threads.svg").is_ok() && read("streams.svg").is_err());
}
