//! Tests the second line of a replay: one piece of advice, confirmed by the figures and on a GPU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use millpond_replay::{cli, compare};
use serde_json::Value;

use crate::support::{Folder, HEADER, rows, snapshot};

/// Runs the command line in this process.
fn run(log: &Path, device: &str, flags: &[&str]) -> String {
    let words = ["millpond-replay", "--device", device].into_iter().chain(flags.iter().copied());
    let words = words.map(OsString::from).chain([log.as_os_str().to_owned()]);
    let mut out = Vec::new();
    cli::run(words, &compare::layers(), &mut out).expect("the arguments are right");
    String::from_utf8(out).unwrap()
}

/// Returns the line below the headline.
fn advice(text: &str) -> &str {
    text.lines().nth(1).unwrap_or_default()
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
    let line = advice(&text);
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
fn issue_9_the_advice_names_a_stack_that_the_figures_bear_out() {
    assert_eq!(check(&example_log(), "sim:h200"), "cuda+pool");
}

#[test]
fn issue_9_a_stack_of_the_users_own_is_advised_as_it_was_written() {
    let text = run(&example_log(), "sim:h200", &["-s", "cuda", "-s", "cuda + pool:max=2GiB"]);
    assert_eq!(advised(advice(&text)), "cuda+pool:max=2GiB", "{text}");
}

#[test]
fn issue_9_where_nothing_serves_the_log_a_larger_device_is_advised_which_does() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 4000));
    let text = run(&log, "sim:4MiB", &["-s", "cuda", "-s", "cuda+pool"]);
    let line = advice(&text);
    let device = advised(line).strip_prefix("--device ").unwrap_or_else(|| panic!("{line}"));
    let text = run(&log, device, &["-s", "cuda", "-s", "cuda+pool"]);
    assert!(advice(&text).contains("build the program's resource"), "{text}");
}

#[test]
fn a_limit_of_the_stacks_own_is_told_from_a_small_device() {
    let text =
        run(&example_log(), "sim:h200", &["-s", "cuda+pool:max=300MiB", "-s", "cuda+limiting:limit=300MiB"]);
    let line = advice(&text);
    assert!(line.starts_with("what to do: raise the maximum of the stack, or omit it: sim:h200"), "{line}");
}

#[test]
fn models_are_never_advised() {
    let models = ["-s", "torch", "-s", "rmm_pool:initial=1GiB,max=20GiB"];
    let text = run(&example_log(), "sim:24GiB", &models);
    assert!(!text.contains("what to do"), "{text}");
    let text = run(&example_log(), "sim:24GiB", &[&models[..], &["-s", "cuda+pool"]].concat());
    assert_eq!(advised(advice(&text)), "cuda+pool", "{text}");
}

#[test]
fn memory_of_the_host_is_named_where_managed_memory_alone_served_the_log() {
    let text = run(&example_log(), "sim:500MiB", &[]);
    let line = advice(&text);
    assert!(line.starts_with("what to do: look for a larger device") && line.contains("`managed`"), "{line}");
}

#[test]
fn issue_9_a_short_log_is_told_so_and_a_request_of_no_device_too() {
    let folder = Folder::new();
    let log = folder.log("1,0,allocate,0x100,512,0\n1,0,free,0x100,512,0\n");
    let line = run(&log, "sim:h200", &[]);
    assert!(advice(&line).contains("record a longer log: this one has 2 operations"), "{line}");
    let log = folder.log("1,0,allocate,0x100,9223372036854775808,0\n1,0,free,0x100,9223372036854775808,0\n");
    let line = run(&log, "sim:h200", &[]);
    assert!(advice(&line).contains("more than any device has"), "{line}");
}

const GIB: u64 = 1 << 30;

/// Logs that fail, begin late, break off or contradict themselves, and the example.
fn logs(folder: &Folder) -> Vec<PathBuf> {
    let log = |name: &str, rows: String| folder.write(name, format!("{HEADER}{rows}"));
    let fails = |bytes: u64| format!("{}1,0,allocate failure,(nil),{bytes},0\n", rows(2, 4000));
    let grown: String = (1..=6).map(|block| format!("1,0,allocate,{block:#x}000000,104857600,0\n")).collect();
    let freed: String = (1..=6).map(|block| format!("1,0,free,{block:#x}000000,104857600,0\n")).collect();
    let whole = rows(4, 6000);
    let half: String = whole.lines().skip(3000).map(|line| format!("{line}\n")).collect();
    vec![
        example_log(),
        log("fails.csv", fails(3 * GIB)),
        log("fails_small.csv", fails(1 << 20)),
        log("half.csv", half),
        log("late.csv", format!("1,0,free,0x7f8000000,{},5\n{whole}", 8 * GIB)),
        log("twice.csv", format!("1,0,allocate,0x70,64,0\n1,0,allocate,0x70,128,0\n{whole}")),
        log("torn.csv", format!("{whole}1,0,allo")),
        log("grown.csv", format!("{grown}{freed}1,0,allocate,0x9000000,943718400,0\n")),
    ]
}

