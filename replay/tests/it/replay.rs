//! Tests replays of logs through stacks, printed in each format.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Folder, HEADER, Run, program, rows};

fn specs(report: &Value) -> Vec<String> {
    let stacks = report["stacks"].as_array().unwrap();
    stacks.iter().map(|stack| stack["spec"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_standard_line_up_replays_a_log_without_a_failure() {
    let folder = Folder::new();
    let log = folder.log(&rows(4, 4000));
    let report = Run::json(&log, &[]);
    assert_eq!(report["version"], 2);
    assert_eq!(report["device"]["simulated"], true);
    let (events, threads, streams) =
        (&report["log"]["events"], &report["log"]["threads"], &report["log"]["streams"]);
    assert_eq!((events.as_u64(), threads.as_u64(), streams.as_u64()), (Some(4000), Some(4), Some(4)));
    let begin = ["rmm_pool", "cuda", "managed", "cuda_async", "cuda+pool"];
    assert!(specs(&report).starts_with(&begin.map(str::to_owned)));
    let live = report["log"]["peak_live_bytes"].as_u64().unwrap();
    for stack in report["stacks"].as_array().unwrap() {
        let spec = &stack["spec"];
        assert_eq!((stack["status"].as_str(), stack["failures"].as_u64()), (Some("ran"), Some(0)), "{spec}");
        assert_eq!(stack["misuses_all_passes"], 0, "{spec}");
        assert_eq!(stack["operations"], 4000);
        let taken = stack["peak_reserved_bytes_first"].as_u64().unwrap();
        assert!(taken >= live, "{spec} took {taken} for {live}");
        let ratio = stack["reserved_over_live_first"].as_f64().unwrap();
        assert!((ratio * live as f64 - taken as f64).abs() < 1.0, "{spec}");
        let driver = &stack["driver"];
        let is_measured = driver["unmeasured"].as_array().unwrap().is_empty();
        let (first, best) = (stack["ns_per_op_first"].as_f64(), stack["ns_per_op_best"].as_f64());
        assert!(first >= best && first.is_some() == is_measured, "{spec}: {first:?} {best:?}");
        assert!(driver["ns_first_pass"].as_u64().unwrap() > 0 || !is_measured, "{spec}: virtual time passes");
    }
}

#[test]
fn plain_cuda_asks_the_driver_once_for_each_row_and_takes_what_is_live() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 3000));
    let report = Run::json(&log, &["--stack", "cuda", "--repeat", "2"]);
    let cuda = &report["stacks"][0];
    assert_eq!(cuda["driver"]["by_kind"]["mem_alloc"]["calls"], 1500, "of one pass");
    assert_eq!(cuda["driver"]["by_kind"]["mem_free"]["calls"], 1500);
    for (calls, expected) in
        [("building", 0), ("first_pass", 3000), ("best_pass", 3000), ("all_passes", 6000)]
    {
        assert_eq!(cuda["driver"][format!("calls_{calls}")], expected, "{calls}");
    }
    let number = |value: &Value| value.as_u64().unwrap();
    let (taken, live) =
        (number(&cuda["peak_reserved_bytes_first"]), number(&report["log"]["peak_live_bytes"]));
    let page = 2 << 20;
    let rounding = page * number(&report["log"]["peak_live_blocks"]);
    assert!(taken.is_multiple_of(page) && (live..live + rounding).contains(&taken), "{taken} for {live}");
}

#[test]
fn a_pool_asks_the_driver_less_and_tells_how_it_reused() {
    let folder = Folder::new();
    let report = Run::json(&folder.log(&rows(4, 4000)), &["--stack", "cuda+pool:pages=off", "--repeat", "3"]);
    let pool = &report["stacks"][0];
    let allocations = pool["driver"]["by_kind"]["mem_alloc"]["calls"].as_u64().unwrap();
    assert!(allocations < 200, "{allocations}");
    let ladder = pool["ladder"].as_object().unwrap();
    let served: u64 = ladder.values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(served, 2000, "of one pass: {ladder:?}");
    assert!(pool["largest_free_block_bytes"].as_u64().unwrap() > 0);
    assert_eq!(pool["bytes_beyond_slack"], 0, "over regions there is no slack");
}

