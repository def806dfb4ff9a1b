//! Runs each operation in a process of its own, over a driver library whose calls fail.

use std::collections::VecDeque;
use std::env;
use std::ffi::{CStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use millpond_testkit::faults::{FaultKind, KINDS, Operation, Ways, exhaust_operation_on};

use super::cuda;

/// Names the operation of a process.
const OPERATION: &str = "MILLPOND_FAULTS_OPERATION";

/// How long one operation may take: it hangs if it takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// The table of the functions that millpond looks up in CUDA's driver library.
const FUNCTIONS: &str = include_str!("../../../driver/src/cuda/functions.rs");

/// A driver library, and the library that makes its calls fail.
pub(crate) struct Lane {
    /// The full name of the test that calls [`Lane::run`]: each process runs it again.
    pub(crate) test: &'static str,
    /// The driver library.
    pub(crate) library: PathBuf,
    pub(crate) ways: Ways,
    /// Whether there is a second device.
    pub(crate) has_peer: bool,
    /// The operations that may not work without faults, and why.
    pub(crate) left_out: &'static [(&'static str, &'static str)],
}

/// The outcome of one operation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) runs: u64,
    /// The runs that failed.
    pub(crate) failed: Vec<String>,
    /// Why the operation does not work without faults.
    pub(crate) left_out: Option<String>,
    seconds: f64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, runs, failed, left_out, seconds } = self;
        match left_out {
            Some(why) => write!(f, "left out: {name}: {why}"),
            None => write!(f, "{name}: {runs} runs, {} failed, {seconds:.1} s", failed.len()),
        }?;
        failed.iter().try_for_each(|failure| write!(f, "\n  FAILED {failure}"))
    }
}

/// The ways in which a call fails and the device remains usable.
fn kinds() -> Vec<FaultKind> {
    KINDS.into_iter().filter(|kind| !kind.is_sticky()).collect()
}

impl Lane {
    /// Runs all operations that have the devices that they need, and returns their outcomes in the order of
    /// the list. In the process of one operation, runs that one and returns nothing.
    ///
    /// `MILLPOND_FAULTS_SECONDS` limits the time in which new operations begin; `MILLPOND_FAULTS_JOBS` is the
    /// number of processes at a time.
    pub(crate) fn run(&self, operations: &[Operation]) -> Vec<Outcome> {
        if let Ok(name) = env::var(OPERATION) {
            let operation = operations.iter().find(|operation| operation.name() == name);
            self.run_here(operation.expect("the process was started for an operation of the list"));
            return Vec::new();
        }
        let number = |name: &str, default| env::var(name).map_or(default, |text| text.parse().expect(name));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (jobs, seconds) =
            (number("MILLPOND_FAULTS_JOBS", cores.min(12)), number("MILLPOND_FAULTS_SECONDS", 3600));
        let end = Instant::now() + Duration::from_secs(seconds as u64);
        let folder = folder_of_faulty();
        let queue: VecDeque<_> = operations.iter().enumerate().filter(|(_, one)| self.can_run(one)).collect();
        let (queue, outcomes) = (Mutex::new(queue), Mutex::new(Vec::new()));
        let next = || queue.lock().expect("no thread panics").pop_front().filter(|_| Instant::now() < end);
        thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some((at, operation)) = next() {
                        let outcome = self.run_elsewhere(operation, at, &folder);
                        println!("{outcome}");
                        outcomes.lock().expect("no thread panics").push((at, outcome));
                    }
                });
            }
        });
        let mut outcomes = outcomes.into_inner().expect("no thread panicked");
        outcomes.sort_by_key(|(at, _)| *at);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// Whether there are the devices that the operation needs.
    pub(crate) fn can_run(&self, operation: &Operation) -> bool {
        self.has_peer || !operation.needs_peer()
    }

    /// Runs the operation in this process, and prints what [`Outcome`] needs.
    fn run_here(&self, operation: &Operation) {
        let stage = cuda::stage(operation.needs_peer());
        let runs = exhaust_operation_on(&|| stage.clone(), operation, &kinds(), self.ways);
        for failure in &runs.failed {
            println!("failed {}", failure.to_string().replace('\n', " "));
        }
        println!("runs {}", runs.count);
    }

    fn run_elsewhere(&self, operation: &Operation, number: usize, folder: &Path) -> Outcome {
        let begin = Instant::now();
        let file = env::temp_dir().join(format!("millpond-faults-{}-{number}.txt", std::process::id()));
        let output = File::create(&file).expect("the folder for temporary files is writable");
        let mut path = folder.as_os_str().to_owned();
        if let Some(rest) = env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(rest);
        }
        let mut child = Command::new(env::current_exe().expect("a test knows its file"))
            .args(["--exact", self.test, "--nocapture", "--include-ignored"])
            .env(OPERATION, operation.name())
            .env("LD_LIBRARY_PATH", path)
            .env("MILLPOND_REAL_CUDA", &self.library)
            .env("MILLPOND_DEVICE", "sim:8GiB")
            .env("RUST_BACKTRACE", "0")
            .stderr(output.try_clone().expect("a file can be shared"))
            .stdout(Stdio::from(output))
            .spawn()
            .expect("a test can be run");
        let status = wait(&mut child);
        let text = fs::read_to_string(&file).expect("the process wrote text");
        drop(fs::remove_file(&file));
        let mut outcome = Outcome {
            name: operation.name(),
            runs: 0,
            failed: text.lines().filter_map(|line| line.strip_prefix("failed ").map(str::to_owned)).collect(),
            left_out: None,
            seconds: begin.elapsed().as_secs_f64(),
        };
        match text.lines().find_map(|line| line.strip_prefix("runs ")) {
            Some(runs) => outcome.runs = runs.parse().expect("it is a number"),
            None => outcome.failed.push(ended_early(&text, status)),
        }
        if outcome.runs == 1 && outcome.failed.first().is_some_and(|it| it.contains("without faults: ")) {
            outcome.left_out = outcome.failed.pop();
        }
        outcome
    }
}

