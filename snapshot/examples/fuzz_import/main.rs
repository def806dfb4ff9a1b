//! Imports damaged files for some time, and fails if one panics or takes too much memory.
//!
//! ```text
//! cargo run --release -p millpond-snapshot --example fuzz_import -- SECONDS [SEED] [FILE …]
//! ```
//!
//! Without files, it damages the snapshots and texts of the tests. A failing file is written to the folder
//! for temporary files.

mod damage;
mod memory;

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use millpond_snapshot::import::{self, Options};

/// The most bytes that importing may allocate on top of the size of the file.
const MOST_BYTES: usize = 64 << 20;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Counts the results of the files.
#[derive(Default)]
struct Counts {
    imported: u64,
    refused: u64,
    most_bytes: usize,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10);
    let seed = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut files: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    if files.is_empty() {
        let folders = ["tests/snapshots", "tests/readers"];
        let folders = folders.map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
        let entries = folders.into_iter().flat_map(std::fs::read_dir).flatten().flatten();
        let is_input = |path: &PathBuf| {
            path.extension()
                .is_some_and(|ending| ["gz", "txt", "csv", "json"].iter().any(|known| ending == *known))
        };
        files = entries.map(|entry| entry.path()).filter(is_input).collect();
        files.retain(|path| path.file_name().is_none_or(|name| name != "facts.json"));
        files.sort();
    }
    let files: Vec<Vec<u8>> = files.iter().map(|path| unpacked(path)).collect();
    std::panic::set_hook(Box::new(|_| {}));
    let (mut random, mut counts) = (damage::Random::new(seed), Counts::default());
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let bytes = damage::file(&files, &mut random);
        if let Err(why) = one(&bytes, &mut counts) {
            let path = std::env::temp_dir().join("fuzz_import.failed");
            let written = std::fs::write(&path, &bytes).is_ok();
            println!("{why}; {} {}", if written { "the file is" } else { "could not write" }, path.display());
            return ExitCode::FAILURE;
        }
    }
    let Counts { imported, refused, most_bytes } = counts;
    println!("{imported} imported, {refused} refused, at most {} KiB above a file", most_bytes >> 10);
    ExitCode::SUCCESS
}

/// Returns the content of a file; a file that cannot be read counts as empty.
fn unpacked(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).unwrap_or_default();
    let mut bytes = Vec::new();
    match flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(_) => packed,
    }
}

/// Imports one file, writes it as a log, and reads the log.
fn one(bytes: &[u8], counts: &mut Counts) -> Result<(), String> {
    let import = |bytes: &[u8]| {
        memory::start();
        let result = catch_unwind(AssertUnwindSafe(|| import::read("file", bytes, &Options::default())));
        (result, memory::most())
    };
    let (result, most) = import(bytes);
    counts.most_bytes = counts.most_bytes.max(most);
    if most > MOST_BYTES {
        return Err(format!("{} KiB were allocated", most >> 10));
    }
    let recording = match result {
        Err(_) => return Err("the importer panicked".to_owned()),
        Ok(Err(_)) => {
            counts.refused += 1;
            return Ok(());
        }
        Ok(Ok(recording)) => recording,
    };
    counts.imported += 1;
    let mut log = Vec::new();
    let explained = catch_unwind(AssertUnwindSafe(|| {
        let _ = recording.write_csv(&mut log);
        millpond_snapshot::explain::explain(&recording, None)
    }));
    if explained.is_err() {
        return Err("a recording cannot be explained or written".to_owned());
    }
    match import(&log).0 {
        Ok(Ok(again)) if again == recording => Ok(()),
        // A log may need a little more memory than its original file.
        Ok(Err(error)) if error.to_string().contains("of memory") => Ok(()),
        _ => Err("a recording that was written as a log is read as another one".to_owned()),
    }
}
