//! Tests rows `allocate failure`: each stack gets the requests at their places, and serves or fails them.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Folder, Run};

const MIB: u64 = 1 << 20;

/// Returns a log with 16 MiB live in which a request of `mib` MiB fails, is repeated, and is given up.
fn failing(folder: &Folder, mib: u64) -> std::path::PathBuf {
    let (live, asked) = (16 * MIB, mib * MIB);
    folder.log(&format!(
        "1,0,allocate,0x1000000,{live},0x77\n1,0,allocate failure,(nil),{asked},0x77\n\
         1,0,free,0x1000000,{live},0x77\n1,0,allocate,0x1000000,4194304,0x77\n\
         1,0,free,0x1000000,4194304,0x77\n"
    ))
}

fn replay(log: &Path, flags: &[&str]) -> (i32, Value) {
    let run = Run::of(log, &[&["--device", "sim:64MiB", "--format", "json"], flags].concat());
    (run.status, serde_json::from_str(&run.stdout).expect(&run.stderr))
}

#[test]
fn issue_9_a_row_that_failed_is_asked_for_where_it_stands() {
    let folder = Folder::new();
    let log = failing(&folder, 40);
    let (status, report) = replay(&log, &["-s", "cuda", "-s", "cuda+pool:max=20MiB"]);
    assert_eq!(status, 1, "a named stack fails it");
    let served = json!({ "requests": 1, "served": 1, "unserved": [] });
    assert_eq!(report["stacks"][0]["asked_again"], served);
    let pool = &report["stacks"][1];
    assert_eq!((&pool["failures"], &pool["asked_again"]["served"]), (&json!(0), &json!(0)));
    let unserved = &pool["asked_again"]["unserved"][0];
    assert_eq!((&unserved["line"], &unserved["bytes"]), (&json!(3), &json!(40 * MIB)));
    assert_eq!(unserved["missing_bytes"], json!(36 * MIB), "16 MiB are live, 20 MiB are allowed");
    assert_eq!(unserved["report"]["short_bytes"], unserved["missing_bytes"]);

    let stacks = ["--device", "sim:64MiB", "-s", "cuda", "-s", "cuda+pool:max=20MiB"];
    let table = Run::of(&log, &[&stacks[..], &["--details"]].concat());
    for text in [
        "served now",
        " 1 of 1 |",
        " 0 of 1 |",
        "note: 1 allocation failed when the log was written (1 request)",
        "note: cuda+pool:max=20MiB: 1 request failed again, the first for 40MiB at line 3, 36MiB more was \
         needed",
    ] {
        assert!(table.stdout.contains(text), "no `{text}` in\n{}", table.stdout);
    }
}

/// The peak of live memory and the peak taken include the same requests.
#[test]
fn peak_taken_and_peak_live_both_include_the_rows_that_failed() {
    let folder = Folder::new();
    let log = failing(&folder, 40);
    let stacks = ["-s", "cuda", "-s", "cuda+pool:max=20MiB"];
    let report = Run::json(&log, &stacks);
    let figures = |figure: &str| {
        let stacks = report["stacks"].as_array().unwrap();
        stacks.iter().map(|stack| stack[figure].as_u64().unwrap() / MIB).collect::<Vec<u64>>()
    };
    assert_eq!(
        (report["log"]["peak_needed_bytes"].as_u64(), 16),
        (Some(56 * MIB), figures("peak_live_bytes")[0])
    );
    assert_eq!(figures("peak_reserved_bytes_first"), [16, 16]);
    assert_eq!(figures("peak_reserved_bytes_asked_again")[0], 56);
    for flags in [&[][..], &["--details"], &["--repeat", "2"], &["--repeat", "2", "--details"]] {
        let text = Run::of(&log, &[&stacks[..], flags].concat()).stdout;
        assert!(text.lines().next().unwrap().ends_with("peak live 56MiB with 1 failed request"), "{text}");
        let row = text.lines().find(|line| line.starts_with("| cuda ")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[2..4], ["56MiB", "1.000"], "{text}");
        assert!(text.contains("peak taken and peak live include "), "{text}");
    }
}

#[test]
fn issue_9_plain_cuda_says_how_much_the_device_lacked() {
    let folder = Folder::new();
    let (status, report) = replay(&failing(&folder, 60), &["-s", "cuda"]);
    assert_eq!(status, 1);
    assert_eq!(report["stacks"][0]["asked_again"]["unserved"][0]["missing_bytes"], json!(12 * MIB));
}

