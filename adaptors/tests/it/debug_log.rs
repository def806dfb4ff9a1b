//! Tests the debug log in a separate process, because the subscriber belongs to the process.
#![cfg(feature = "debug-log")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fs, thread};

use millpond_adaptors::debug_log::{self, Level};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The part of the test that runs with the variable set.
const INSIDE: &str = "MILLPOND_TEST_DEBUG_LOG";

/// A subscriber that starts the debug log on another thread while `tracing` calls it.
struct Starts(Arc<AtomicBool>);

impl Subscriber for Starts {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        if self.0.swap(false, Ordering::SeqCst) {
            let (done, ended) = mpsc::channel();
            thread::spawn(move || done.send(debug_log::init().is_ok()));
            assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true), "it hangs");
        }
        None
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Starts the debug log while the thread has a subscriber that starts it, too.
fn init_beside_a_subscriber() {
    let starts = Arc::new(AtomicBool::new(false));
    millpond_testkit::events::heard_by(Starts(Arc::clone(&starts)), || {
        starts.store(true, Ordering::SeqCst);
        debug_log::init().unwrap();
    });
    assert!(!starts.load(Ordering::SeqCst), "the subscriber was asked");
}

/// A pipe opens when it is read. Until then, calls of other threads do not wait for the thread that opens it.
#[cfg(unix)]
#[test]
fn a_pipe_that_no_program_reads_yet_holds_up_its_thread_alone() {
    let name = "a_pipe_that_no_program_reads_yet_holds_up_its_thread_alone";
    if std::env::var_os(INSIDE).is_some() {
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            let first = thread::spawn(debug_log::init);
            while debug_log::level().is_err() {
                thread::yield_now();
            }
            debug_log::init().unwrap();
            debug_log::set_level(Some(Level::ERROR)).unwrap();
            assert!(!first.is_finished(), "no program has read yet");
            done.send(()).unwrap();
        });
        return ended.recv_timeout(Duration::from_secs(60)).expect("no other thread waits");
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.arg(name).arg("--nocapture").env(INSIDE, "1").env("RMM_DEBUG_LOG_FILE", &pipe);
    let output = test.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn lines_go_to_the_file_that_the_environment_names() {
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(debug_log::level().unwrap_err().message(), "the debug log is not running; start it first");
        init_beside_a_subscriber();
        debug_log::init().unwrap();
        tracing::debug!("not yet");
        tracing::warn!(bytes = 7, "a warning");
        debug_log::set_level(Some(Level::DEBUG)).unwrap();
        assert_eq!(debug_log::level().unwrap(), Some(Level::DEBUG));
        tracing::debug!("now");
        debug_log::set_level(None).unwrap();
        assert!(!debug_log::should_log(Level::ERROR).unwrap());
        tracing::error!("not any more");
        debug_log::flush().unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("debug.log");
    fs::write(&file, "of an earlier run\n").unwrap();
    let run = |file: &std::path::Path| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.arg("lines_go_to_the_file_that_the_environment_names").arg("--nocapture");
        test.env(INSIDE, "1").env("RMM_DEBUG_LOG_FILE", file).output().unwrap()
    };
    let output = run(&file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [warning, debug] = lines[..] else { panic!("{text}") };
    assert!(warning.ends_with("[WARN  ] a warning bytes=7"), "{warning}");
    assert!(debug.ends_with("[DEBUG ] now"), "{debug}");
    // [thread][HH:MM:SS:ffffff]
    let (thread, rest) = warning[1..].split_once("][").unwrap();
    assert!(thread.len() >= 6 && thread.trim().parse::<u32>().is_ok(), "{warning}");
    assert_eq!(rest.split(']').next().unwrap().split(':').map(str::len).collect::<Vec<_>>(), [2, 2, 2, 6]);

    let missing = run(&folder.path().join("no/such/folder"));
    assert!(!missing.status.success());
    let text =
        String::from_utf8_lossy(&missing.stderr).into_owned() + &String::from_utf8_lossy(&missing.stdout);
    assert!(text.contains("RMM_DEBUG_LOG_FILE: ") && text.contains("cannot be written"), "{text}");
}
