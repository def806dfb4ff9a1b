//! Programs in Python.

use std::path::PathBuf;
use std::process::Command;

use crate::bench::{Bench, text};

const PROGRAM: &str = r#"
import ctypes
import os
import threading

import settings  # from `sitecustomize`, or from this folder

cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0


def allocate(mebibytes):
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(mebibytes << 20))


def load_weights():
    assert allocate(300) == 0


def grow():
    while allocate(100) == 0:
        pass


worker = threading.Thread(target=load_weights)
worker.start()
worker.join()
grow()
print("over", settings.LOADED)
os._exit(3)
"#;

/// Finds a Python.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("MILLPOND_PYTHON").map(PathBuf::from);
    let known = named.into_iter().chain(["python3", "/usr/bin/python3"].map(PathBuf::from));
    known.into_iter().find(|python| {
        let asked = Command::new(python).args(["-c", "import ctypes, faulthandler"]).output();
        asked.is_ok_and(|answer| answer.status.success())
    })
}

/// An out-of-memory error is explained with the lines of the program, although `ctypes` releases the global
/// lock during the call.
#[test]
fn lines_of_python_are_named() {
    let Some(python) = python() else {
        assert!(std::env::var_os("MILLPOND_REQUIRE_PYTHON").is_none(), "there is no Python");
        return;
    };
    let bench = Bench::new();
    std::fs::write(bench.path("train.py"), PROGRAM).unwrap();
    std::fs::create_dir(bench.path("own")).unwrap();
    std::fs::write(bench.path("own/settings.py"), "LOADED = 0\n").unwrap();
    std::fs::write(bench.path("own/sitecustomize.py"), "import settings\nsettings.LOADED = 1\n").unwrap();
    let options = ["--record", "log.csv", "--budget", "600MiB", "--explain"];
    let mut command = bench.run(&options, std::path::Path::new("train.py"));
    command.env("MILLPOND_RUN_PYTHON", python).env("PYTHONPATH", bench.path("own"));
    let done = command.output().unwrap();
    let (printed, errors) = (text(&done), String::from_utf8_lossy(&done.stderr).into_owned());
    assert_eq!(done.status.code(), Some(3), "{printed}{errors}");
    assert!(printed.starts_with("over 1\n"), "the program's own sitecustomize ran: {printed}{errors}");
    let line = |text: &str| PROGRAM.lines().position(|line| line.contains(text)).unwrap() + 1;
    let [call, grow, load] = ["return cuda.", "while allocate", "assert allocate"].map(line);
    let failed =
        format!("verdict: out of memory: a request for 100MiB by train.py:{call} in allocate failed");
    let weights =
        format!("300MiB in 1 block: train.py:{call} in allocate\n      from train.py:{load} in load_weights");
    let grown =
        format!("300MiB in 3 blocks: train.py:{call} in allocate\n      from train.py:{grow} in grow");
    assert!([&failed, &weights, &grown].iter().all(|part| printed.contains(*part)), "{printed}");
    assert!(bench.path("log.csv").exists());
}

/// Python removes its handlers when it ends, and libraries may allocate after that.
#[test]
fn allocations_without_the_handler_of_python_are_recorded() {
    let Some(python) = python() else { return };
    let bench = Bench::new();
    let program = PROGRAM.replace("import settings  # from `sitecustomize`, or from this folder", "");
    let ended = "import faulthandler, signal\nfaulthandler.unregister(signal.SIGRTMAX - 3)\nallocate(6)\n";
    let program = program.split("worker =").next().unwrap().to_owned() + "load_weights()\n" + ended;
    std::fs::write(bench.path("train.py"), program).unwrap();
    let done = bench.run(&["--record", "log.csv"], &python).arg("train.py").output().unwrap();
    assert!(done.status.success(), "{:?}: {}", done.status, String::from_utf8_lossy(&done.stderr));
    let sizes: Vec<u64> = bench.rows("log.csv").iter().map(|row| row.bytes >> 20).collect();
    assert_eq!(sizes, [300, 6]);
}
