//! Tests that every adaptor, and every ordered pair of adaptors, passes the conformance suite.

use millpond_core::stack::LayerTable;
use millpond_testkit::conformance::{self, Subject};

fn check(text: &str) {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    let subject = Subject::from_text(text, &table);
    let subject = if text.contains("+pool") { subject } else { subject.hands_on() };
    let report = conformance::run(&subject);
    assert!(report.passed(), "{report}");
}

/// Returns the adaptors as text; each log has its own file.
fn adaptors(directory: &tempfile::TempDir, name: &str) -> Vec<String> {
    let text = |entry: &millpond_core::stack::LayerEntry| match entry.name {
        "logging" => format!("logging:file={}", directory.path().join(name).display()),
        "budget" => format!("budget:name={name},limit=90%"),
        "limiting" => "limiting:limit=90%".to_owned(),
        "aligned" => "aligned:alignment=4KiB,threshold=64KiB".to_owned(),
        "fallback" => "fallback:to=(cuda)".to_owned(),
        // No other thread frees while the suite's thread waits.
        "retry" => "retry:timeout=1us".to_owned(),
        name => name.to_owned(),
    };
    millpond_adaptors::LAYERS.iter().map(text).collect()
}

#[test]
fn every_adaptor() {
    let directory = tempfile::tempdir().unwrap();
    for base in ["cuda", "cuda+pool"] {
        for adaptor in adaptors(&directory, "log.csv") {
            check(&format!("{base}+{adaptor}"));
        }
    }
}

#[test]
fn a_log_written_by_its_own_thread() {
    let directory = tempfile::tempdir().unwrap();
    for base in ["cuda", "cuda+pool"] {
        check(&format!("{base}+logging:file={},flush=async", directory.path().join("log.csv").display()));
    }
}

#[test]
fn every_ordered_pair_of_adaptors() {
    let check_half = |half| {
        let directory = tempfile::tempdir().unwrap();
        for below in adaptors(&directory, "below.csv").into_iter().skip(half).step_by(2) {
            for above in adaptors(&directory, "above.csv") {
                check(&format!("cuda+pool+{below}+{above}"));
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|half| _ = scope.spawn(move || check_half(half))));
}
