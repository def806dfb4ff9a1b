//! Tests that replaying a log of ten million rows takes memory for the live blocks, not for the rows. Also
//! tests that a log whose thread changes in every row needs no hand-over for each row.

#![cfg(target_os = "linux")]

#[path = "../../examples/long_log/rows.rs"]
mod long_log;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Folder, HEADER, program};

const ROWS: u64 = 10_000_000;
const LIVE: u64 = 1000;

/// As operations in memory, the rows would take 240 MB; as events 1 GB, as text 500 MB.
const MOST_BYTES: u64 = 200 << 20;

#[test]
fn ten_million_rows_in_bounded_memory() {
    let folder = Folder::new();
    let log = folder.path("long.csv.zst");
    write_log(&log);
    let child = program()
        .arg(&log)
        .args(["--stack", "cuda+pool", "--device", "sim:h200", "--repeat", "1", "--format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let watcher = std::thread::spawn(move || peaks_of(Path::new(&status)));
    let output = child.wait_with_output().unwrap();
    let (peak, _) = watcher.join().unwrap();
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["log"]["events"], ROWS);
    assert_eq!(report["log"]["peak_live_blocks"], LIVE);
    assert_eq!(report["stacks"][0]["failures"], 0);
    assert!(peak > 0, "the peak was never seen");
    assert!(peak < MOST_BYTES, "{} MiB", peak >> 20);
}

#[test]
fn issue_9_a_log_whose_threads_alternate_is_replayed_on_one_thread() {
    let folder = Folder::new();
    let log = folder.path("alternating.csv.zst");
    let file = BufWriter::new(File::create(&log).unwrap());
    let (rows, threads) = (500_000, 16);
    long_log::write(&mut zstd::Encoder::new(file, 1).unwrap().auto_finish(), rows, threads).unwrap();
    let child = program()
        .arg(&log)
        .args(["--stack", "cuda+pool", "--device", "sim:h200", "--format", "json", "--no-progress"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let watcher = std::thread::spawn(move || peaks_of(Path::new(&status)));
    let output = child.wait_with_output().unwrap();
    let (_, os_threads) = watcher.join().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let log = &report["log"];
    assert_eq!((&log["events"], &log["threads"]), (&rows.into(), &threads.into()));
    assert_eq!((&log["unknown_frees"], &log["duplicate_allocations"]), (&0.into(), &0.into()));
    assert!(log["peak_live_blocks"].as_u64() >= Some(long_log::LIVE), "{log}");
    assert_eq!(report["stacks"][0]["failures"], 0);
    // Only the program's and a pool's own threads, and none for the log's threads.
    assert!((1..8).contains(&os_threads), "{os_threads} threads");
}

/// Writes a ring of live blocks: after the first rows, each row frees the oldest block or allocates the next.
fn write_log(path: &Path) {
    let file = BufWriter::new(File::create(path).unwrap());
    let mut out = BufWriter::with_capacity(1 << 20, zstd::Encoder::new(file, 1).unwrap().auto_finish());
    out.write_all(HEADER.as_bytes()).unwrap();
    let allocate = |out: &mut dyn Write, number: u64| {
        let address = 0x7f00_0000_0000 + number % (2 * LIVE) * 0x10000;
        writeln!(out, "7,05:01:18.946606,allocate,{address:#x},{},0", 256 + number % 60_000).unwrap();
    };
    let (mut next, mut oldest) = (0, 0);
    for row in 0..ROWS {
        if next - oldest < LIVE && row % 2 == 0 || next < LIVE {
            allocate(&mut out, next);
            next += 1;
        } else {
            let address = 0x7f00_0000_0000 + oldest % (2 * LIVE) * 0x10000;
            writeln!(out, "7,05:01:18.946609,free,{address:#x},{},0", 256 + oldest % 60_000).unwrap();
            oldest += 1;
        }
    }
    out.flush().unwrap();
}

/// Watches a process until it ends, and returns its most memory in bytes and its most threads.
fn peaks_of(status: &Path) -> (u64, u64) {
    let (mut memory, mut threads) = (0, 0);
    while let Ok(text) = fs::read_to_string(status) {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name))?;
            value.trim().trim_end_matches(" kB").parse::<u64>().ok()
        };
        let Some(kib) = field("VmHWM:") else { break }; // a zombie has no memory
        memory = memory.max(kib << 10);
        threads = threads.max(field("Threads:").unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    (memory, threads)
}
