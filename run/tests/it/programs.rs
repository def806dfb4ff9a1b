//! Programs in C, which reach the driver in three ways.

use std::path::PathBuf;
use std::process::Command;

use crate::bench::{Bench, Row, text};

const MIB: u64 = 1 << 20;

/// The programs that reach the driver in each way, and the first argument.
fn ways(bench: &Bench) -> [(PathBuf, &'static str); 3] {
    let program = bench.compile(false);
    [(program.clone(), "dlsym"), (program, "proc"), (bench.compile(true), "linked")]
}

/// The changes of live blocks by size: 1 for an allocation and -1 for a free.
fn changes(rows: &[Row]) -> Vec<(i32, u64)> {
    let change = |row: &Row| match row.action.as_str() {
        "allocate" => (1, row.bytes),
        "free" => (-1, row.bytes),
        _ => (0, row.bytes),
    };
    rows.iter().map(change).collect()
}

/// The rows of the program's calls, without rows of the driver's own memory.
fn of_program(rows: &[Row]) -> Vec<Row> {
    rows.iter().filter(|row| row.tag != "driver").cloned().collect()
}

#[test]
fn each_way_to_the_driver_is_recorded() {
    let bench = Bench::new();
    for (program, way) in ways(&bench) {
        let done = bench.run(&["--record", "log.csv"], &program).args([way, "blocks"]).output().unwrap();
        assert_eq!((text(&done).as_str(), done.status.code()), ("blocks is over\n", Some(0)), "{way}");
        let of_blocks = [(1, 1), (-1, 1), (1, 1), (-1, 1), (1, 1), (-1, 1), (1, 3), (-1, 3), (1, 4), (-1, 4)];
        let expected: Vec<(i32, u64)> = [(1, 10)].into_iter().chain(of_blocks).chain([(-1, 10)]).collect();
        let found = changes(&of_program(&bench.rows("log.csv")));
        assert_eq!(
            found,
            expected.iter().map(|&(sign, size)| (sign, size * MIB)).collect::<Vec<_>>(),
            "{way}"
        );
    }
}

/// Wrong arguments, ends without exit handlers, children of fork, resets and threads: the program prints the
/// same and ends in the same way.
#[test]
fn programs_behave_as_without_it() {
    let bench = Bench::new();
    for (program, way) in ways(&bench) {
        let all = ["blocks", "wrong", "fill", "threads", "forked", "reset", "killed", "child", "nothing"];
        for what in all.into_iter().chain(["closes", "first", "loops", "pairs"]) {
            let plain = bench.command(&program).args([way, what]).output().unwrap();
            let under = bench.run(&["--record", "log.csv"], &program).args([way, what]).output().unwrap();
            // A signal is reported as a shell reports it.
            let code = plain.status.code().unwrap_or(128 + 9);
            assert_eq!((text(&under), under.status.code()), (text(&plain), Some(code)), "{way} {what}");
            if what == "threads" {
                assert_eq!(of_program(&bench.rows("log.csv")).len(), 8 * 500 * 2, "{way}");
            }
        }
    }
}

#[test]
fn a_budget_is_the_size_of_the_device_for_the_program() {
    let bench = Bench::new();
    for (program, way) in ways(&bench) {
        let options = ["--record", "log.csv", "--budget", "350MiB"];
        let done = bench.run(&options, &program).args([way, "fill"]).output().unwrap();
        let expected = "3 blocks\n2 2\n50 of 350 MiB free, the device has 350 MiB\nfill is over\n";
        assert_eq!(text(&done), expected, "{way}: {}", String::from_utf8_lossy(&done.stderr));
        let failed = bench.rows("log.csv").iter().filter(|row| row.action == "allocate failure").count();
        assert_eq!(failed, 3, "{way}");
        let explained = bench.replay(&["explain", "log.csv"]);
        let cause = "the allocator may take at most 350MiB from the device";
        assert!(explained.contains("program.c:") && explained.contains(cause), "{explained}");
    }
}

/// A stack serves plain and stream-ordered requests. The driver sees only the stack's calls, which the budget
/// limits, and the recording shows the program's blocks.
#[test]
fn a_stack_serves_the_program() {
    let bench = Bench::new();
    for (program, way) in ways(&bench) {
        for what in ["blocks", "wrong", "threads", "forked", "reset", "killed"] {
            let plain = bench.command(&program).args([way, what]).output().unwrap();
            let options = ["--record", "log.csv", "--stack", "cuda+pool"];
            let under = bench.run(&options, &program).args([way, what]).output().unwrap();
            let code = plain.status.code().unwrap_or(128 + 9);
            assert_eq!((text(&under), under.status.code()), (text(&plain), Some(code)), "{way} {what}");
        }
        let options = ["--record", "log.csv", "--stack", "cuda+pool", "--budget", "350MiB"];
        let done = bench.run(&options, &program).args([way, "fill"]).output().unwrap();
        let expected = "3 blocks\n2 2\n50 of 350 MiB free, the device has 350 MiB\nfill is over\n";
        assert_eq!(text(&done), expected, "{way}: {}", String::from_utf8_lossy(&done.stderr));
        bench.run(&options, &program).args([way, "threads"]).output().unwrap();
        assert_eq!(of_program(&bench.rows("log.csv")).len(), 8 * 500 * 2, "{way}");
        // Each stack's own blocks count, and the blocks that it lends do not.
        for stack in ["cuda", "cuda+pool", "cuda+pool:pages=off"] {
            let options = ["--stack", stack, "--budget", "350MiB"];
            let done = bench.run(&options, &program).args([way, "loops"]).output().unwrap();
            assert_eq!(text(&done), "loops is over\n", "{way} {stack}");
        }
        let logged = "cuda+logging:file=driver.csv+pool";
        bench.run(&["--stack", logged], &program).args([way, "threads"]).output().unwrap();
        let driver = std::fs::read_to_string(bench.path("driver.csv")).unwrap();
        assert!((2..100).contains(&driver.lines().count()), "{driver}");
    }
}

/// A recording has each row of a program that is killed, and the blocks that a reset ends.
#[test]
fn no_row_is_lost() {
    let bench = Bench::new();
    let program = bench.compile(false);
    bench.run(&["--record", "log.csv"], &program).args(["dlsym", "killed"]).output().unwrap();
    assert_eq!(changes(&of_program(&bench.rows("log.csv"))), vec![(1, MIB); 100]);
    bench.run(&["--record", "log.csv"], &program).args(["dlsym", "reset"]).output().unwrap();
    assert_eq!(changes(&of_program(&bench.rows("log.csv"))), [(1, 7 * MIB), (-1, 7 * MIB)]);
}

#[test]
fn each_process_has_its_own_recording() {
    let bench = Bench::new();
    let program = bench.compile(false);
    bench.run(&["--record", "log.csv"], &program).args(["dlsym", "child"]).output().unwrap();
    assert_eq!(changes(&of_program(&bench.rows("log.csv"))), [(1, 2 * MIB)]);
    let files = std::fs::read_dir(bench.folder.path()).unwrap().map(|file| file.unwrap().file_name());
    let mut names = files.filter_map(|name| name.into_string().ok());
    let other = names.find(|name| name.starts_with("log.") && name != "log.csv").expect("another recording");
    assert_eq!(of_program(&bench.rows(&other)).len(), 12);
}

/// A program that replaces its program has a recording for each.
#[test]
fn each_program_of_a_process_has_its_own_recording() {
    let bench = Bench::new();
    let program = bench.compile(false);
    bench.run(&["--record", "log.csv"], &program).args(["dlsym", "first"]).output().unwrap();
    let files = std::fs::read_dir(bench.folder.path()).unwrap().map(|file| file.unwrap().file_name());
    let names = files.filter_map(|name| name.into_string().ok());
    let mut sizes: Vec<usize> = names
        .filter(|name| name.starts_with("log."))
        .map(|name| of_program(&bench.rows(&name)).len())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 12]);
}

