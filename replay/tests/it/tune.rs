//! Tests the commands `fidelity` and `tune`.

use std::time::Duration;

use millpond_driver::DeviceSpec;
use millpond_engine::program::Limits;
use millpond_replay::compare;
use millpond_replay::progress::Progress;
use millpond_snapshot::recording::Recording;
use millpond_snapshot::{import, tune};

use crate::support::{Folder, Run, program, snapshot};

fn run(words: &[&str], file: &str) -> Run {
    let file = snapshot(file);
    program().arg(words[0]).arg(file).args(&words[1..]).output().unwrap().into()
}

#[test]
fn fidelity_is_printed_as_text_and_json() {
    let text = run(&["fidelity"], "retries");
    assert_eq!(text.status, 0, "{}", text.stderr);
    assert!(
        text.stdout.contains("1500 of 1500 allocations placed at the recorded address (100.0 %)"),
        "{}",
        text.stdout
    );
    assert!(text.stdout.contains("7 of 7 segments returned to the driver as recorded"), "{}", text.stdout);
    let json = run(&["fidelity", "--format", "json", "--limit", "450MiB"], "garbage");
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["model"], "torch:garbage_collection_threshold=0.6,limit=450MiB");
    assert_eq!((&json["same_address"], &json["first"]), (&1500.into(), &serde_json::Value::Null));
}

#[test]
fn a_file_without_segments_has_no_fidelity() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/logs/rmm_cupy_4streams.csv.gz");
    let run: Run = program().arg("fidelity").arg(log).output().unwrap().into();
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("only PyTorch memory snapshots have them"), "{}", run.stderr);
}

#[test]
fn the_allocator_of_tensorflow_has_no_advice_about_rmm() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshot/tests/readers/bfc_chunks.txt");
    let tuned: Run = program().arg("tune").arg(text).output().unwrap().into();
    tuned.fails_with(2, &["TF_GPU_ALLOCATOR=cuda_malloc_async", "millpond-replay explain"]);
    assert!(!tuned.stderr.contains("rmm"), "{}", tuned.stderr);
}

/// A pool that reserves memory at once gets only the bytes that the requests need; others have the rest.
#[test]
fn a_line_to_paste_leaves_the_memory_that_others_need() {
    let folder = Folder::new();
    let rows = "1,00:00:00.0,allocate,0x7f00,1073741824,0\n1,00:00:00.1,free,0x7f00,1073741824,0\n";
    let file = folder.write("rmm.csv", format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}"));
    let words = ["--capacity", "16GiB", "--format", "json"];
    let tuned: Run = program().arg("tune").arg(&file).args(words).output().unwrap().into();
    assert_eq!(tuned.status, 0, "{}", tuned.stderr);
    let json: serde_json::Value = serde_json::from_str(&tuned.stdout).unwrap();
    for (stack, code) in
        [("rmm_pool:initial=100%", "initial_pool_size=1 << 30)"), ("rmm_arena:size=100%", "size=1 << 30)")]
    {
        let mut tried = json["tried"].as_array().unwrap().iter();
        let line = tried.find(|tried| tried["stack"] == stack).unwrap()["line"].as_str().unwrap();
        assert!(line.contains(code), "{line}");
    }
}

/// PyTorch accepts a `max_split_size` only above 20 MiB, and so does the layer that replays it.
#[test]
fn a_setting_that_pytorch_does_not_take_is_an_error_with_the_name_of_the_file() {
    let folder = Folder::new();
    let header = "Thread,Time,Action,Pointer,Size,Stream,Notes";
    for (bytes, is_read) in [("1048", false), ("20971520", false), ("20971521", true), ("-1", true)] {
        let notes = format!(
            "source PyTorch%20memory%20snapshot;setting max_split_size {}",
            bytes.replace('-', "%2D")
        );
        let rows = format!("{header}\n1,00:00:00.0,allocate,0x7f00,30000000,0,{notes}\n");
        let file = folder.write("odd.csv", rows);
        let tuned: Run = program().arg("tune").arg(&file).args(["--time", "5"]).output().unwrap().into();
        if is_read {
            assert_eq!(tuned.status, 0, "{}", tuned.stderr);
        } else {
            tuned.fails_with(2, &["odd.csv", "`max_split_size` is", "accepts only values above 20 MiB"]);
        }
    }
}

#[test]
fn an_error_of_the_bound_has_the_name_of_the_file() {
    let folder = Folder::new();
    let row = |at: u64| format!("1,00:00:00.0,allocate,{at:#x},18446744073709551615,0\n");
    let file = folder.log(&(1..4).map(|at| row(at << 8)).collect::<String>());
    for command in ["tune", "report"] {
        let output = folder.path("page.html");
        let mut program = program();
        program.arg(command).arg(&file);
        if command == "report" {
            program.arg("--output").arg(output);
        }
        let run: Run = program.output().unwrap().into();
        run.fails_with(2, &["log.csv", "their sizes together exceed 64 bits"]);
    }
}

#[test]
fn tune_prints_a_line_to_paste_and_says_where_nothing_fits() {
    let text = run(&["tune"], "shapes");
    assert_eq!(text.status, 0, "{}", text.stderr);
    for part in [
        "torch (the file's)",
        "best:\n  unset PYTORCH",
        "the file was recorded with these",
        "replayed: every request is served with",
        "not modelled:",
    ] {
        assert!(text.stdout.contains(part), "no `{part}` in: {}", text.stdout);
    }
    let json = run(&["tune", "--capacity", "1GiB", "--format", "json"], "fragmented");
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let (best, of_all) = (&json["best"], &json["best_of_all"]);
    assert_eq!((best.is_null(), of_all.is_u64()), (true, true), "PyTorch needs more, millpond does not");
    assert_eq!(run(&["tune", "--capacity", "1GiB"], "fragmented").status, 0, "millpond fits");
    assert_eq!(run(&["tune", "--capacity", "500MiB"], "fragmented").status, 1);
    let timed_out = run(&["tune", "--time", "0"], "small");
    assert_eq!(timed_out.status, 1);
    assert!(timed_out.stdout.contains("--time gives more"), "{}", timed_out.stdout);
}

/// Returns whether a stack serves a recording on a device of this size, by an ordinary replay.
fn serves(recording: &Recording, stack: &str, capacity: u64) -> bool {
    let program = recording.program(Limits::default()).unwrap();
    let device = DeviceSpec::SimCapacity(capacity);
    let settings = compare::Settings::new(device, vec![stack.parse().unwrap()]);
    let compared = compare::compare(&program, &settings, &compare::layers(), &Progress::default()).unwrap();
    match &compared.stacks[0].result {
        compare::StackResult::Ran(figures) => !figures.failed_a_row(),
        _ => false,
    }
}

#[test]
fn the_smallest_capacity_is_that_of_a_replay_of_ones_own() {
    for name in ["shapes", "fragmented", "max_split_retries"] {
        let recording = import::open(&snapshot(name), &import::Options::default()).unwrap();
        let request = tune::Request::default().time(Duration::from_secs(600));
        let tuned = tune::tune(&recording, &request, &compare::layers(), &mut |_| ()).unwrap();
        for tried in &tuned.tried {
            let stack = &tried.candidate.stack;
            let smallest = tried.smallest.as_ref().unwrap();
            for bytes in smallest.also_served.iter().chain([&smallest.bytes]) {
                assert!(serves(&recording, stack, *bytes), "{name} {stack} {bytes}");
            }
            if let Some(bytes) = smallest.failed_below {
                assert!(!serves(&recording, stack, bytes), "{name} {stack} {bytes}");
            }
        }
    }
}
