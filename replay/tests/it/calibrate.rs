//! Tests `millpond-replay calibrate`: its refusals, its outputs, and its exit status.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use millpond_driver::DeviceSpec;
use millpond_driver::sim::Profile;

use crate::support::{Folder, Run, program, rows};

/// Calibrates the simulated H200, whose times are the same in every run.
fn calibrate(arguments: &[&str]) -> Run {
    let mut command = program();
    command.args(["calibrate", "--device", "sim:h200", "--runs", "1"]).args(arguments);
    command.stdin(Stdio::null()).output().unwrap().into()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The profile of the simulated H200.
fn own_profile(folder: &Folder) -> PathBuf {
    folder.write("own.toml", Profile::h200().to_toml(|_, _| None))
}

/// The same profile, but calls cost ten thousand times as much.
fn wrong_profile(folder: &Folder) -> PathBuf {
    let own = Profile::h200().to_toml(|_, _| None);
    let (map, wrong_map) = ("mem_map = ", "mem_map = 5000000");
    assert!(own.lines().any(|line| line.starts_with(map)), "{own}");
    let wrong = own.lines().map(|line| if line.starts_with(map) { wrong_map } else { line });
    folder.write("wrong.toml", wrong.collect::<Vec<_>>().join("\n"))
}

fn log(folder: &Folder) -> PathBuf {
    folder.log(&rows(2, 4000))
}

const FARTHEST: &str = "largest difference from sim:h200: driver time";

#[test]
fn the_exit_status_says_whether_the_profile_is_right() {
    let folder = Folder::new();
    let (log, own, wrong) = (log(&folder), own_profile(&folder), wrong_profile(&folder));
    let run = calibrate(&["--profile", text(&own), "--check", text(&log)]);
    assert_eq!(run.status, 0, "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains(FARTHEST) && run.stdout.contains("limit 15 %"), "{}", run.stdout);
    let run = calibrate(&["--profile", text(&wrong), "--check", text(&log)]);
    assert_eq!(run.status, 1, "{}\n{}", run.stdout, run.stderr);
}

#[test]
fn a_stack_that_fails_fails_the_check_and_not_the_other_stacks() {
    let folder = Folder::new();
    let (log, own) = (log(&folder), own_profile(&folder));
    let stacks = ["--stack", "cuda+limiting:limit=1MiB", "--stack", "cuda+pool"];
    let run = calibrate(&[&["--profile", text(&own), "--check", text(&log)], &stacks[..]].concat());
    run.fails_with(1, &["cuda+limiting:limit=1MiB: ", "rows failed"]);
    assert!(run.stdout.contains("cuda+pool: driver time"), "{}", run.stdout);
}

#[test]
fn a_log_that_cannot_be_read_does_not_end_the_check_of_the_others() {
    let folder = Folder::new();
    let (log, own, missing) = (log(&folder), own_profile(&folder), folder.path("missing.csv"));
    let run = calibrate(&["--profile", text(&own), "--check", text(&missing), text(&log)]);
    run.fails_with(2, &["missing.csv"]);
    assert!(run.stdout.contains("cuda+pool: driver time") && run.stdout.contains(FARTHEST), "{}", run.stdout);
}

/// Measuring takes seconds on a GPU, and writes a file.
#[test]
fn stacks_and_logs_are_looked_at_before_the_device_is_measured() {
    let folder = Folder::new();
    let (log, out) = (log(&folder), folder.path("out.toml"));
    let (bad, missing) = (folder.write("bad.csv", "no log\n"), folder.path("missing.csv"));
    for (arguments, reason) in [
        (vec!["--check", text(&log), "--stack", "cuda+pond"], "there is no layer `pond`"),
        (vec!["--check", text(&missing)], "missing.csv"),
        (vec!["--check", text(&bad), text(&missing)], "bad.csv"),
    ] {
        let run = calibrate(&[&["--out", text(&out)], &arguments[..]].concat());
        run.fails_with(2, &[reason]);
        assert!(!out.exists(), "{arguments:?}");
    }
}

#[test]
fn a_log_is_never_overwritten() {
    let folder = Folder::new();
    let log = log(&folder);
    let before = fs::read(&log).unwrap();
    let mut names = vec![log.clone(), folder.path(".").join("log.csv")];
    if cfg!(unix) {
        let link = folder.path("hard.csv");
        fs::hard_link(&log, &link).unwrap();
        names.push(link);
    }
    for name in &names {
        let run = calibrate(&["--out", text(name), "--check", text(&log)]);
        run.fails_with(2, &["overwriting a log that this run reads"]);
        let stack = format!("cuda+logging:file={}", text(name));
        let out = folder.path("out.toml");
        let run = calibrate(&["--out", text(&out), "--check", text(&log), "--stack", &stack]);
        run.fails_with(2, &["overwriting a log that this run reads"]);
        assert_eq!(fs::read(&log).unwrap(), before);
    }
    let out = folder.path("out");
    let stack = format!("cuda+logging:file={}", text(&out));
    let run = calibrate(&["--out", text(&out), "--check", text(&log), "--stack", &stack]);
    run.fails_with(2, &["both be written to"]);
    assert!(!out.exists());
}

#[test]
fn a_profile_is_never_overwritten() {
    let folder = Folder::new();
    let (log, own) = (log(&folder), own_profile(&folder));
    let before = fs::read(&own).unwrap();
    let (device, out) = (format!("sim:{}", text(&own)), folder.path("out.toml"));
    let stack = format!("cuda+logging:file={}", text(&own));
    let logs_there = ["--check", text(&log), "--stack", &stack];
    for (arguments, reason) in [
        (&["--out", text(&own), "--device", &device][..], "overwriting a profile that this run reads"),
        (
            &[&["--out", text(&out), "--device", &device], &logs_there[..]].concat(),
            "overwriting a profile that this run reads",
        ),
        (
            &[&["--profile", text(&own)], &logs_there[..]].concat(),
            "overwriting a profile that this run reads",
        ),
    ] {
        let run: Run = program().arg("calibrate").args(arguments).output().unwrap().into();
        run.fails_with(2, &[reason]);
        assert_eq!(fs::read(&own).unwrap(), before);
    }
}

/// If the file cannot be made, nothing is measured: a device of this size could not be measured.
#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_device_is_measured() {
    let folder = Folder::new();
    let out = folder.path("no such folder").join("out.toml");
    let arguments = ["calibrate", "--device", "sim:512MiB", "--out", text(&out)];
    let run: Run = program().args(arguments).output().unwrap().into();
    run.fails_with(2, &["the profile cannot be written to"]);
}

/// Measuring a simulated device unasked would only repeat its own profile.
#[test]
fn without_a_gpu_nothing_is_measured_unless_a_simulated_device_is_named() {
    if !DeviceSpec::default_device().is_sim() {
        return; // here a GPU is measured
    }
    let folder = Folder::new();
    let (out, own) = (folder.path("out.toml"), own_profile(&folder));
    let log = log(&folder);
    for arguments in [&["--out", text(&out)][..], &["--profile", text(&own), "--check", text(&log)]] {
        let run: Run = program().arg("calibrate").args(arguments).output().unwrap().into();
        run.fails_with(2, &["cuda:0 cannot be measured", "--device sim:h200"]);
    }
    assert!(!out.exists());
}

#[test]
fn a_profile_on_the_standard_output_is_all_that_is_there() {
    let folder = Folder::new();
    let run = calibrate(&["--out", "-", "--check", text(&log(&folder))]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    assert_eq!(Profile::from_toml(&run.stdout, "stdout").unwrap().name(), "simulated H200");
    assert!(run.stderr.contains(FARTHEST), "{}", run.stderr);
}

#[test]
fn a_log_may_come_from_the_standard_input() {
    let folder = Folder::new();
    let (log, own) = (fs::File::open(log(&folder)).unwrap(), own_profile(&folder));
    let mut command = program();
    command.args(["calibrate", "--device", "sim:h200", "--profile", text(&own), "--check", "-"]);
    let run = Run::from(command.stdin(log).output().unwrap());
    assert_eq!(run.status, 0, "{}", run.stderr);
    assert!(run.stdout.contains("standard input, cuda+pool: driver time"), "{}", run.stdout);
}
