//! Checks that the table of operations has every public function whose driver call may fail.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use millpond_testkit::faults::Operation;

use super::table::CRATES;

/// The repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The sources with public functions that call the driver.
const SOURCES: [&str; 4] = ["containers/src", "resources/src", "plan/src", "plugin/src"];

/// Functions that return a result and call no driver, or that only forward to a function in the table.
const WITHOUT_CALLS: &[(&str, &str)] = &[
    ("CudaBuffer::", "cudarc's streams are real ones: containers/tests/it/cuda_buffer.rs"),
    ("use_pool_in_cudarc", "CurrentPool::new on a real GPU: containers/tests/it/cuda_streams.rs"),
    ("CurrentPool::new", "MemoryPool::new and MemoryPool::set_current"),
    ("DeviceBuffer::cuda_view", "cudarc's streams are real ones: containers/tests/it/cuda_buffer.rs"),
    ("DeviceScalar::cuda_view", "as above"),
    ("DeviceVec::cuda_view", "as above"),
    ("DeviceScalar::from_vec", "it moves a value"),
    ("CaptureScope::of", "it looks for a layer"),
    ("MillpondMemoryManager::driver", "HostOnlyMemoryManager::driver"),
    ("DeviceVec::element_ptr", "it computes an address"),
    ("CallbackMemoryResource::new", "it takes a function that returns a result"),
    ("PeerList::new", "it makes a list"),
    ("IpcHandle::can_access_peer", "it asks of another device, which these stages lack"),
    ("IpcHandle::from_bytes", "it reads bytes"),
    ("Importers::wait", "it waits for another process"),
    ("handshake", "it makes a pipe"),
    ("ManagerRegistry::set", "it notes a factory"),
    ("set_memory_manager", "ManagerRegistry::set"),
    ("get_memory_manager", "ManagerRegistry::get"),
    ("MemoryPointer::view", "it computes an address"),
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            files(&path, found);
        } else if name.ends_with(".rs") && !name.starts_with("tests") {
            found.push(path);
        }
    }
}

/// Returns the type of an `impl` line: `impl<R: Bound> Type<R> {` and `impl Trait for Type {`.
fn owner_of(line: &str) -> Option<String> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|(at, sign)| {
            depth += match sign {
                '<' => 1,
                '>' if !rest[..*at].ends_with('-') => -1,
                _ => 0,
            };
            depth == 0
        });
        rest = &rest[end?.0 + 1..];
    }
    let name = rest.rsplit(" for ").next()?.trim();
    let end = name.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(name.len());
    Some(name[..end].to_owned())
}

/// Collects `Type::function` for each public function of a source that returns a result.
fn fallible(source: &str, found: &mut BTreeSet<String>) {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut owner = None;
    for (at, line) in source.lines().scan(0, |at, line| {
        *at += line.len() + 1;
        Some((*at - line.len() - 1, line))
    }) {
        if line.starts_with("impl") {
            owner = owner_of(line);
        } else if line.starts_with('}') {
            owner = None;
        }
        let function = line.trim_start();
        let named = function.strip_prefix("pub fn ").or_else(|| function.strip_prefix("pub unsafe fn "));
        let Some(named) = named else { continue };
        let signature = source[at..].split(['{', ';']).next().unwrap_or_default();
        if signature.contains("-> Result<") {
            let name = named.split(['(', '<']).next().unwrap_or_default();
            found.insert(owner.as_ref().map_or_else(|| name.to_owned(), |owner| format!("{owner}::{name}")));
        }
    }
}

#[test]
fn every_public_function_that_may_fail_is_an_operation() {
    let mut found = BTreeSet::new();
    for folder in SOURCES {
        let mut sources = Vec::new();
        files(&Path::new(ROOT).join(folder), &mut sources);
        for source in sources {
            fallible(&fs::read_to_string(source).expect("the source can be read"), &mut found);
        }
    }
    assert!(found.len() > 100, "only {} functions were found in the sources", found.len());
    let names: Vec<&str> =
        CRATES.iter().flat_map(|(_, operations)| *operations).map(Operation::name).collect();
    let is_covered = |function: &str| {
        let is_this = |name: &&str| name.split(" (").next() == Some(function);
        names.iter().any(is_this) || WITHOUT_CALLS.iter().any(|(without, _)| function.starts_with(without))
    };
    let missing: Vec<&String> = found.iter().filter(|function| !is_covered(function)).collect();
    assert!(missing.is_empty(), "add them to tests/it/fault_operations: {missing:#?}");
}

#[test]
fn functions_are_found_with_their_types() {
    let mut found = BTreeSet::new();
    let lines = [
        "impl<R: Fn() -> u8> One<R> {",
        "    pub fn may(&self) -> Result<()> {}",
        "    fn own() -> Result<()> {}",
        "}",
        "pub fn free(",
        "    at: u8,",
        ") -> Result<u8> {",
        "}",
        "impl A for Two {",
        "    pub fn never(&self) {}",
        "}",
    ];
    fallible(&lines.join("\n"), &mut found);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["One::may", "free"]);
}