/// The counting driver sees only the blocks that a driver pool hands out; the figure must be the memory that
/// the pool holds.
#[test]
fn a_pool_of_the_driver_counts_with_what_it_holds() {
    let folder = Folder::new();
    let log = folder.log(&rows(4, 4000));
    let report = Run::json(&log, &["--stack", "cuda_async", "--stack", "managed", "--repeat", "2"]);
    let [pool, blocks] = [0, 1].map(|at: usize| report["stacks"][at]["passes"].as_array().unwrap().clone());
    for (pool, blocks) in pool.iter().zip(&blocks) {
        let [held, used] = [pool, blocks].map(|pass| pass["peak_taken_bytes"].as_u64().unwrap());
        assert!(held > used, "{held} held, {used} used");
    }
    let note = "the simulated driver's pools are a model";
    assert!(Run::of(&log, &["--stack", "cuda_async"]).stdout.contains(note));
    assert!(!Run::of(&log, &["--stack", "cuda+pool"]).stdout.contains(note));
}

#[test]
fn each_pass_has_its_figures() {
    let folder = Folder::new();
    let log = folder.log(&rows(4, 4000));
    let report = Run::json(&log, &["--stack", "cuda+pool", "--stack", "managed", "--repeat", "4"]);
    let number = |value: &Value| value.as_u64().unwrap();
    for stack in report["stacks"].as_array().unwrap() {
        let passes = stack["passes"].as_array().unwrap();
        assert_eq!(passes.len(), 4);
        let (first, last) = (&passes[0], &passes[3]);
        assert_eq!(first["peak_taken_bytes"], stack["peak_reserved_bytes_first"]);
        assert_eq!(last["peak_taken_bytes"], stack["peak_reserved_bytes_last"]);
        assert_eq!(first["driver_calls"], stack["driver"]["calls_first_pass"]);
        let calls = passes.iter().map(|pass| number(&pass["driver_calls"])).sum::<u64>();
        assert!(
            calls + number(&stack["driver"]["calls_building"])
                <= number(&stack["driver"]["calls_all_passes"])
        );
        assert!(passes.iter().all(|pass| pass["failures"] == 0));
        let best = passes.iter().map(|pass| pass["ns"].as_f64()).reduce(|one, other| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            _ => None,
        });
        let per_op = best.flatten().map(|ns| ns / 4000.0);
        assert_eq!(per_op, stack["ns_per_op_best"].as_f64(), "null where the driver's time is not known");
    }
    assert!(report["stacks"][0]["ns_per_op_best"].is_number());
}

#[test]
fn every_order_of_threads_replays_everything() {
    let folder = Folder::new();
    let log = folder.log(&rows(4, 3000));
    for order in ["as-logged", "free", "1"] {
        let report = Run::json(&log, &["--threads", order, "-s", "cuda+pool", "-s", "cuda", "-n", "2"]);
        assert_eq!(report["thread_order"], order);
        for stack in report["stacks"].as_array().unwrap() {
            assert_eq!(
                (stack["failures"].as_u64(), stack["misuses_all_passes"].as_u64()),
                (Some(0), Some(0))
            );
        }
        assert_eq!(report["stacks"][1]["driver"]["by_kind"]["mem_free"]["calls"], 1500);
    }
}

