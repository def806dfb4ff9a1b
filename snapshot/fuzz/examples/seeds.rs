//! Writes the first files of each target's corpus: the snapshots and texts of the tests, small logs, and an
//! export.
//!
//! ```text
//! cargo run --example seeds
//! ```

use std::error::Error;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use millpond_driver::sim::Profile;
use millpond_snapshot::gate::Budget;
use millpond_snapshot::import::{self, Options};

const ROWS: &str = "\n7,05:01:18.946606,allocate,0x7f00,1000,0\n7,05:01:18.946609,free,0x7f00,1000,0\n";

const EXPORT: &str =
    "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, globalPid, deviceId, contextId, address, \
                      bytes, memKind, memoryOperationType, streamId);
    CREATE TABLE ENUM_CUDA_MEM_KIND (id, name, label);
    CREATE TABLE ENUM_CUDA_DEV_MEM_EVENT_OPER (id, name, label);
    INSERT INTO ENUM_CUDA_MEM_KIND VALUES (2, 'DEVICE', 'Device');
    INSERT INTO ENUM_CUDA_DEV_MEM_EVENT_OPER VALUES (0, 'A', 'Allocation'), (1, 'D', 'Deallocation');
    INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (1, 0, 0, 1, 28672, 512, 2, 0, 7), \
                      (2, 0, 0, 1, 28672, 512, 2, 1, 7);";

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(root.join("../tests/snapshots"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".gz") else { continue };
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(fs::File::open(&path)?).read_to_end(&mut bytes)?;
        let recording = import::read(name, bytes.as_slice(), &Options::default())?;
        if let Some(rest) = bytes.strip_prefix(b"\x80") {
            seed(root, "pickle", name, rest)?;
            let mut log = Vec::new();
            recording.write_csv(&mut log)?;
            seed(
                root,
                "rmm_csv",
                name,
                log.strip_prefix(b"Thread,Time,Action,Pointer,Size,Stream").unwrap_or(&log),
            )?;
            seed(root, "budget", name, Budget::of(&recording).to_string().as_bytes())?;
        } else {
            seed(root, "html", name, bytes.strip_prefix(b"<html>").unwrap_or(&bytes))?;
        }
    }
    for entry in fs::read_dir(root.join("../tests/readers"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        match name.rsplit('.').next() {
            Some("py") => continue,
            Some("gz") => drop(flate2::read::GzDecoder::new(fs::File::open(&path)?).read_to_end(&mut bytes)?),
            _ => bytes = fs::read(&path)?,
        }
        // The target's start has the same length as a profile's own.
        let types = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04";
        match bytes.strip_prefix(types) {
            Some(rest) => seed(root, "pprof", &name, rest)?,
            None if name.ends_with(".json") => {
                let list = bytes.iter().position(|byte| *byte == b'[').unwrap_or(0);
                let events = bytes.windows(14).position(|part| part == b"\"traceEvents\":");
                seed(root, "trace", &name, &bytes[events.map_or(list, |at| at + 14)..])?;
            }
            None => seed(root, "text", &name, &bytes)?,
        }
    }
    seed(root, "rmm_csv", "rows", ROWS.as_bytes())?;
    seed(root, "minimalloc", "rows", b"\na,0,10,4096\nb,5,20,1024\n")?;
    seed(root, "profile", "h200", Profile::h200().to_toml(|_, _| None).as_bytes())?;
    let path = folder(root, "nsys")?.join("export");
    let _ = fs::remove_file(&path);
    rusqlite::Connection::open(&path)?.execute_batch(EXPORT)?;
    let whole = fs::read(&path)?;
    fs::write(&path, whole.strip_prefix(b"SQLite format 3\0").unwrap_or(&whole))?;
    Ok(())
}

fn seed(root: &Path, target: &str, name: &str, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    Ok(fs::write(folder(root, target)?.join(name), bytes)?)
}

fn folder(root: &Path, target: &str) -> Result<PathBuf, Box<dyn Error>> {
    let folder = root.join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
