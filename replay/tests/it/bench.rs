//! Tests `millpond-replay bench`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{Run, program};

fn bench(flags: &[&str]) -> Run {
    program().arg("bench").args(flags).output().unwrap().into()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Returns the bytes that a stack took from the driver. Resources that keep blocks report them; plain CUDA
/// and mimalloc do not.
fn taken(result: &Value) -> Option<u64> {
    let taken = result["reserved_bytes"].as_u64();
    assert_eq!(taken.is_some(), !["cuda", "mimalloc"].contains(&text(result, "stack")), "{result}");
    taken
}

#[test]
fn a_quick_run_has_every_workload_on_every_stack() {
    let run = bench(&["--quick", "--device", "sim:h200", "--format", "json"]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((report["version"].as_u64(), report["seed"].as_u64()), (Some(1), Some(42)));
    assert_eq!(text(&report["device"], "spec"), "sim:h200");
    let stacks = ["mimalloc", "cuda+pool", "cuda+binning", "cuda+pool+binning"];
    let mut expected = BTreeSet::new();
    for stack in stacks {
        for bytes in [256, 4 << 10, 64 << 10, 1 << 20, 64 << 20] {
            expected.insert((stack, "pair", 1, 1, 0, bytes));
        }
        expected.extend([100, 1000, 10_000, 100_000, 1_000_000].map(|live| (stack, "churn", live, 1, 0, 0)));
        expected.insert((stack, "churn_large", 2000, 1, 0, 0));
        expected.extend([1, 4, 16, 64, 256].map(|streams| (stack, "streams", 10_000, streams, 0, 0)));
        expected.extend([0, 25, 50, 75, 90].map(|freed| (stack, "fragmented", 4000, 1, freed, 0)));
        let threads = [("threads_own_stream", 2), ("threads_one_stream", 1), ("cross_thread_free", 2)];
        expected.extend(threads.map(|(workload, streams)| (stack, workload, 1000, streams, 0, 0)));
    }
    let results = report["results"].as_array().unwrap();
    // A machine that is too small for mimalloc, or too slow for a million blocks, skips those.
    let skipped = report["not_run"].as_array().unwrap();
    for case in skipped {
        let is_heavy = text(case, "stack") == "mimalloc" || case["live"].as_u64() >= Some(100_000);
        assert!(is_heavy && text(case, "status") == "skipped" && !text(case, "reason").is_empty(), "{case}");
    }
    let found: BTreeSet<_> = results
        .iter()
        .chain(skipped)
        .map(|case| {
            let bytes = if text(case, "workload") == "pair" { case["bytes"].as_u64().unwrap() } else { 0 };
            let number = |key: &str| case[key].as_u64().unwrap();
            let (streams, freed) = (number("streams"), number("freed_percent"));
            (text(case, "stack"), text(case, "workload"), number("live"), streams, freed, bytes)
        })
        .collect();
    assert_eq!(found, expected);
    for result in results {
        for key in ["threads", "bytes", "steps", "ns_per_step", "steps_per_second"] {
            assert!(result[key].as_f64().is_some_and(|number| number > 0.0), "{key} of {result}");
        }
        assert!(result["p99_ns"].is_u64());
        assert_eq!(result["ns_per_fill"].is_f64(), text(result, "workload") != "pair");
        // Nothing is taken twice, and little of the taken memory may be idle.
        let taken = taken(result);
        if result["live"].as_u64() > Some(1) {
            assert!(taken.is_none_or(|taken| taken > result["bytes"].as_u64().unwrap() / 2), "{result}");
        }
    }
}

#[test]
fn only_what_is_asked_for_runs() {
    let flags = ["-q", "-d", "sim:h200", "-f", "json", "-s", "cuda+pool+statistics", "-s", "cuda"];
    let run = bench(&[&flags[..], &["-w", "churn_large", "pair"]].concat());
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    let column = |key| results.iter().map(|case| text(case, key).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(column("workload"), ["churn_large", "pair"].map(str::to_owned).into());
    assert_eq!(column("stack"), ["cuda", "cuda+pool+statistics", "mimalloc"].map(str::to_owned).into());
    results.iter().for_each(|result| _ = taken(result));
}

#[test]
fn mistakes_end_with_status_2_and_failures_with_1() {
    bench(&["-s", "cuda+pond"]).fails_with(2, &["pond"]);
    bench(&["-w", "pears"]).fails_with(2, &["pears", "cross_thread_free"]);
    let flags = ["-q", "-d", "sim:h200", "-w", "pair", "-s", "cuda+pool:initial=1TiB"];
    bench(&flags).fails_with(1, &["error: pair with 1 thread,", "on cuda+pool:initial=1TiB"]);
}
