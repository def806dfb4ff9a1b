//! Tests the last line of a replay: one piece of advice, confirmed by the figures and on a GPU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use millpond_replay::{cli, compare};
use serde_json::Value;

use crate::support::{Folder, rows};

/// Runs the command line in this process.
fn run(log: &Path, device: &str, flags: &[&str]) -> String {
    let words = ["millpond-replay", "--device", device].into_iter().chain(flags.iter().copied());
    let words = words.map(OsString::from).chain([log.as_os_str().to_owned()]);
    let mut out = Vec::new();
    cli::run(words, &compare::layers(), &mut out).expect("the arguments are right");
    String::from_utf8(out).unwrap()
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

/// Returns the stack that a line advises: the first text in backticks.
fn advised(line: &str) -> &str {
    line.split('`').nth(1).unwrap_or_else(|| panic!("no stack in: {line}"))
}

fn example_log() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/logs/rmm_cupy_4streams.csv.gz");
    // In the GPU lane, the logs lie next to the tests.
    let lane = std::env::current_exe().ok().and_then(|test| Some(test.parent()?.parent()?.join("logs")));
    let lane = lane.map(|folder| folder.join("rmm_cupy_4streams.csv.gz"));
    lane.filter(|path| path.is_file()).unwrap_or(own)
}

/// Checks that the advice agrees with the figures.
fn check(log: &Path, device: &str) -> String {
    let text = run(log, device, &[]);
    let line = last_line(&text);
    assert!(line.starts_with("what to do: build the program's resource from the text `"), "{line}");
    let spec = advised(line);
    let rust = "parse::<millpond::stack::StackSpec>()?.build(&millpond::layers(), &device)?";
    assert!(line.contains(&format!("{spec:?}.{rust}")), "{line}");
    let report: Value = serde_json::from_str(&run(log, device, &["--format", "json"])).unwrap();
    let stacks = report["stacks"].as_array().unwrap();
    let figure = |spec: &str, pointer: &str| {
        let stack = stacks.iter().find(|stack| stack["spec"] == spec).unwrap();
        stack.pointer(pointer).and_then(Value::as_u64).unwrap()
    };
    let (calls, plain) =
        (figure(spec, "/driver/calls_first_pass"), figure("cuda", "/driver/calls_first_pass"));
    assert!(2 * calls < plain, "{calls} calls where plain CUDA makes {plain}");
    let taken = figure(spec, "/peak_reserved_bytes_first");
    for other in stacks.iter().filter(|stack| stack["status"] == "ran") {
        let sparing = other["driver"]["calls_first_pass"].as_u64().unwrap() * 2 < plain;
        let less = other["peak_reserved_bytes_first"].as_u64().unwrap() as f64 * 1.02 < taken as f64;
        assert!(!(sparing && less), "{} takes less than {spec}", other["spec"]);
    }
    spec.to_owned()
}

#[test]
fn issue_9_the_last_line_names_a_stack_that_the_figures_bear_out() {
    assert_eq!(check(&example_log(), "sim:h200"), "cuda+pool");
}

#[test]
fn issue_9_a_stack_of_the_users_own_is_advised_as_it_was_written() {
    let text = run(&example_log(), "sim:h200", &["-s", "cuda", "-s", "cuda + pool:max=2GiB"]);
    assert_eq!(advised(last_line(&text)), "cuda+pool:max=2GiB", "{text}");
}

#[test]
fn issue_9_where_nothing_serves_the_log_a_larger_device_is_advised_which_does() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 4000));
    let text = run(&log, "sim:4MiB", &["-s", "cuda", "-s", "cuda+pool"]);
    let line = last_line(&text);
    let device = advised(line).strip_prefix("--device ").unwrap_or_else(|| panic!("{line}"));
    let text = run(&log, device, &["-s", "cuda", "-s", "cuda+pool"]);
    assert!(last_line(&text).contains("build the program's resource"), "{text}");
}

#[test]
fn a_limit_of_the_stacks_own_is_told_from_a_small_device() {
    let text =
        run(&example_log(), "sim:h200", &["-s", "cuda+pool:max=300MiB", "-s", "cuda+limiting:limit=300MiB"]);
    let line = last_line(&text);
    assert!(line.starts_with("what to do: raise the maximum of the stack, or omit it: sim:h200"), "{line}");
}

#[test]
fn models_are_never_advised() {
    let models = ["-s", "torch", "-s", "rmm_pool:initial=1GiB,max=20GiB"];
    let text = run(&example_log(), "sim:24GiB", &models);
    assert!(!text.contains("what to do"), "{text}");
    let text = run(&example_log(), "sim:24GiB", &[&models[..], &["-s", "cuda+pool"]].concat());
    assert_eq!(advised(last_line(&text)), "cuda+pool", "{text}");
}

#[test]
fn memory_of_the_host_is_named_where_managed_memory_alone_served_the_log() {
    let text = run(&example_log(), "sim:500MiB", &[]);
    let line = last_line(&text);
    assert!(line.starts_with("what to do: look for a larger device") && line.contains("`managed`"), "{line}");
}

#[test]
fn issue_9_a_short_log_is_told_so_and_a_request_of_no_device_too() {
    let folder = Folder::new();
    let log = folder.log("1,0,allocate,0x100,512,0\n1,0,free,0x100,512,0\n");
    let line = run(&log, "sim:h200", &[]);
    assert!(last_line(&line).contains("record a longer log: this one has 2 operations"), "{line}");
    let log = folder.log("1,0,allocate,0x100,9223372036854775808,0\n1,0,free,0x100,9223372036854775808,0\n");
    let line = run(&log, "sim:h200", &[]);
    assert!(last_line(&line).contains("more than any device has"), "{line}");
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn issue_9_the_last_line_is_true_on_a_gpu_too() {
    let log = example_log();
    assert_eq!(check(&log, "cuda:0"), check(&log, "sim:h200"));
}
