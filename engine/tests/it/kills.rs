//! Kills a program that writes an allocation log, at random moments. The log can be read each time, and no
//! row is missing whose call had returned.
#![cfg(unix)]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use millpond_adaptors::LoggingLayer;
use millpond_adaptors::logging::{Columns, Flush};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, Layer, StreamRef, environment};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_engine::log::{Action, LogReader};
use millpond_resources::CudaMemoryResource;
use millpond_testkit::{Rng, size};

const THREADS: u64 = 4;
/// Set in the program that is killed: the folder of its log.
const FOLDER: &str = "MILLPOND_TEST_KILLED_IN";
const FLUSH: &str = "MILLPOND_TEST_KILLED_FLUSH";

/// Not a test: the program that is killed. Each thread allocates and frees without end. After each call that
/// has returned, it writes a byte to a file of its own, which the kill cannot take back.
#[test]
fn killed_program() {
    let Some(folder) = environment::variable(FOLDER) else { return };
    let flush: Flush = std::env::var(FLUSH).unwrap().parse().unwrap();
    let folder = Path::new(&folder);
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let layer = LoggingLayer::new().file(folder.join("log.csv")).flush(flush).columns(Columns::Extended);
    let log = &layer.layer(cuda).unwrap();
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || log_forever(log, number, &folder.join(number.to_string())));
        }
    });
}

/// The size of a block names the thread and the pair of calls.
fn log_forever(log: &impl DeviceMemoryResource, number: u64, returned: &Path) {
    let mut returned = OpenOptions::new().create(true).append(true).open(returned).unwrap();
    for pair in 1.. {
        let bytes = pair * THREADS + number;
        let block = log.allocate_bytes(bytes, StreamRef::LEGACY).unwrap();
        returned.write_all(b".").unwrap();
        // SAFETY: the block is live and unused, and is freed once with its size.
        unsafe { log.deallocate_bytes(block, bytes, StreamRef::LEGACY) };
        returned.write_all(b".").unwrap();
    }
}

fn start(folder: &Path, flush: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::killed_program"])
        .env(FOLDER, folder)
        .env(FLUSH, flush)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills one program. Returns how many rows its log has, and how many rows are missing whose calls had
/// returned.
fn rows_and_missing(flush: &str, random: &mut Rng) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let mut program = start(folder.path(), flush);
    let first = folder.path().join("0");
    // Two of three kills come while rows are written, and the others at any moment since the start.
    let waits = random.percent(66);
    while waits && fs::metadata(&first).map_or(0, |known| known.len()) < 2 {
        assert_eq!(program.try_wait().unwrap(), None, "the program ended");
        thread::sleep(Duration::from_micros(200));
    }
    thread::sleep(Duration::from_micros(random.below(20_000)));
    program.kill().unwrap();
    assert_eq!(program.wait().unwrap().signal(), Some(9), "the program was killed");

    let rows = rows_by_thread(folder.path());
    let mut missing = 0;
    for number in 0..THREADS {
        let returned = fs::metadata(folder.path().join(number.to_string())).map_or(0, |known| known.len());
        let written = rows.get(&number).copied().unwrap_or(0);
        assert!(written <= returned + 1, "a thread has one row more than calls that returned, at most");
        missing += returned.saturating_sub(written);
    }
    (rows.values().sum(), missing)
}

/// Reads the log. Returns the number of each thread's rows, which are complete up to that number.
fn rows_by_thread(folder: &Path) -> HashMap<u64, u64> {
    let mut rows = HashMap::new();
    let Ok(file) = File::open(folder.join("log.csv")) else { return rows };
    if file.metadata().unwrap().len() == 0 {
        return rows;
    }
    let mut log = LogReader::from_reader("log.csv", file).unwrap();
    for (index, event) in log.by_ref().enumerate() {
        let event = event.unwrap();
        let row = rows.entry(event.bytes % THREADS).or_insert(0);
        let expected = [Action::Allocate, Action::Free][(*row % 2) as usize];
        assert_eq!((event.action, event.bytes / THREADS), (expected, *row / 2 + 1), "row {index}");
        *row += 1;
    }
    rows
}

/// Kills programs. Returns the most rows that one of them lost, and their rows in all.
fn most_missing(flush: &str, kills: u64) -> (u64, u64) {
    let mut random = Rng::new(size::named("MILLPOND_KILLS_SEED").unwrap_or(1));
    let (mut most, mut all) = (0, 0);
    for _ in 0..kills {
        let (rows, missing) = rows_and_missing(flush, &mut random);
        (most, all) = (most.max(missing), all + rows);
    }
    println!("flush={flush}: {kills} kills, {all} rows, at most {most} rows lost");
    (most, all)
}

fn kills() -> u64 {
    size::named("MILLPOND_KILLS").unwrap_or(size::of(20, 1000))
}

#[test]
fn a_kill_loses_no_row_whose_call_has_returned() {
    let (most, all) = most_missing("row", kills());
    assert_eq!(most, 0);
    assert!(all > kills(), "{all} rows: the kills came too early");
}

/// The canary: the test above sees rows that are lost. The documentation of these modes says so.
#[test]
fn a_kill_loses_rows_that_wait_in_memory() {
    for flush in ["buffered", "async"] {
        let (most, _) = most_missing(flush, kills());
        assert!(most > 0, "{flush}");
    }
}
