//! Stacks as text: one line, which is parsed, printed and built, and bytes that say which calls to make.

use std::path::Path;
use std::sync::LazyLock;

use crate::World;
use libfuzzer_sys::arbitrary::Unstructured;
use millpond::DriverHandle;
use millpond::stack::{LayerSpec, StackSpec};
use tempfile::TempDir;

/// The files of stacks are in this folder.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder can be made"));

fn is_file(key: &str) -> bool {
    matches!(key, "file" | "dump_log_on_failure")
}

/// Returns how many layers of these name a file.
fn files(layers: &[&LayerSpec]) -> usize {
    layers.iter().filter(|layer| layer.params.iter().any(|(key, _)| is_file(key))).count()
}

/// Returns the stack with its files in the folder. Returns `None` if it has a file somewhere else.
fn with_files_in(folder: &Path, spec: &StackSpec) -> Option<StackSpec> {
    let mut layers = spec.layers().to_vec();
    if files(&spec.all_layers()) > files(&layers.iter().collect::<Vec<_>>()) {
        return None;
    }
    for (_, value) in layers.iter_mut().flat_map(|layer| &mut layer.params).filter(|(key, _)| is_file(key)) {
        let name = value.as_text().filter(|name| !name.contains(['/', '{']))?;
        *value = folder.join(name).to_str()?.to_owned().into();
    }
    StackSpec::new(layers).ok()
}

fn remove_files(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(entry.path());
    }
}

pub(super) fn run(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (text, calls) = bytes.split_at(end);
    let Ok(Ok(spec)) = str::from_utf8(text).map(str::parse::<StackSpec>) else { return };
    let again = spec.to_string().parse::<StackSpec>().expect("a stack that was printed can be parsed");
    assert_eq!(again, spec);
    // A request of these layers may wait for other threads, and there are none.
    let waits = spec.all_layers().iter().any(|layer| matches!(&*layer.name, "retry" | "budget"));
    let Some(spec) = with_files_in(FOLDER.path(), &spec) else { return };
    let mut world = World::new(64 << 20);
    let driver: DriverHandle = world.device.clone();
    if let Ok(stack) = spec.build(&millpond::layers(), &driver) {
        if !waits {
            let _ = world.call(&stack, &mut Unstructured::new(calls.get(1..).unwrap_or_default()));
        }
        world.end(stack);
    }
    if files(&spec.all_layers()) > 0 {
        remove_files(FOLDER.path());
    }
}
