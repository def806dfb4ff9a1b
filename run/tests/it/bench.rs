//! Programs in C and Python, over a simulated device instead of the driver.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// The folder of this test program, where Cargo puts libraries.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a file");
    program.parent().expect("it is in a folder").to_owned()
}

/// `millpond-replay`, which Cargo builds for all tests of the workspace.
fn launcher() -> &'static Path {
    static LAUNCHER: OnceLock<PathBuf> = OnceLock::new();
    LAUNCHER.get_or_init(|| {
        let launcher = built().join("../millpond-replay");
        if !launcher.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            let built = cargo.args(["build", "--quiet", "-p", "millpond-replay"]).status();
            assert!(built.is_ok_and(|status| status.success()), "millpond-replay cannot be built");
        }
        launcher
    })
}

/// A folder with a driver, in which programs run.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let driver = built().join("libmillpond_shim.so");
        std::os::unix::fs::symlink(driver, folder.path().join("libcuda.so.1")).expect("a link can be made");
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles the program in C; `linked` to the driver, or not.
    pub(crate) fn compile(&self, is_linked: bool) -> PathBuf {
        let program = self.path(if is_linked { "linked" } else { "program" });
        let mut compiler = Command::new("cc");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c");
        compiler.arg("-g").arg(source).arg("-o").arg(&program).args(["-ldl", "-lpthread"]);
        if is_linked {
            compiler.arg("-DLINKED").arg(self.path("libcuda.so.1")).arg("-Wl,--allow-shlib-undefined");
        }
        let output = compiler.output().expect("there is a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// Sets the environment of a program: a simulated device of 1 GiB behind the driver.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        command.env("LD_LIBRARY_PATH", self.folder.path()).env("MILLPOND_DEVICE", "sim:1GiB");
        command
    }

    /// The command that runs a program under `millpond-replay run` with options.
    pub(crate) fn run(&self, options: &[&str], program: &Path) -> Command {
        let mut command = self.command(launcher());
        command.env("MILLPOND_RUN_LIBRARY", built().join("libmillpond_run.so"));
        command.arg("run").args(options).arg("--").arg(program);
        command
    }

    /// Reads a recording.
    pub(crate) fn rows(&self, name: &str) -> Vec<Row> {
        let text = std::fs::read_to_string(self.path(name)).expect("there is a recording");
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().expect("there is a header").split(',').collect();
        let row = |line: &str| {
            let cells: HashMap<&str, &str> = names.iter().copied().zip(line.split(',')).collect();
            let bytes = cells["Size"].parse().expect("a size");
            Row { action: cells["Action"].to_owned(), bytes, tag: cells["Tag"].to_owned() }
        };
        // Rows for 0 bytes only carry notes.
        lines.map(row).filter(|row| row.bytes > 0).collect()
    }

    /// Runs `millpond-replay` with these arguments.
    pub(crate) fn replay(&self, arguments: &[&str]) -> String {
        text(&self.command(launcher()).args(arguments).output().expect("it runs"))
    }
}

/// A row of a recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) action: String,
    pub(crate) bytes: u64,
    /// The library or the program that asked for the memory, or `driver`.
    pub(crate) tag: String,
}

/// The standard output of a program.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
