//! Tests the model against snapshots of PyTorch 2.11 on an H200.

use std::path::Path;

use super::*;
use crate::import::{self, Options};

/// Returns the limit of the snapshots that were made under one, in bytes; see `make.py`.
fn limit(name: &str) -> Option<u64> {
    match name {
        "garbage" | "retries" | "max_split_retries" | "expandable_retries" => Some(450 << 20),
        "out_of_memory" => Some(600 << 20),
        "fragmented" => Some(800 << 20),
        _ => None,
    }
}

fn snapshot(name: &str) -> Recording {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    import::open(&folder.join(format!("{name}.pickle.gz")), &Options::default()).unwrap()
}

fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let names = std::fs::read_dir(folder).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        Some(name.strip_suffix(".pickle.gz")?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    assert!(names.len() > 25);
    names
}

#[test]
fn the_model_puts_each_block_of_each_snapshot_where_pytorch_put_it() {
    for name in names() {
        let fidelity = Fidelity::of(&snapshot(&name), limit(&name)).unwrap();
        let Fidelity { allocations, same_address, segments, same_segment, first, .. } = &fidelity;
        assert_eq!((same_address, same_segment, first), (allocations, segments, &None), "{name}");
        let Fidelity { given_back, same_given_back, failures, same_failure, .. } = fidelity;
        assert_eq!((same_given_back, same_failure), (given_back, failures), "{name}");
        assert_eq!(fidelity.reserved_share, 1.0, "{name}");
        assert_eq!(fidelity.peak_reserved, fidelity.model_peak_reserved, "{name}");
        let has_begin = !["late", "ring", "state_only"].contains(&name.as_str());
        assert_eq!(fidelity.is_complete, has_begin, "{name}");
        assert!(*allocations > 0 || name == "state_only", "{name}");
    }
}

#[test]
fn where_memory_ends_is_read_from_the_record_if_no_limit_is_given() {
    for name in ["retries", "max_split_retries", "out_of_memory", "fragmented"] {
        let fidelity = Fidelity::of(&snapshot(name), None).unwrap();
        assert_eq!(fidelity.same_address, fidelity.allocations, "{name}");
        assert_eq!(fidelity.same_failure, fidelity.failures, "{name}");
    }
    // Garbage collection is a share of the limit.
    let fidelity = Fidelity::of(&snapshot("garbage"), None).unwrap();
    assert!(fidelity.address_share() < 0.9 && fidelity.first.is_some(), "{fidelity:?}");
    let mut text = Vec::new();
    print(&fidelity, &mut text).unwrap();
    let says_why = |text: &[u8]| String::from_utf8_lossy(text).contains("which is not in the file");
    assert!(fidelity.lacks_limit && says_why(&text));
    let fidelity = Fidelity::of(&snapshot("garbage"), limit("garbage")).unwrap();
    text.clear();
    print(&fidelity, &mut text).unwrap();
    assert!(!fidelity.lacks_limit && !says_why(&text));
}

/// A snapshot, and the model with one altered rule.
type Canary = (&'static str, fn(&mut Settings));

#[test]
fn a_model_with_another_rule_is_found_out() {
    let canaries: [Canary; 9] = [
        ("mixed", |settings| settings.unsplit = 2 << 20),
        ("mixed", |settings| settings.unsplit = 512),
        ("plain", |settings| settings.large_segment = 16 << 20),
        ("max_split", |settings| settings.max_split = u64::MAX),
        ("max_split_retries", |settings| settings.max_non_split_rounding = 0),
        ("roundup", |settings| settings.divisions = [0; 16]),
        ("roundup_list", |settings| settings.divisions = [4; 16]),
        ("garbage", |settings| settings.garbage_collection = 0.0),
        ("expandable", |settings| settings.is_expandable = false),
    ];
    for (name, alter) in canaries {
        let recording = snapshot(name);
        let mut settings = Settings::of(&recording).unwrap();
        settings.limit = limit(name).unwrap_or(u64::MAX);
        let unaltered = Fidelity::with(&recording, settings.clone()).unwrap();
        assert_eq!(unaltered.address_share(), 1.0, "{name}");
        alter(&mut settings);
        let altered = Fidelity::with(&recording, settings.clone()).unwrap();
        assert!(altered.address_share() < 0.99, "{name} with {settings}: {}", altered.address_share());
        assert!(altered.first.is_some(), "{name}");
    }
}

#[test]
fn it_is_printed_with_all_that_differs() {
    let printed = |fidelity: &Fidelity| {
        let mut out = Vec::new();
        print(fidelity, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let mut fidelity = Fidelity::of(&snapshot("out_of_memory"), None).unwrap();
    let text = printed(&fidelity);
    assert!(text.contains("60 of 60 allocations placed at the recorded address (100.0 %)"), "{text}");
    assert!(text.contains("1 of 1 failed request failed"), "{text}");
    assert!(!text.contains("first difference") && !text.contains("guesses"), "{text}");
    fidelity = Fidelity { allocations: 3000, same_address: 2999, is_complete: false, ..fidelity };
    fidelity.first = Some("event 7".to_owned());
    let text = printed(&fidelity);
    assert!(text.contains("(99.9 %)") && text.contains("event 7") && text.contains("guesses"), "{text}");
}
