//! A stack's `logging` never overwrites a log that is replayed, or an output of this run.

use std::fs;
use std::path::Path;

use millpond_driver::sim::Profile;

use crate::support::{Folder, Run, program, rows};

/// Checks that the run fails before anything runs, and leaves the log unchanged.
#[track_caller]
fn is_refused(log: &Path, stacks: &[String], variable: Option<&Path>, reason: &str) {
    let before = fs::read(log).unwrap();
    let mut command = program();
    command.arg(log).args(["-d", "sim"]).args(stacks.iter().flat_map(|stack| ["-s", stack]));
    command.env_remove("MILLPOND_LOG_FILE").env_remove("RMM_LOG_FILE");
    if let Some(file) = variable {
        command.env("RMM_LOG_FILE", file);
    }
    let run: Run = command.output().unwrap().into();
    run.fails_with(2, &[reason]);
    assert_eq!(run.stdout, "");
    assert_eq!(fs::read(log).unwrap(), before, "the log is unchanged");
}

fn logging(file: &Path) -> String {
    format!("cuda+logging:file={}", file.display())
}

const INPUT: &str = "overwriting a log that this run reads";

#[test]
fn a_stack_that_logs_to_the_log() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let detour = folder.path(".").join("log.csv");
    for name in [&log, &detour] {
        is_refused(&log, &["cuda".to_owned(), logging(name)], None, INPUT);
    }
}

#[test]
#[cfg(unix)]
fn a_link_to_the_log() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let (symbolic, hard) = (folder.path("symbolic.csv"), folder.path("hard.csv"));
    std::os::unix::fs::symlink(&log, &symbolic).unwrap();
    fs::hard_link(&log, &hard).unwrap();
    is_refused(&log, &[logging(&symbolic)], None, INPUT);
    is_refused(&log, &[logging(&hard)], None, INPUT);
}

#[test]
#[cfg(target_os = "linux")]
fn the_log_on_the_standard_input() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let before = fs::read(&log).unwrap();
    let mut command = program();
    command.args(["-", "-d", "sim", "-s", &logging(&log)]).stdin(fs::File::open(&log).unwrap());
    Run::from(command.output().unwrap()).fails_with(2, &[INPUT]);
    assert_eq!(fs::read(&log).unwrap(), before);
}

#[test]
fn the_environment_names_the_log() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    is_refused(&log, &["cuda+logging".to_owned()], Some(&log), INPUT);
}

/// Names with braces, and folders that the stack makes, also lead to the log.
#[test]
fn a_path_that_becomes_the_log() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let name = log.file_name().unwrap().to_str().unwrap().to_owned();
    let numbered = folder.path("log.0.csv");
    fs::copy(&log, &numbered).unwrap();
    let braces = folder.path(&name.replace('.', "{x2e}"));
    let behind_missing = folder.path(&format!("missing/../also/../{name}"));
    is_refused(&log, &[logging(&braces)], None, INPUT);
    is_refused(&log, &[logging(&behind_missing)], None, INPUT);
    is_refused(&log, &["cuda+logging".to_owned()], Some(&braces), INPUT);
    is_refused(&numbered, &[logging(&folder.path("log.{rank}.csv"))], None, INPUT);
    // The ordinal of a simulated device is not known before the stack is built.
    is_refused(&numbered, &[logging(&folder.path("log.{device}.csv"))], None, "leave {device} out");
    let both = [folder.path("a/../new.csv"), folder.path("new{x2e}csv")];
    is_refused(&log, &both.map(|file| logging(&file)), None, "also writes to this file");
}

/// A layer can write other files than logs, and a run reads other files than logs.
#[test]
fn other_files_of_layers() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let arena = |file: &Path| format!("cuda+arena:size=2MiB,dump_log_on_failure={}", file.display());
    is_refused(&log, &[arena(&log)], None, INPUT);
    is_refused(&log, &[format!("cuda+fallback:to=({})", arena(&log))], None, INPUT);
    let plan = folder.path("own.plan");
    fs::write(&plan, "a plan").unwrap();
    let stack = format!("cuda+plan:file={}+logging:file={}", plan.display(), plan.display());
    is_refused(&log, &[stack], None, "overwriting a plan that this run reads");
    assert_eq!(fs::read_to_string(&plan).unwrap(), "a plan");
    let out = folder.path("out.csv");
    is_refused(&log, &[arena(&out), logging(&out)], None, "also writes to this file");
}

#[test]
fn two_stacks_that_log_to_one_file() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let out = folder.path("out.csv");
    is_refused(&log, &[logging(&out), logging(&out)], None, "also writes to this file");
    let bare = "cuda+logging".to_owned();
    is_refused(&log, &[bare.clone(), bare], Some(&out), "also writes to this file");
    assert!(!out.exists());
}

#[test]
fn several_logs_through_a_stack_that_logs() {
    let folder = Folder::new();
    let (log, out) = (folder.log(&rows(1, 100)), folder.path("out.csv"));
    let command = |out: &Path| program().args([&log, &log]).args(["-d", "sim", "-s", &logging(out)]).output();
    Run::from(command(&out).unwrap()).fails_with(2, &["replay one log at a time"]);
    assert!(!out.exists());
}

/// Each mode reads the profile of its simulated device before its stacks are built.
#[test]
fn a_stack_that_logs_to_the_profile_of_the_device() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let own = folder.write("own.toml", Profile::h200().to_toml(|_, _| None));
    let before = fs::read(&own).unwrap();
    let device = format!("sim:{}", own.display());
    let log = log.to_str().unwrap();
    for mode in [&[log][..], &["bench", "--quick"], &["busy", log], &["calibrate", "-o", "-", "--check", log]]
    {
        let mut command = program();
        command.args(mode).args(["-d", &device, "-s", &logging(&own)]);
        let run: Run = command.output().unwrap().into();
        run.fails_with(2, &["overwriting a profile that this run reads"]);
        assert_eq!(fs::read(&own).unwrap(), before, "{mode:?}");
    }
}

#[test]
fn files_of_their_own_and_devices_are_fine() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let (first, second) = (folder.path("first.csv"), folder.write("second.csv", "of an earlier run"));
    let run = Run::of(&log, &["-n", "1", "-s", &logging(&first), "-s", &logging(&second)]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    for file in [first, second] {
        assert_eq!(fs::read_to_string(file).unwrap().lines().count(), 101);
    }
    if cfg!(unix) {
        let null = logging(Path::new("/dev/null"));
        let run = Run::of(&log, &["-n", "1", "-s", &null, "-s", &null]);
        assert_eq!(run.status, 0, "{}", run.stderr);
    }
}