#[test]
fn issue_9_rows_that_failed_count_in_no_other_figure() {
    let folder = Folder::new();
    let with = replay(&failing(&folder, 40), &["-n", "2"]).1;
    let log = folder.write(
        "without.csv",
        std::fs::read_to_string(folder.path("log.csv"))
            .unwrap()
            .replace("1,0,allocate failure,(nil),41943040,0x77\n", ""),
    );
    let without = replay(&log, &["-n", "2"]).1;
    assert_eq!((&with["log"]["failed_requests"], &without["log"]["failed_requests"]), (&json!(1), &json!(0)));
    assert_eq!(with["log"]["peak_live_bytes"], without["log"]["peak_live_bytes"]);
    let stacks = |report: &Value| report["stacks"].as_array().unwrap().clone();
    assert_eq!(stacks(&with).len(), stacks(&without).len());
    for (with, without) in stacks(&with).iter().zip(stacks(&without)) {
        for figure in
            ["spec", "operations", "failures", "peak_reserved_bytes_first", "peak_reserved_bytes_last"]
        {
            assert_eq!(with[figure], without[figure], "{figure}: {with:#}");
        }
        for figure in ["calls_first_pass", "calls_all_passes", "ns_first_pass", "failures"] {
            assert_eq!(with["driver"][figure], without["driver"][figure], "{figure}: {with:#}");
        }
        assert!(without["asked_again"].is_null());
    }
}

/// Returns the stacks that served the row which had failed.
fn served(report: &Value) -> Vec<&str> {
    let stacks = report["stacks"].as_array().unwrap().iter();
    let served = stacks.filter(|stack| stack["asked_again"]["served"] == 1);
    served.map(|stack| stack["spec"].as_str().unwrap()).collect()
}

#[test]
fn issue_9_of_the_standard_line_up_one_stack_that_serves_all_is_enough() {
    let folder = Folder::new();
    let (status, report) = replay(&failing(&folder, 40), &[]);
    assert_eq!(status, 0, "{report:#}");
    // No device of 64 MiB has more, but managed memory also has the host's memory, twice as much: with 16 MiB
    // live, 176 MiB are left.
    let (status, report) = replay(&failing(&folder, 176), &[]);
    assert_eq!((status, served(&report)), (0, vec!["managed"]), "{report:#}");
    let (status, report) = replay(&failing(&folder, 177), &[]);
    assert_eq!((status, served(&report)), (1, vec![]), "{report:#}");
    // The same for rows that succeeded when the log was written.
    let log = folder.log(
        "1,0,allocate,0x1000000,41943040,0\n1,0,allocate,0x4000000,15728640,0\n\
         1,0,free,0x4000000,15728640,0\n1,0,free,0x1000000,41943040,0\n",
    );
    let named = ["-s", "cuda", "-s", "cuda+limiting:limit=48MiB"];
    assert_eq!(replay(&log, &named).0, 1, "a named stack fails a row");
    assert_eq!(replay(&log, &[]).0, 0);
}

/// A separate replay makes the failed requests; its rows belong to no log.
#[test]
fn a_stack_that_logs_writes_its_log_once() {
    let folder = Folder::new();
    let log = failing(&folder, 40);
    let file = folder.path("out.csv");
    let stack = |file: &str| format!("cuda+binning:bins=64MiB(cuda+logging:file={file})");
    let (status, report) = replay(&log, &["-s", &stack(file.to_str().unwrap())]);
    assert_eq!((status, &report["stacks"][0]["asked_again"]["served"]), (0, &json!(1)));
    let rows = std::fs::read_to_string(&file).unwrap();
    assert_eq!(rows.lines().count(), 5, "a header, two allocations and two frees: {rows}");
    if cfg!(target_os = "linux") {
        let stacks = [stack("/dev/stdout"), "cuda+logging:file=/dev/stdout".to_owned()];
        for stack in stacks {
            let run = Run::of(&log, &["--device", "sim:64MiB", "--format", "csv", "-s", &stack]);
            assert_eq!(run.stdout.matches("Thread,Time").count(), 1, "{}", run.stdout);
        }
    }
}