#[test]
fn the_table_names_log_device_and_stacks() {
    let folder = Folder::new();
    let run = Run::of(&folder.log(&rows(4, 4000)), &["--repeat", "1", "--details"]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    for text in [
        "4,000 events, 4 streams, 4 threads",
        "replayed once",
        "sim:h200",
        "simulated",
        "| cuda+pool ",
        "mem_alloc",
    ] {
        assert!(run.stdout.contains(text), "no `{text}` in\n{}", run.stdout);
    }
}

#[test]
fn without_a_device_it_says_which_one_it_took() {
    let folder = Folder::new();
    let output =
        program().arg(folder.log(&rows(1, 100))).args(["-s", "cuda", "-f", "json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let simulated = report["device"]["simulated"].as_bool().unwrap();
    assert_eq!(report["device"]["spec"], if simulated { "sim:h200" } else { "cuda:0" });
}

#[test]
fn csv_has_a_row_for_each_stack_of_each_log() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 500));
    let flags = ["-s", "cuda", "-s", "cuda+pool", "-d", "sim:h200", "-f", "csv"];
    let run: Run = program().args([&log, &log]).args(flags).output().unwrap().into();
    let mut reader = csv::Reader::from_reader(run.stdout.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let specs: Vec<&str> = records.iter().map(|record| &record[column("spec")]).collect();
    assert_eq!(specs, ["cuda", "cuda+pool", "cuda", "cuda+pool"]);
    assert!(records.iter().all(|record| &record[column("failures")] == "0"));
    assert_eq!(&records[0][column("driver_calls_by_kind")], "mem_alloc=250;mem_free=250");
    assert_eq!((&records[0][column("own_stream")], &records[0][column("events")]), ("", "500"));
}

#[test]
fn json_of_several_logs_is_one_object_for_each_line() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let run: Run =
        program().args([&log, &log]).args(["-s", "cuda", "-d", "sim", "-f", "json"]).output().unwrap().into();
    assert_eq!(run.stdout.lines().count(), 2);
    for line in run.stdout.lines() {
        let report: Value = serde_json::from_str(line).unwrap();
        assert_eq!(specs(&report), ["cuda"]);
    }
}

#[test]
fn packed_logs_and_the_standard_input_are_read_as_they_are() {
    let folder = Folder::new();
    let text = format!("{HEADER}{}", rows(2, 600));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 3).unwrap();
    // The names do not tell the format; the first bytes do.
    for (name, content) in [("one", text.as_bytes()), ("two.csv", &gzip), ("three.gz", &zstd)] {
        let report = Run::json(&folder.write(name, content), &["-s", "cuda", "-n", "1"]);
        assert_eq!(report["log"]["events"], 600, "{name}");
    }
    let mut child = program()
        .args(["-", "-s", "cuda", "-d", "sim", "-f", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&gzip).unwrap();
    let report: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(report["log"]["events"], 600);
    assert_eq!(report["log"]["file"], "standard input");
}

#[test]
fn oddities_of_a_log_are_counted_and_explained() {
    let folder = Folder::new();
    let log = folder.log(
        "1,00:00:00:000000,free,0xdead,5,0\n\
         1,00:00:00:000001,allocate,0x100,10,0\n\
         1,00:00:00:000002,allocate,0x100,20,0x1\n\
         1,00:00:00:000003,allocate failure,(nil),1099511627776,0\n\
         1,00:00:00:000004,allocate,(nil),0,0x2\n\
         1,00:00:00:000005,free,(nil),0,0x2\n\
         1,00:00:00:000006,allocate,0x200,30,0x7f00\n\
         1,00:00:00:000007,free,0x200,30,0x7f01\n",
    );
    let report = Run::json(&log, &["-s", "cuda", "-s", "cuda+pool"]);
    let log_figures = &report["log"];
    for (name, count) in [
        ("events", 8_i64),
        ("operations", 9),
        ("streams", 4),
        ("unknown_frees", 1),
        ("first_unknown_free_line", 2),
        ("duplicate_allocations", 1),
        ("failed_allocations", 1),
        ("bytes_before", 5),
        ("leaked_blocks", 1),
        ("leaked_bytes", 20),
        ("peak_live_bytes", 50),
        ("peak_needed_bytes", 1_099_511_627_796),
    ] {
        assert_eq!(log_figures[name], count, "{name}");
    }
    assert!(report["stacks"].as_array().unwrap().iter().all(|stack| stack["failures"] == 0));
    let table = Run::of(&log, &["-s", "cuda"]);
    assert_eq!(table.status, 1, "a terabyte is not served today, either");
    for text in [
        "the log begins late: it frees 1 block, in all at least 5B, that it never allocates (first at line \
         2)",
        "1 allocation returned the address of a live block (first at line 4)",
        "1 block never freed in the log (20B)",
    ] {
        assert!(table.stdout.contains(text), "{}", table.stdout);
    }
}

