//! Tests that rows survive every end of the process, and that each mechanism that saves them is needed.

use std::process::Command;
use std::sync::OnceLock;

use super::super::queue::{BATCHES, LANE_ROWS};
use super::reports::OnError;
use super::*;

/// No drop runs for this log.
static RESOURCE: OnceLock<AnyResource> = OnceLock::new();

const CHILD: &str = "logging::tests::ends::child_process";
const CHILD_WITH_WRITER: &str = "logging::tests::ends::child_with_writer";
const FEW: usize = 100;
/// More than a pipe holds, and less than a queue holds.
const MANY_BYTES: usize = 4000;
/// More than a queue holds.
const MANY: usize = (BATCHES + 2) * LANE_ROWS;

/// Not a test: the code that the tests below run in another process.
#[test]
fn child_process() {
    let Ok(end) = std::env::var("MILLPOND_TEST_CHILD_ENDS_BY") else { return };
    let flush = std::env::var("MILLPOND_TEST_CHILD_FLUSH").unwrap().parse().unwrap();
    if end == "row after the exit began" {
        // SAFETY: the handler touches only a static.
        assert_eq!(unsafe { libc::atexit(log_a_row) }, 0);
    }
    let resource = LoggingLayer::new().flush(flush).layer(mock().0).unwrap();
    let log = |resource: &dyn DeviceMemoryResource, rows: usize| {
        for _ in 0..rows {
            resource.allocate(Layout::new(1000), S).unwrap();
        }
    };
    match &*end {
        "abort" => {
            log(&resource, FEW);
            std::process::abort();
        }
        "flush and abort" => {
            log(&resource, FEW);
            resource.flush().unwrap();
            std::process::abort();
        }
        "many rows, flush and abort" => {
            log(&resource, MANY);
            resource.flush().unwrap();
            std::process::abort();
        }
        "drop and abort" => {
            log(&resource, FEW);
            drop(resource);
            std::process::abort();
        }
        "panic of the owner and abort" => {
            let owner = std::thread::spawn(move || {
                log(&resource, FEW);
                panic!("on purpose");
            });
            assert!(owner.join().is_err());
            std::process::abort();
        }
        "many rows and drop" => {
            log(&resource, MANY_BYTES);
            drop(resource);
        }
        "many rows and leak" => {
            log(&resource, MANY_BYTES);
            std::mem::forget(resource);
        }
        "leak" => {
            log(&resource, FEW);
            std::mem::forget(resource);
        }
        #[cfg(unix)]
        "fork and drop in both" => {
            log(&resource, FEW);
            fork_and_drop(resource, |_| ());
        }
        #[cfg(unix)]
        "fork, log and drop in both" => {
            log(&resource, FEW);
            fork_and_drop(resource, |resource| log(resource, FEW));
        }
        _ => {
            RESOURCE.set(resource.into_any()).unwrap();
            end_with_a_static(&end, move |rows| log(RESOURCE.get().unwrap(), rows));
        }
    }
}

fn end_with_a_static(end: &str, log: impl Fn(usize) + Send + 'static) {
    match end {
        "panic" => {
            std::thread::spawn(move || log(FEW)).join().unwrap();
            panic!("on purpose");
        }
        "exit" => {
            let thread = std::thread::spawn(move || {
                log(FEW);
                std::process::exit(0);
            });
            thread.join().unwrap();
        }
        "row after the exit began" => {
            log(FEW - 1);
            std::process::exit(0);
        }
        "fork" => {
            log(FEW);
            fork_and_exit();
        }
        _ => panic!("`{end}` is not an end"),
    }
}

/// Handlers run in the reverse order, so this one runs after the log's.
extern "C" fn log_a_row() {
    if let Some(resource) = RESOURCE.get() {
        let _ = resource.allocate(Layout::new(1000), S);
    }
}