/// Follows the advice of a line, and checks the line's claim.
fn follow(log: &Path, device: &str, line: &str) {
    let replayed = |device: &str, stack: &str| -> Value {
        serde_json::from_str(&run(log, device, &["-s", stack, "--format", "json"])).unwrap()
    };
    let serves = |report: &Value| {
        let stack = &report["stacks"][0];
        let again = &stack["asked_again"];
        stack["failures"] == 0 && (again.is_null() || again["served"] == again["requests"])
    };
    let what = line.strip_prefix("what to do: ").unwrap_or_else(|| panic!("{line}"));
    let name = log.display();
    if what.starts_with("build the program's resource") || what.starts_with("stay with") {
        let report = replayed(device, advised(line));
        assert!(serves(&report), "{name} on {device}: {line}");
        assert_ne!(advised(line), "managed", "{name} on {device}: {line}");
        let peaks = ["peak_reserved_bytes_first", "peak_reserved_bytes_asked_again"];
        let taken = peaks.iter().filter_map(|peak| report["stacks"][0][peak].as_u64()).max().unwrap();
        let live = report["stacks"][0]["peak_needed_bytes"].as_u64().unwrap();
        let taken = match what.starts_with("stay with") {
            true => format!("took {}:", millpond_core::format_bytes(taken)),
            false => format!("took {} for", millpond_engine::text::bytes_among(taken, &[taken, live])),
        };
        assert!(line.contains(&taken), "{name} on {device}: no `{taken}` in: {line}");
    } else if what.starts_with("replay the log with") {
        let larger = advised(line).strip_prefix("--device ").unwrap();
        let text = run(log, larger, &[]);
        let next = advice(&text);
        assert!(
            !next.contains("replay the log") && !next.contains("larger device"),
            "{name}: {line}\n{next}"
        );
    } else if what.starts_with("look for a larger device") {
        let needed = &replayed(device, "managed")["log"]["peak_needed_bytes"];
        let larger = format!("sim:{}", needed.as_u64().unwrap().max(64 << 20) * 2);
        assert!(serves(&replayed(&larger, "cuda+pool")), "{name} on {larger}: {line}");
    } else if what.starts_with("raise the maximum") {
        assert!(serves(&replayed(device, "cuda+pool")), "{name} on {device}: {line}");
    } else {
        assert!(what.starts_with("record a longer log"), "{name} on {device}: {line}");
    }
}

#[test]
fn advice_does_what_it_claims_when_it_is_followed() {
    let folder = Folder::new();
    for log in logs(&folder) {
        for device in ["sim:h200", "sim:4GiB", "sim:1GiB", "sim:256MiB"] {
            let text = run(&log, device, &[]);
            follow(&log, device, advice(&text));
        }
        let limited =
            run(&log, "sim:h200", &["-s", "cuda+limiting:limit=64MiB", "-s", "cuda+pool:max=64MiB"]);
        follow(&log, "sim:h200", advice(&limited));
    }
}

#[test]
fn a_program_that_failed_is_not_told_to_stay() {
    let folder = Folder::new();
    let rows = format!("{}1,0,allocate failure,(nil),{},0\n", rows(2, 4000), 3 * GIB);
    let log = folder.log(&rows);
    let text = run(&log, "sim:2GiB", &[]);
    let line = advice(&text);
    assert!(
        line.starts_with("what to do: look for a larger device") && !line.contains("stay with"),
        "{line}"
    );
    let text = run(&log, "sim:8GiB", &[]);
    let line = advice(&text);
    assert!(line.contains("and served 1 of 1 request that failed when the log was written"), "{line}");
    // Without managed memory, a device is named that has room for the failed request too.
    let text = run(&log, "sim:2GiB", &["-s", "cuda", "-s", "cuda+pool"]);
    let line = advice(&text);
    assert_eq!(advised(line), "--device sim:8GiB", "{line}");
    assert!(line.contains("with 1 failed allocation"), "{line}");
}

