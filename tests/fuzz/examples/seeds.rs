//! Writes the first files of each target's corpus: the snapshots and texts of the tests, small logs, an
//! export, stacks with each option, plans, the answer of a watched program, and bytes for calls.
//!
//! ```text
//! cargo run --example seeds
//! ```

use std::error::Error;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use millpond::stack::{LayerKind, StackSpec};
use millpond::{DeviceMemoryResourceExt, DriverHandle, StreamRef};
use millpond_driver::sim::{Profile, SimConfig, SimDevice};
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
    readers(root)?;
    stacks(root)?;
    for name in ["reentrancy", "equal_1024", "equal_256"] {
        let text = fs::read_to_string(root.join("../../testkit/plans").join(name).with_extension("plan"))?;
        let (_, rest) = text.split_once("alignment 256\n").ok_or("a plan names its alignment")?;
        seed(root, "plan", name, rest.as_bytes())?;
    }
    for number in 0..16 {
        seed(root, "capi", &number.to_string(), &calls(number, 32 << (number % 6)))?;
        seed(root, "plan", &number.to_string(), &calls(number, 64))?;
    }
    let answer = answer()?;
    for (name, first) in [("json", 0), ("table", 200)] {
        seed(root, "watch", name, &[&[first][..], &answer].concat())?;
    }
    Ok(())
}

/// Bytes that choose calls.
fn calls(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A stack for each layer and each option of a layer, and some that can be built.
fn stacks(root: &Path) -> Result<(), Box<dyn Error>> {
    let mut texts: Vec<String> = [
        "cuda+pool:initial=1MiB,max=50%+statistics+tracking",
        "cuda+pool+binning:bins=64KiB/1MiB(cuda+pool)+limiting:limit=16MiB",
        "managed+prefetch+pool+fallback:to=(pinned_host+pool)",
        "cuda+arena:size=8MiB+thread_safe+aligned:alignment=4096",
        "cuda_async+recording:events=10+logging:file=log.csv,flush=buffered",
        "cuda+pool:pages=off+capture_scopes+fixed_size:block_size=4096,preallocate=1",
    ]
    .map(str::to_owned)
    .into();
    for layer in millpond::layers().entries() {
        let is_base = matches!(layer.kind, LayerKind::Base(_) | LayerKind::ReadBase(_));
        let start = if is_base { "" } else { "cuda+" };
        texts.push(format!("{start}{}", layer.name));
        for (option, _) in layer.params {
            for value in ["1MiB", "on", "2"] {
                texts.push(format!("{start}{}:{option}={value}", layer.name));
            }
        }
    }
    for (number, text) in texts.iter().enumerate() {
        let text = [text.as_bytes(), b"\n", &calls(number as u64, 128)].concat();
        seed(root, "stack", &number.to_string(), &text)?;
    }
    Ok(())
}

/// The answer of this program, which is watched.
fn answer() -> Result<Vec<u8>, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var("MILLPOND_WATCH", folder.path()) };
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(64 << 20));
    let spec: StackSpec = "cuda+pool+tracking:stacks=on".parse()?;
    let stack = spec.build(&millpond::layers(), &device)?;
    for bytes in [1 << 20, 1000, 7] {
        stack.allocate_bytes(bytes, StreamRef::LEGACY)?;
    }
    let mut answer = Vec::new();
    let socket = folder.path().join(format!("{}.sock", std::process::id()));
    UnixStream::connect(socket)?.read_to_end(&mut answer)?;
    Ok(answer)
}

/// The files of the readers' targets.
fn readers(root: &Path) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(root.join("../../snapshot/tests/snapshots"))? {
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
    for entry in fs::read_dir(root.join("../../snapshot/tests/readers"))? {
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
