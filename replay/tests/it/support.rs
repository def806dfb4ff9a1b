//! Shared helpers for tests of the binary: logs in a temporary folder, and runs of the program.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// A folder for the logs of one test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A log with this header and these rows.
    pub(crate) fn log(&self, rows: &str) -> PathBuf {
        self.write("log.csv", format!("{HEADER}{rows}"))
    }
}

/// One run of the program.
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Returns a memory snapshot from the tests of millpond-snapshot.
pub(crate) fn snapshot(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/tests/snapshots");
    folder.join(format!("{name}.pickle.gz"))
}

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_millpond-replay"))
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let run = Self {
            status: output.status.code().expect("ended without a signal"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
        run
    }
}

impl Run {
    /// Replays a log on a simulated device; `flags` may name another.
    pub(crate) fn of(log: &Path, flags: &[&str]) -> Self {
        let device: &[&str] = if flags.contains(&"--device") { &[] } else { &["--device", "sim:h200"] };
        program().arg(log).args(device).args(flags).output().unwrap().into()
    }

    /// Prints JSON, one object for each line.
    pub(crate) fn json(log: &Path, flags: &[&str]) -> Value {
        let run = Self::of(log, &[&["--format", "json"], flags].concat());
        assert!(run.status < 2, "{}", run.stderr);
        serde_json::from_str(&run.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn fails_with(&self, status: i32, texts: &[&str]) {
        assert_eq!(self.status, status, "{}\n{}", self.stdout, self.stderr);
        for text in texts {
            assert!(self.stderr.contains(text), "no `{text}` in: {}", self.stderr);
        }
    }
}

/// Makes rows of a log. Threads allocate on their own streams, and free their own and others' blocks. All
/// blocks are freed at the end.
pub(crate) fn rows(threads: u64, operations: usize) -> String {
    let mut rows = String::new();
    let mut live: Vec<(u64, u64)> = Vec::new();
    let (mut random, mut next_address) = (7_u64, 0x7f00_0000_0000_u64);
    let mut step = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for _ in 0..operations / 2 {
        let thread = step(threads);
        let bytes = 1 << step(21) | step(1 << 16);
        let row = format!("{next_address:#x},{bytes},{:#x}", 0x55e8_c000 + thread * 0x100);
        writeln!(rows, "{},05:01:18.{:06},allocate,{row}", 400 + thread, step(1_000_000)).unwrap();
        live.push((next_address, bytes));
        next_address += bytes.next_multiple_of(256);
        if live.len() > 200 {
            let (address, bytes) = live.swap_remove(step(live.len() as u64) as usize);
            free(&mut rows, step(threads), address, bytes);
        }
    }
    for (address, bytes) in live {
        free(&mut rows, step(threads), address, bytes);
    }
    rows
}

fn free(rows: &mut String, thread: u64, address: u64, bytes: u64) {
    let stream = 0x55e8_c000 + thread * 0x100;
    writeln!(rows, "{},05:01:18.0,free,{address:#x},{bytes},{stream:#x}", 400 + thread).unwrap();
}
