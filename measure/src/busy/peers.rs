//! Tests that the programs in `benches/peers` run the same kernels after the same allocations.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use millpond_engine::program::{Limits, Program};

use super::{Host, Kernels, Plan, device};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/peers"))
}

fn log() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/logs/rmm_cupy_4streams.csv.gz"))
}

/// Returns a line for each plan, as `busy_plans.cpp` writes it.
fn digests() -> String {
    let program = Program::open(&log(), Limits::default()).unwrap();
    let mut lines = String::new();
    for seed in [42, 7] {
        for first in [None, Some(1000)] {
            for (range, kernels) in [("5..25", Kernels::SHORT), ("10..100", Kernels::LONG)] {
                let plan = Plan::new(&program, first, kernels, seed).unwrap();
                let (operations, live) = (plan.steps().len(), plan.peak_live_bytes());
                let digest = plan.digest();
                writeln!(
                    lines,
                    "seed={seed} operations={operations} kernels={range} live={live} {digest:016x}"
                )
                .unwrap();
            }
        }
    }
    lines
}

#[test]
fn plans_are_those_of_the_peers() {
    let expected = std::fs::read_to_string(folder().join("busy_plans.txt")).unwrap();
    assert_eq!(digests(), expected, "busy_plans.txt is what busy_plans.cpp prints");
}

#[test]
fn plans_in_cpp_are_the_same() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let is_there = Command::new(&compiler).arg("--version").output().is_ok_and(|out| out.status.success());
    if !is_there {
        return eprintln!("{compiler} is not installed: the plans of the C++ programs are not checked");
    }
    let temporary = tempfile::tempdir().unwrap();
    let (program, unpacked) = (temporary.path().join("plans"), temporary.path().join("log.csv"));
    unpack(&unpacked);
    let source = folder().join("busy_plans.cpp");
    output(Command::new(compiler).args(["-std=c++20", "-O1"]).arg(source).arg("-o").arg(&program));
    assert_eq!(output(Command::new(program).arg(unpacked)), digests());
}

fn unpack(to: &Path) {
    let mut text = Vec::new();
    let packed = std::fs::File::open(log()).unwrap();
    flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut text).unwrap();
    std::fs::write(to, text).unwrap();
}

/// Returns the standard output of a command.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_kernel_and_the_host_are_those_of_the_peers() {
    let header = std::fs::read_to_string(folder().join("busy.hpp")).unwrap();
    assert!(header.contains(&format!("R\"(\n{})\"", device::SPIN)), "busy.hpp has another kernel");
    let level = format!("level_kernels = {};", Host::LEVEL_KERNELS);
    assert!(header.contains(&level), "busy.hpp lets another number of kernels be in flight");
    for host in Host::ALL {
        assert!(header.contains(&format!("if (name == \"{host}\") return Host::{host};")), "{host}");
    }
}
