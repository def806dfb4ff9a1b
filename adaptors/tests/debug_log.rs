//! Tests the debug log, in a process of its own: the subscriber is the process's.
#![cfg(feature = "debug-log")]

use std::fs;
use std::process::Command;

use millpond_adaptors::debug_log::{self, Level};

/// The part of the test that runs with the variable set.
const INSIDE: &str = "MILLPOND_TEST_DEBUG_LOG";

#[test]
fn lines_go_to_the_file_that_the_environment_names() {
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(debug_log::level().unwrap_err().message(), "there is no debug log; start it first");
        debug_log::init().unwrap();
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
