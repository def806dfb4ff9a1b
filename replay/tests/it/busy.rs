//! Tests `millpond-replay busy`.

use std::path::Path;

use serde_json::Value;

use crate::support::{Folder, Run, program, rows};

fn busy(log: &Path, flags: &[&str]) -> Run {
    program().arg("busy").arg(log).args(["--device", "sim:h200"]).args(flags).output().unwrap().into()
}

#[test]
fn every_range_and_host_is_run_with_no_allocator_and_the_stacks_asked_for() {
    let folder = Folder::new();
    let log = folder.log(&rows(3, 2000));
    let flags = ["--stack", "cuda+pool", "--stack", "async", "--passes", "2", "--format", "json"];
    let run = busy(&log, &flags);
    assert_eq!(run.status, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let cases: Vec<_> = report["cases"].as_array().unwrap().iter().collect();
    let hosts: Vec<_> = cases.iter().map(|case| case["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["ahead", "level", "sync", "ahead", "level", "sync"]);
    let longest: Vec<_> = cases.iter().map(|case| case["kernels"]["longest_ns"].as_u64().unwrap()).collect();
    assert_eq!(longest, [25_000, 25_000, 25_000, 100_000, 100_000, 100_000]);
    let live = report["peak_live_bytes"].as_u64().unwrap();
    for case in cases {
        let stacks = case["stacks"].as_array().unwrap();
        let specs: Vec<_> = stacks.iter().map(|stack| stack["spec"].as_str().unwrap()).collect();
        assert_eq!(specs, ["none", "cuda+pool", "async"]);
        let end = |stack: usize, pass: usize| stacks[stack]["passes"][pass]["end_ns"].as_u64().unwrap();
        assert!((0..2).all(|pass| end(0, pass) <= end(1, pass) && end(0, pass) <= end(2, pass)), "{case}");
        assert!(end(0, 0) >= case["busiest_stream_ns"].as_u64().unwrap());
        assert!(stacks[1]["passes"][0]["peak_taken_bytes"].as_u64().unwrap() >= live);
        assert!(case["least_bytes_without_waits"].as_u64().unwrap() >= live);
    }
}

#[test]
fn one_seed_prints_one_table() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 1000));
    let print = |seed| {
        let run = busy(&log, &["--seed", seed, "--host", "ahead", "-k", "10..100", "-s", "cuda+pool"]);
        assert_eq!(run.status, 0, "{}", run.stderr);
        run.stdout
    };
    let table = print("42");
    assert!(table.contains("least memory that needs no wait") && table.contains("| cuda+pool "), "{table}");
    assert_eq!(print("42"), table);
    assert_ne!(print("43"), table);
}

#[test]
fn at_a_capacity_the_failures_of_each_stack_are_counted() {
    let folder = Folder::new();
    let log = folder.log(&rows(3, 2000));
    let run = |capacity| {
        let flags = ["--capacity", capacity, "-s", "cuda+pool", "-s", "cuda", "-k", "5..25", "-n", "5"];
        busy(&log, &[&flags[..], &["--format", "json"]].concat())
    };
    let enough = run("400%");
    assert_eq!(enough.status, 0, "{}", enough.stderr);
    let little = run("60%");
    assert_eq!(little.status, 1, "rows were not served: {}", little.stderr);
    let report: Value = serde_json::from_str(&little.stdout).unwrap();
    let capacity = report["capacity_bytes"].as_u64().unwrap();
    assert_eq!(capacity, report["peak_live_bytes"].as_u64().unwrap() * 60 / 100);
    for case in report["cases"].as_array().unwrap() {
        for stack in &case["stacks"].as_array().unwrap()[1..] {
            let passes = stack["passes"].as_array().unwrap();
            assert_eq!(passes.len(), 5, "{stack}");
            assert!(passes.iter().all(|pass| pass["failures"].as_u64().unwrap() > 0), "{stack}");
        }
    }
    busy(&log, &["--capacity", "0%"]).fails_with(2, &["as in 120%"]);
}

#[test]
fn mistakes_end_with_status_2_and_failures_with_1() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 200));
    busy(&log, &["-s", "cuda+pond"]).fails_with(2, &["pond"]);
    busy(&log, &["-k", "9..1"]).fails_with(2, &["as in 10..100"]);
    busy(&folder.path("none.csv"), &[]).fails_with(2, &["none.csv"]);
    let flags = ["--host", "ahead", "-k", "1..2", "-s", "cuda+pool:initial=1TiB"];
    busy(&log, &flags).fails_with(1, &["error: cuda+pool:initial=1TiB with kernels of 1..2 µs, host ahead"]);
    let text = log.display().to_string();
    busy(&log, &["-s", &format!("cuda+logging:file={text}")])
        .fails_with(2, &["overwriting a log that this run reads"]);
}

/// With enough memory, no stream waits for another and no host for the device. Every pass ends when it would
/// without an allocator, and needs little more memory. With little memory, streams do wait, and nothing
/// fails.
#[test]
fn streams_overlap_while_there_is_memory() {
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/logs/rmm_cupy_4streams.csv.gz");
    let flags =
        ["-s", "cuda+pool", "-s", "cuda+pool:max=700MiB", "-n", "4", "-k", "10..100", "--format", "json"];
    let run = busy(&log, &flags);
    assert_eq!(run.status, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    for case in report["cases"].as_array().unwrap() {
        let host = case["host"].as_str().unwrap();
        let figures = |stack: usize, name: &str| -> Vec<u64> {
            let passes = case["stacks"][stack]["passes"].as_array().unwrap();
            passes.iter().map(|pass| pass[name].as_u64().unwrap()).collect()
        };
        let least = case["least_bytes_without_waits"].as_u64().unwrap();
        let (none, pool) = (figures(0, "end_ns"), figures(1, "end_ns"));
        for (pass, (end, without)) in pool.iter().zip(&none).enumerate() {
            let (most, is_first) = (if pass == 0 { 105 } else { 102 }, pass == 0);
            assert!(*end <= without / 100 * most, "{host}, first: {is_first}: {end} of {without} ns");
        }
        for name in ["stream_waits", "host_waits"] {
            assert_eq!(figures(1, name), [0; 4], "{host}: {name}");
        }
        let taken = figures(1, "peak_taken_bytes");
        assert!(*taken.iter().max().unwrap() <= least / 100 * 120, "{host}: {taken:?} of {least}");
        // Streams that keep up share free memory, and the pool grows a little with each pass.
        let most = if host == "ahead" { 103 } else { 110 };
        assert!(taken[3] <= taken[1] / 100 * most, "{host}: it grows with each pass: {taken:?}");
        if host == "ahead" {
            assert!(figures(2, "host_waits").iter().chain(&figures(2, "stream_waits")).sum::<u64>() > 0);
        }
    }
}