#[test]
fn out_of_memory_is_counted_with_its_line_and_loses_no_other_stack() {
    let folder = Folder::new();
    let log = folder.log(
        "1,0,allocate,0x100,1048576,0\n1,0,allocate,0x900000,104857600,0\n\
         1,0,free,0x900000,104857600,0\n1,0,free,0x100,1048576,0\n",
    );
    let flags = ["-s", "cuda", "-s", "cuda+pool", "-n", "2", "-f", "json", "-d", "sim:64MiB"];
    let run: Run = program().arg(&log).args(flags).output().unwrap().into();
    assert_eq!(run.status, 1, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    for stack in report["stacks"].as_array().unwrap() {
        assert_eq!((stack["failures"].as_u64(), stack["failures_all_passes"].as_u64()), (Some(1), Some(2)));
        assert_eq!(stack["first_failure"]["line"], 3);
        assert!(stack["first_failure"]["error"].as_str().unwrap().contains("out of memory for 100MiB"));
    }
}

#[test]
fn out_of_memory_comes_with_what_would_have_helped() {
    let folder = Folder::new();
    let log = folder.log(
        "1,0,allocate,0x100,16777216,0\n1,0,allocate,0x9000000,12582912,0\n\
         1,0,free,0x9000000,12582912,0\n1,0,free,0x100,16777216,0\n",
    );
    let stack = ["-s", "cuda+pool:max=20MiB", "-d", "sim:64MiB"];
    let run: Run = program().arg(&log).args(stack).args(["-f", "json"]).output().unwrap().into();
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let said = &report["stacks"][0]["first_failure"]["report"];
    assert_eq!((&said["short_bytes"], &said["live_bytes"]), (&(8 << 20).into(), &(16 << 20).into()));
    let raise = json!({ "action": "raise_maximum", "bytes": 8 << 20, "suffices": true });
    assert_eq!(said["remedies"][0], raise, "{said:#}");
    assert_eq!(said["remedies"][1]["action"], "free_blocks", "{said:#}");
    let run: Run = program().arg(&log).args(stack).output().unwrap().into();
    assert!(run.stdout.contains("out of memory for 12MiB on stream"), "{}", run.stdout);
    assert!(run.stdout.contains("8MiB more is needed"), "{}", run.stdout);
    assert!(run.stdout.contains("- raise the maximum by 8MiB"), "{}", run.stdout);
    // Follow the advice.
    let raised = ["-s", "cuda+pool:max=28MiB", "-d", "sim:64MiB"];
    let run: Run = program().arg(&log).args(raised).output().unwrap().into();
    assert_eq!(run.status, 0, "{}", run.stdout);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let mut child = program()
        .arg(&log)
        .args(["-s", "cuda", "-d", "sim"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let run: Run = child.wait_with_output().unwrap().into();
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
}

#[test]
fn layers_are_listed_with_their_parameters() {
    let run: Run = program().arg("--list-layers").output().unwrap().into();
    assert_eq!(run.status, 0);
    for name in ["cuda", "managed", "pool", "binning", "fixed_size", "logging", "statistics", "thread_safe"] {
        assert!(run.stdout.lines().any(|line| line.starts_with(name)), "{name} in\n{}", run.stdout);
    }
    assert!(run.stdout.contains("    max "));
}

#[test]
fn help_shows_examples_and_exit_codes() {
    let run: Run = program().arg("--help").output().unwrap().into();
    assert_eq!(run.status, 0);
    for text in ["Examples:", "Exit status:", "--skip-bad-rows", "as-logged", "sim:8GiB"] {
        assert!(run.stdout.contains(text), "{text}");
    }
}
