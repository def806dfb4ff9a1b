//! Tests that the programs in `benches/peers` do the same work as this program, with the same plans.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use super::workload::{Case, Workload};
use super::{Effort, Plan};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/peers"))
}

/// Returns a line for each case, in the format of all three programs.
fn digests(threads: &[usize]) -> String {
    let mut lines = String::new();
    let cases = Workload::ALL.into_iter().flat_map(|workload| workload.cases(threads));
    for case in cases.filter(|case| case.workload != Workload::Pair) {
        let start = 0xcbf2_9ce4_8422_2325;
        let digest = case.plans(42, &Effort::QUICK).iter().fold(start, |hash, plan: &Plan| plan.digest(hash));
        let Case { workload, threads, streams, live, freed_percent, .. } = case;
        writeln!(
            lines,
            "{workload} threads={threads} streams={streams} live={live} freed={freed_percent} {digest:016x}"
        )
        .unwrap();
    }
    lines
}

/// Returns the standard output of a command.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn plans_are_those_of_the_peers() {
    let expected = std::fs::read_to_string(folder().join("plans.txt")).unwrap();
    assert_eq!(digests(&[1, 3]), expected, "plans.txt is what all programs of benches/peers print");
}

#[test]
fn plans_in_python_are_the_same() {
    if !is_there("python3") {
        return eprintln!("python3 is not installed: its plans are not checked");
    }
    let script = folder().join("cupy_bench.py");
    let printed = output(Command::new("python3").arg(script).args(["--plans", "--most-live", "10000"]));
    let expected = digests(&[1]);
    let of_python = |line: &&str| {
        let few = !line.contains("live=100000 ") && !line.contains("live=1000000 ");
        few && !line.starts_with("cross_thread_free") // it needs two threads
    };
    let expected: Vec<&str> = expected.lines().filter(of_python).collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn plans_in_cpp_are_the_same() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if !is_there(&compiler) {
        return eprintln!("{compiler} is not installed: the plans of the C++ programs are not checked");
    }
    let folder_for_it = tempfile::tempdir().unwrap();
    let program = folder_for_it.path().join("plans");
    let source = folder().join("plans.cpp");
    output(Command::new(compiler).args(["-std=c++20", "-O1"]).arg(source).arg("-o").arg(&program));
    assert_eq!(output(Command::new(program).args(["--threads", "1,3"])), digests(&[1, 3]));
}
