//! Tests snapshots that PyTorch 2.11 wrote on an H200: see `tests/snapshots/make.py`.

use std::path::{Path, PathBuf};

use millpond_engine::program::Limits;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::{Event, EventKind, Recording};
use serde_json::Value;

use crate::{imported, read, unknowns};

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

pub(crate) fn snapshot(name: &str) -> Recording {
    imported(&std::fs::read(folder().join(format!("{name}.pickle.gz"))).unwrap())
}

/// Returns PyTorch's own counts for each snapshot.
pub(crate) fn facts() -> serde_json::Map<String, Value> {
    let text = std::fs::read_to_string(folder().join("facts.json")).unwrap();
    let Value::Object(mut facts) = serde_json::from_str(&text).unwrap() else { panic!("no object") };
    facts.retain(|name, _| folder().join(format!("{name}.pickle.gz")).exists());
    assert!(facts.len() > 25, "{}", facts.len());
    facts
}

#[test]
fn each_snapshot_leads_to_its_state_and_to_the_sums_that_pytorch_counted() {
    for (name, facts) in facts() {
        let recording = snapshot(&name);
        let check = recording.check().unwrap();
        assert!(check.is_equal(), "{name}: {check:?}");
        assert!(check.state_blocks > 0, "{name}");
        let (sums, fact) = (recording.sums(), |key: &str| facts[key].as_u64().unwrap());
        // The snapshot of the failed request was taken in the middle of the program.
        if name != "out_of_memory" {
            assert_eq!(sums.reserved_bytes, Some(fact("reserved_bytes.all.current")), "{name}");
        }
        // A full ring has lost events, and a state never had them.
        if !["ring", "state_only"].contains(&name.as_str()) {
            assert_eq!(sums.peak_live_bytes, fact("requested_bytes.all.peak"), "{name}");
            assert_eq!(sums.peak_reserved_bytes, Some(fact("reserved_bytes.all.peak")), "{name}");
        }
        assert_eq!(sums.failures, fact("num_ooms"), "{name}");
        let count = |action: &str| facts["actions"].get(action).and_then(Value::as_u64).unwrap_or(0);
        if name != "out_of_memory" {
            assert_eq!(sums.allocations, count("alloc"), "{name}");
            assert_eq!(sums.frees, count("free_completed"), "{name}");
        }
    }
}

#[test]
fn each_protocol_and_each_page_of_the_viewer_is_the_same_recording() {
    let small = snapshot("small");
    for protocol in 2..=5 {
        assert_eq!(snapshot(&format!("protocol_{protocol}")), small);
    }
    for page in ["trace_plot", "segment_plot"] {
        assert_eq!(imported(&std::fs::read(folder().join(format!("{page}.html.gz"))).unwrap()), small);
    }
}

#[test]
fn a_program_of_a_snapshot_has_its_blocks() {
    let recording = snapshot("late");
    let program = recording.program(Limits::default()).unwrap();
    let (sums, summary) = (recording.sums(), program.summary());
    assert_eq!(summary.peak_live_bytes, sums.peak_live_bytes);
    assert!(summary.flaws.sentences().is_empty(), "{:?}", summary.flaws);
    assert_eq!((summary.leaked_blocks, summary.leaked_bytes), (sums.live_blocks, sums.live_bytes));
    assert!(sums.blocks_before > 100);
    assert!(summary.not_known.iter().any(|text| text.contains("began late")), "{:?}", summary.not_known);
}

#[test]
fn what_a_snapshot_cannot_say_is_said() {
    for (name, code) in [
        ("ring", "ring_wrapped"),
        ("late", "began_late"),
        ("state_only", "no_trace"),
        ("no_frames", "no_stacks"),
        ("skipped", "no_requests"),
        ("streams", "stream_order"),
        ("plain", "other_allocators"),
    ] {
        let recording = snapshot(name);
        assert!(unknowns(&recording).contains(&code), "{name}: {:?}", unknowns(&recording));
    }
    assert_eq!(unknowns(&snapshot("small")), ["other_allocators", "threads"]);
    let lost = |name| snapshot(name).events().filter(|event| event.kind == EventKind::Lost).count();
    assert_eq!((lost("ring"), lost("late"), lost("plain")), (1, 0, 0));
}

