//! The commands `fidelity` and `tune`.

use super::snapshots::folder;
use super::support::{Run, program};

fn run(words: &[&str], file: &str) -> Run {
    let file = folder().join(format!("{file}.pickle.gz"));
    program().arg(words[0]).arg(file).args(&words[1..]).output().unwrap().into()
}

#[test]
fn fidelity_is_printed_as_text_and_json() {
    let text = run(&["fidelity"], "retries");
    assert_eq!(text.status, 0, "{}", text.stderr);
    assert!(
        text.stdout.contains("1500 of 1500 allocations at the recorded address (100.0 %)"),
        "{}",
        text.stdout
    );
    assert!(text.stdout.contains("7 of 7 segments given back as recorded"), "{}", text.stdout);
    let json = run(&["fidelity", "--format", "json", "--limit", "450MiB"], "garbage");
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["model"], "torch:garbage_collection_threshold=0.6,limit=471859200");
    assert_eq!((&json["same_address"], &json["first"]), (&1500.into(), &serde_json::Value::Null));
}

#[test]
fn a_file_without_segments_has_no_fidelity() {
    let log = folder().join("../../../examples/logs/rmm_cupy_4streams.csv.gz");
    let run: Run = program().arg("fidelity").arg(log).output().unwrap().into();
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("only a memory snapshot of PyTorch does"), "{}", run.stderr);
}

#[test]
fn tune_prints_a_line_to_paste_and_says_where_nothing_fits() {
    let text = run(&["tune"], "shapes");
    assert_eq!(text.status, 0, "{}", text.stderr);
    for part in [
        "torch (the file's)",
        "best:\n  unset PYTORCH",
        "the file was recorded with these",
        "replayed: all is served with",
        "not modelled:",
    ] {
        assert!(text.stdout.contains(part), "no `{part}` in: {}", text.stdout);
    }
    let json = run(&["tune", "--capacity", "1GiB", "--format", "json"], "fragmented");
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let (best, of_all) = (&json["best"], &json["best_of_all"]);
    assert_eq!((best.is_null(), of_all.is_u64()), (true, true), "PyTorch needs more, millpond does not");
    assert_eq!(run(&["tune", "--capacity", "1GiB"], "fragmented").status, 1);
    let timed_out = run(&["tune", "--time", "0"], "small");
    assert_eq!(timed_out.status, 1);
    assert!(timed_out.stdout.contains("--time grants more"), "{}", timed_out.stdout);
}