#[cfg(unix)]
fn fork_and_exit() {
    // SAFETY: the child calls only `exit`, which runs the registered handlers.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::exit(0);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

#[cfg(unix)]
fn fork_and_drop<R: DeviceMemoryResource>(resource: R, first: impl Fn(&R)) {
    // SAFETY: no other thread of the parent holds a lock. The child drops its copies, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            first(&resource);
            drop(resource);
            libc::_exit(0);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

#[cfg(not(unix))]
fn fork_and_exit() {}

/// The program's own writer into a file, which acts before it writes.
struct Acts<F>(std::fs::File, F);

impl<F: FnMut()> Write for Acts<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.1)();
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Not a test: the code that tests below run in another process, with the program's own writers.
#[test]
fn child_with_writer() {
    let Ok(end) = std::env::var("MILLPOND_TEST_CHILD_ENDS_BY") else { return };
    let flush = std::env::var("MILLPOND_TEST_CHILD_FLUSH").unwrap().parse().unwrap();
    let file = std::fs::File::create(std::env::var_os("MILLPOND_LOG_FILE").unwrap()).unwrap();
    let build = |writer: Box<dyn Write + Send>| {
        LoggingLayer::new().writer(writer).flush(flush).layer(mock().0).unwrap().into_any()
    };
    let resource = match &*end {
        "rows of the writer" => {
            let mut writes = 0;
            build(Box::new(Acts(file, move || {
                writes += 1;
                // The header is the first write. Rows that are logged during the last one wait for the next
                // call.
                if (2..4).contains(&writes) {
                    RESOURCE.get().unwrap().allocate(Layout::new(1000), S).unwrap();
                }
            })))
        }
        "a subscriber panics" => {
            tracing::subscriber::set_global_default(OnError(|_: &str| panic!("on purpose"))).unwrap();
            let broken = Shared::default();
            let layer = LoggingLayer::new().writer(broken.clone()).flush(Flush::Buffered);
            let first = layer.layer(mock().0).unwrap();
            broken.broken.store(true, Ordering::SeqCst);
            first.allocate_bytes(1000, S).unwrap();
            std::mem::forget(first);
            // Otherwise the process would end before.
            build(Box::new(Acts(file, || std::thread::sleep(std::time::Duration::from_millis(300)))))
        }
        _ => panic!("`{end}` is not an end"),
    };
    RESOURCE.set(resource).unwrap();
    RESOURCE.get().unwrap().allocate(Layout::new(1000), S).unwrap();
    std::process::exit(0);
}

#[test]
fn rows_that_wait_for_the_programs_writer_survive_a_normal_end() {
    for flush in ["row", "buffered", "async"] {
        let left = rows_left_by(CHILD_WITH_WRITER, flush, "rows of the writer", "");
        // At the end, the rows that the writer logs for the last rows; a thread of the log may have been
        // inside it before.
        let expected = if flush == "row" { 3..=3 } else { 2..=3 };
        assert!(expected.contains(&left), "{flush}: {left} rows");
    }
}

#[test]
fn a_subscriber_that_panics_at_the_end_loses_no_row_of_other_logs() {
    for flush in ["buffered", "async"] {
        assert_eq!(rows_left_by(CHILD_WITH_WRITER, flush, "a subscriber panics", ""), 1, "{flush}");
    }
}

/// Returns how many rows a child leaves if it ends in this way without these mechanisms.
fn rows_left(flush: &str, end: &str, without: &str) -> usize {
    rows_left_by(CHILD, flush, end, without)
}

fn rows_left_by(child: &str, flush: &str, end: &str, without: &str) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child])
        .env("MILLPOND_TEST_CHILD_ENDS_BY", end)
        .env("MILLPOND_TEST_CHILD_FLUSH", flush)
        .env("MILLPOND_TEST_WITHOUT", without)
        .env("MILLPOND_LOG_FILE", &file)
        .output()
        .unwrap();
    let fails = end.contains("abort") || end == "panic";
    assert_eq!(output.status.success(), !fails, "{end}: {output:?}");
    rows(&std::fs::read_to_string(file).unwrap()).len()
}