/// Only an old recording makes way for a new one.
#[test]
fn other_files_are_not_removed() {
    let bench = Bench::new();
    let program = bench.compile(false);
    std::os::unix::fs::symlink("target", bench.path("link.csv")).unwrap();
    std::fs::write(bench.path("target"), "mine").unwrap();
    std::fs::create_dir(bench.path("folder.csv")).unwrap();
    for name in ["link.csv", "folder.csv"] {
        let output = bench.run(&["--record", name], &program).args(["dlsym", "blocks"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && error.contains("not a plain file"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(bench.path("link.csv")).unwrap(), "mine");
}

#[test]
fn the_launcher_says_why_a_program_cannot_run() {
    let bench = Bench::new();
    let program = bench.compile(false);
    let ended = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // A program that does not start costs no recording.
    let file = |name| std::fs::read_to_string(bench.path(name)).ok();
    std::fs::write(bench.path("log.csv"), "an earlier one").unwrap();
    for name in ["log.csv", "new.csv"] {
        let (code, error) = ended(&mut bench.run(&["--record", name], &bench.path("missing")));
        assert!(code == Some(127) && error.contains("missing: "), "{code:?} {error}");
    }
    assert_eq!((file("log.csv").as_deref(), file("new.csv")), (Some("an earlier one"), None));
    let hidden = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_string_lossy().starts_with(".millpond")
    };
    assert!(!std::fs::read_dir(bench.folder.path()).unwrap().any(hidden));
    let (code, error) = ended(&mut bench.run(&[], &bench.path("libcuda.so.1/x")));
    assert!(code == Some(126), "{code:?} {error}");
    let (code, error) = ended(bench.run(&[], &program).env("MILLPOND_RUN_LIBRARY", "none.so"));
    assert!(code == Some(125) && error.contains("cargo build"), "{code:?} {error}");
    let (code, error) = ended(bench.run(&["--record", "no/log.csv"], &program).args(["dlsym", "nothing"]));
    assert!(code == Some(125) && error.contains("no/log.csv"), "{code:?} {error}");
    let (code, error) = ended(bench.run(&["--explain"], &program).args(["dlsym", "nothing"]));
    assert!(code == Some(9) && error.contains("no call of the CUDA driver"), "{code:?} {error}");
}

/// A handle of a stack's block would name the memory around it.
#[test]
fn a_block_of_a_stack_is_not_shared() {
    let bench = Bench::new();
    let program = bench.compile(false);
    for (options, answer, is_told) in [
        (&["--record", "log.csv"][..], "0\n", false),
        (&["--stack", "cuda+pool"], "801\n", true),
        (&["--stack", "cuda+pool:pages=off"], "801\n", true),
    ] {
        let done = bench.run(options, &program).args(["dlsym", "shares"]).output().unwrap();
        assert_eq!(text(&done), format!("{answer}shares is over\n"), "{options:?}");
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(told.contains("cuIpcGetMemHandle"), is_told, "{told}");
    }
}

/// With a stack, `top` shows its layers; without one, the blocks that the program has from the driver.
#[test]
fn top_shows_a_program() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let bench = Bench::new();
    let program = bench.compile(false);
    for (options, layer, named) in
        [(&["--top"][..], "driver", Some("hold")), (&["--top", "--stack", "cuda+pool"], "pool", None)]
    {
        let mut command = bench.run(options, &program);
        command.env("MILLPOND_WATCH", bench.folder.path()).args(["dlsym", "holds"]);
        let mut launched = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(launched.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let process = line.trim().strip_prefix("holds ").expect("the number of the process");
        let folder = bench.folder.path().to_str().unwrap();
        let shown = bench.replay(&["top", process, "--once", "--folder", folder]);
        Command::new("kill").args(["-KILL", process]).status().unwrap();
        launched.wait().unwrap();
        assert!(shown.contains(layer) && shown.contains("7MiB"), "{shown}");
        assert!(named.is_none_or(|name| shown.contains(name)), "{shown}");
    }
}

#[test]
fn a_signal_reaches_the_program() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let bench = Bench::new();
    let program = bench.compile(false);
    let mut command = bench.run(&["--record", "log.csv"], &program);
    let mut launched = command.args(["dlsym", "waits"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launched.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "waits\n");
    let terminated = Command::new("kill").args(["-TERM", &launched.id().to_string()]).status().unwrap();
    assert!(terminated.success());
    assert_eq!(launched.wait().unwrap().code(), Some(128 + 15));
}