/// Waits for a process, and kills it if it takes too long; then there is no status.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a child can be killed");
    child.wait().expect("a killed child ends");
    None
}

fn ended_early(text: &str, status: Option<ExitStatus>) -> String {
    let status = status.map_or_else(|| format!("hung for {PATIENCE:?}"), |status| status.to_string());
    let last = text.lines().rfind(|line| line.starts_with("failing call ")).unwrap_or("no call failing");
    let lines: Vec<&str> = text.lines().collect();
    let end = lines[lines.len().saturating_sub(8)..].join(" | ");
    format!("the process ended early ({status}), {last}: {end}")
}

/// Returns the folder in which the library that makes calls fail is called `libcuda.so.1`:
/// `MILLPOND_FAULTY_CUDA`, or one in which it is compiled now.
pub(crate) fn folder_of_faulty() -> PathBuf {
    env::var_os("MILLPOND_FAULTY_CUDA").map_or_else(compile, PathBuf::from)
}

fn compile() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faulty_libcuda");
    fs::create_dir_all(&folder).expect("the folder of the build is writable");
    let own = |name: &str| folder.join(format!("{}.{name}", std::process::id()));
    let (table, library) = (own("rs"), own("so"));
    let at = FUNCTIONS.find("\nfunctions! {").expect("the table has this name");
    fs::write(&table, &FUNCTIONS[at..]).expect("the folder of the build is writable");
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc")));
    rustc.args(["--crate-type=cdylib", "--crate-name=faulty", "--edition=2024", "-o"]).arg(&library);
    rustc.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/faulty_libcuda/faulty.rs"));
    let output = rustc.env("MILLPOND_FUNCTIONS", &table).output().expect("rustc can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A test process that runs at the same time never loads half a library.
    fs::rename(&library, folder.join("libcuda.so.1")).expect("the folder of the build is writable");
    drop(fs::remove_file(table));
    folder
}

/// Returns the file of CUDA's driver library: the dynamic linker finds it for this process.
pub(crate) fn library_of_gpu() -> PathBuf {
    // SAFETY: the driver's initialisers may run on any thread at any time.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "there is no CUDA driver");
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the library is loaded, and `info` takes the result, whose text lives as long as the library.
    let path = unsafe {
        assert_ne!(libc::dladdr(libc::dlsym(library, c"cuInit".as_ptr()), &raw mut info), 0);
        CStr::from_ptr(info.dli_fname)
    };
    fs::canonicalize(path.to_str().expect("the path is text")).expect("the library's file is there")
}