/// A request that failed makes memory count, not calls: the advice names the stack that `tune` finds.
#[test]
fn if_a_request_failed_the_advice_is_the_best_of_tune() {
    for name in ["fragmented", "out_of_memory"] {
        let file = snapshot(name);
        let text = run(&file, "sim:h200", &[]);
        let words = ["millpond-replay", "tune", "--format", "json"].map(OsString::from);
        let mut out = Vec::new();
        let words = words.into_iter().chain([file.into_os_string()]);
        cli::run(words, &compare::layers(), &mut out).unwrap();
        let tuned: Value = serde_json::from_slice(&out).unwrap();
        let needs = |stack: &str| {
            let tried = tuned["tried"].as_array().unwrap().iter().find(|tried| tried["stack"] == stack);
            tried.unwrap_or_else(|| panic!("{stack}"))["smallest"]["bytes"].as_u64().unwrap()
        };
        let advised = advised(advice(&text));
        assert!(needs(advised) <= needs("cuda+pool") && advised != "cuda", "{name}: {text}");
        assert!(advice(&text).contains("` finds the smallest device"), "{name}: {text}");
        assert!(text.contains(" use this one "), "{name}: {text}");
    }
}

#[test]
fn the_model_of_the_present_allocator_is_in_the_line_up() {
    for (file, model) in [
        (example_log(), "| rmm_pool "),
        (snapshot("retries"), "| torch "),
        (snapshot("garbage"), "| torch:garbage_collection_threshold=0.6,limit=100% "),
    ] {
        let text = run(&file, "sim:h200", &[]);
        let row = text.lines().find(|line| line.starts_with(model)).unwrap_or_else(|| panic!("{text}"));
        assert!(row.contains("a model, for comparison"), "{row}");
    }
    // A log that `import` wrote is not a log of RMM.
    let folder = Folder::new();
    let log = folder.path("written.csv");
    let words = ["millpond-replay", "import", "-o"].map(OsString::from);
    let words = words.into_iter().chain([log.clone(), snapshot("retries")].map(PathBuf::into_os_string));
    cli::run(words, &compare::layers(), std::io::sink()).unwrap();
    let text = run(&log, "sim:h200", &[]);
    assert!(!text.contains("| rmm_pool ") && !advice(&text).contains("RMM"), "{text}");
}

#[test]
fn a_peak_beyond_all_devices_is_told_from_such_a_request() {
    let folder = Folder::new();
    let row = |address: u64, bytes: u64| format!("1,0,allocate,{address:#x},{bytes},0\n");
    let log = folder.log(&(row(0x100, 10 << 40) + &row(0x200, 10 << 40)));
    let text = run(&log, "sim:h200", &[]);
    assert!(advice(&text).contains("it needs at least 20TiB at once, more than any"), "{text}");
    let log = folder.log(&(row(0x100, 17 << 40) + &row(0x200, 17 << 40)));
    let text = run(&log, "sim:h200", &[]);
    assert!(advice(&text).contains("it asks for 17TiB at once, more than any device has"), "{text}");
}

#[test]
fn the_line_has_the_form_of_the_users_framework() {
    let folder = Folder::new();
    let python = |line: &str, module: &str| {
        line.contains(&format!("`import millpond.{module}; millpond.{module}.use({:?})`", advised(line)))
    };
    let text = run(&example_log(), "sim:h200", &[]);
    assert!(python(advice(&text), "rmm") && advice(&text).contains("; in Rust: `"), "{text}");
    let text = run(&snapshot("retries"), "sim:h200", &["-s", "cuda", "-s", "cuda+pool"]);
    assert!(python(advice(&text), "torch") && !advice(&text).contains("Rust"), "{text}");
    let header = "Thread,Time,Action,Pointer,Size,Stream,Sequence\n";
    let rows = rows(2, 4000).lines().enumerate().map(|(at, row)| format!("{row},{at}\n")).collect::<String>();
    let own = folder.write("own.csv", format!("{header}{rows}"));
    let text = run(&own, "sim:h200", &[]);
    assert!(advice(&text).contains("(in Rust: `") && !advice(&text).contains("Python"), "{text}");
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn issue_9_the_advice_is_true_on_a_gpu_too() {
    let log = example_log();
    assert_eq!(check(&log, "cuda:0"), check(&log, "sim:h200"));
}