#[test]
fn frees_in_two_phases_phases_pools_settings_tags_and_failures_are_kept() {
    let count = |recording: &Recording, kind| recording.events().filter(|event| event.kind == kind).count();
    let held = snapshot("held");
    assert_eq!(count(&held, EventKind::FreeRequested), 2);
    assert_eq!(count(&held, EventKind::Free), 0);
    // Only blocks that waited for another stream are freed in two phases.
    let streams = snapshot("streams");
    assert!(count(&streams, EventKind::FreeRequested) > 10);
    assert_eq!(count(&snapshot("plain"), EventKind::FreeRequested), 0);

    let plain = snapshot("plain");
    assert_eq!((count(&plain, EventKind::PhaseStart), count(&plain, EventKind::PhaseEnd)), (12, 12));
    let first = plain.events().find(|event| event.kind == EventKind::PhaseStart).unwrap();
    assert_eq!(plain.tag(first.tag.unwrap()), "step 0");
    assert!(plain.events().filter_map(|event| event.time()).is_sorted());
    let frames: Vec<_> = plain.stack(plain.event(0).unwrap().stack.unwrap()).collect();
    assert_eq!((frames[0].function, frames[0].line), ("<lambda>", 1097));

    let graph = snapshot("graph");
    let pools: std::collections::BTreeSet<_> =
        graph.events().filter_map(|event| graph.lane(event).pool).collect();
    assert!(pools.len() > 1 && pools.contains(&(0, 0)), "{pools:?}");

    let metadata = snapshot("metadata");
    let tags: Vec<&str> = metadata.events().filter_map(|event| Some(metadata.tag(event.tag?))).collect();
    assert_eq!(tags, ["weights", "weights", "<script>alert(1)</script>", "weights"]);

    let conf = |recording: &Recording| {
        let conf = recording.settings().iter().find(|(name, _)| name == "PYTORCH_CUDA_ALLOC_CONF");
        conf.map(|(_, value)| value.clone())
    };
    assert_eq!(conf(&snapshot("max_split")).as_deref(), Some("max_split_size_mb:21"));

    let failed = snapshot("out_of_memory");
    let is_failure = |(_, event): &(usize, &Event)| event.kind == EventKind::AllocateFailure;
    let (number, failure) = failed.events().enumerate().find(is_failure).unwrap();
    assert_eq!(failure.bytes, 300 << 20);
    assert!(failed.device_free_bytes(number) > Some(0));
}

#[test]
fn blocks_that_are_live_at_the_end_have_the_size_that_the_allocator_rounded_to() {
    let recording = snapshot("small");
    let known: Vec<(u64, u64)> = recording
        .events()
        .enumerate()
        .filter_map(|(number, event)| Some((event.bytes, recording.rounded_bytes(number)?)))
        .collect();
    assert_eq!(known.len() as u64, recording.check().unwrap().state_blocks);
    assert!(known.iter().all(|(bytes, rounded)| *rounded == bytes.next_multiple_of(512)), "{known:?}");
}

#[test]
fn a_snapshot_that_is_cut_off_anywhere_is_refused_with_a_sentence() {
    let name = folder().join("protocol_5.pickle.gz");
    let mut whole = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(std::fs::File::open(name).unwrap());
    std::io::Read::read_to_end(&mut unpacked, &mut whole).unwrap();
    for end in 2..whole.len() {
        let error = read(&whole[..end]).unwrap_err();
        assert!(error.contains("ends early") || error.contains("ends with"), "{end}: {error}");
    }
    assert!(read(&whole).is_ok());
}

#[test]
fn a_device_is_chosen_and_the_others_are_named() {
    let import = |device| {
        let options = Options::default().device(device);
        import::open(&folder().join("small.pickle.gz"), &options)
    };
    assert_eq!(import(Some(0)).unwrap().device(), Some(0));
    let error = import(Some(3)).unwrap_err().to_string();
    assert!(error.contains("has no memory of device 3, only of device 0"), "{error}");
}

/// Files of a known format are never taken for another one.
#[test]
fn each_file_of_the_tests_is_read_as_its_own_format() {
    for (name, _) in facts() {
        assert_eq!(snapshot(&name).source().format, "PyTorch memory snapshot", "{name}");
    }
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/logs");
    for entry in std::fs::read_dir(logs).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(import::is_for_log_reader(&bytes[..bytes.len().min(256 << 10)]), "{}", path.display());
        let recording = import::open(&path, &Options::default()).unwrap();
        assert_eq!(recording.source().format, "RMM log", "{}", path.display());
    }
    for (name, bytes) in crate::texts::files() {
        let format = match name.split(['_', '.']).next().unwrap() {
            "oom" => "PyTorch out-of-memory message",
            "bfc" | "xla" => "BFC allocator's log",
            "leaks" => "compute-sanitizer leak report",
            "trace" => "torch.profiler trace",
            "memory" | "two" => "JAX device memory profile",
            _ if ["rmm_debug.txt", "rmm_trace.txt"].contains(&name.as_str()) => "RMM debug log",
            _ => "RMM log",
        };
        assert_eq!(imported(&bytes).source().format, format, "{name}");
        assert!(!import::is_for_log_reader(&bytes), "{name}");
    }
}