#[test]
fn rows_written_one_by_one_survive_everything() {
    for end in ["abort", "panic of the owner and abort", "panic", "exit", "leak"] {
        assert_eq!(rows_left("row", end, ""), FEW, "after {end}");
    }
}

/// Each end, the number of rows that must remain, and the mechanism that ensures it.
const ENDS: [(&str, usize, &str); 9] = [
    ("flush and abort", FEW, "flush"),
    ("many rows, flush and abort", MANY, "room"),
    ("drop and abort", FEW, "drop"),
    ("panic of the owner and abort", FEW, "drop"),
    ("panic", FEW, "at_exit"),
    ("exit", FEW, "at_exit"),
    ("leak", FEW, "at_exit"),
    ("row after the exit began", FEW, "closing"),
    ("fork", FEW, "process"),
];

#[test]
fn queued_rows_survive_with_and_without_the_threads_of_the_log() {
    for (end, expected, _) in ENDS {
        for without in ["", "threads"] {
            assert_eq!(rows_left("async", end, without), expected, "after {end}, without `{without}`");
        }
    }
}

/// The canary of the previous test: the fault that it looks for can happen.
#[test]
fn without_its_mechanism_each_end_loses_rows_or_has_them_twice() {
    for (end, expected, mechanism) in ENDS {
        let left = rows_left("async", end, &format!("threads,{mechanism}"));
        assert_ne!(left, expected, "after {end}, without `{mechanism}`");
    }
}

#[test]
fn issue_29_buffered_rows_survive_a_normal_end() {
    for end in
        ["panic", "exit", "leak", "row after the exit began", "fork", "flush and abort", "drop and abort"]
    {
        assert_eq!(rows_left("buffered", end, ""), FEW, "after {end}");
    }
    for end in ["panic", "exit", "leak"] {
        assert_ne!(rows_left("buffered", end, "kept"), FEW, "the test sees rows that are lost, after {end}");
    }
}

/// Returns whether a child ends even if its log goes to a pipe without a reader.
#[cfg(target_os = "linux")]
fn ends_without_a_reader(flush: &str, end: &str) -> bool {
    use std::fs::OpenOptions;
    use std::time::{Duration, Instant};
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let c_pipe = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: the path is a string that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(c_pipe.as_ptr(), 0o600) }, 0);
    let _reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD])
        .env("MILLPOND_TEST_CHILD_ENDS_BY", end)
        .env("MILLPOND_TEST_CHILD_FLUSH", flush)
        .env("MILLPOND_LOG_FILE", &pipe)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Far longer than the patience of a log.
    let hangs_after = Instant::now() + Duration::from_secs(100);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        if Instant::now() > hangs_after {
            child.kill().unwrap();
            child.wait().unwrap();
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn issue_9_a_log_without_a_reader_keeps_no_process_from_ending() {
    let ends = [("async", "many rows and leak"), ("async", "many rows and drop"), ("buffered", "leak")];
    std::thread::scope(|scope| {
        let children = ends.map(|(flush, end)| (end, scope.spawn(move || ends_without_a_reader(flush, end))));
        for (end, child) in children {
            assert!(child.join().unwrap(), "after {end}");
        }
    });
}

/// Buffered rows belong to the parent, which writes them; the child only has a copy.
#[cfg(unix)]
#[test]
fn a_forked_child_does_not_write_its_parents_rows_again() {
    for flush in ["row", "buffered", "async"] {
        assert_eq!(rows_left(flush, "fork and drop in both", ""), FEW, "{flush}");
    }
    assert_eq!(
        rows_left("buffered", "fork and drop in both", "process"),
        2 * FEW,
        "the test sees rows twice"
    );
}

#[cfg(unix)]
#[test]
fn what_a_forked_child_logs_is_appended() {
    for flush in ["row", "buffered"] {
        assert_eq!(rows_left(flush, "fork, log and drop in both", ""), 2 * FEW, "{flush}");
    }
}

/// The documentation of `flush=async` does not promise this.
#[test]
fn an_abort_loses_what_waits() {
    assert!(rows_left("async", "abort", "threads") < FEW);
}
