//! Tests which device of a snapshot is imported.

use millpond_snapshot::explain::explain;
use millpond_snapshot::import::{self, Options};

use crate::built::{BASE, blocks, entry, events, segment, snapshot};
use crate::imported;
use crate::pickle::pickle;

#[test]
fn of_several_devices_the_busiest_is_imported_unless_another_is_asked_for() {
    let segments = vec![
        segment(0, BASE, 2 << 20, vec![]),
        segment(1, BASE, 2 << 20, blocks()),
        segment(3, BASE, 64, vec![]),
    ];
    let bytes = pickle(&snapshot(segments, vec![vec![], events(&[])], vec![]), 4);
    let recording = imported(&bytes);
    assert_eq!(recording.device(), Some(1));
    let others = recording.unknowns().iter().filter(|unknown| unknown.code == "other_device");
    let others: Vec<&str> = others.map(|unknown| unknown.text.as_str()).collect();
    assert_eq!(others.len(), 2);
    assert!(others[0].starts_with("device 0 is also in the file (0 entries, 2MiB reserved)"), "{others:?}");
    let third = import::read("file", bytes.as_slice(), &Options::default().device(Some(3)));
    assert_eq!(third.unwrap().sums().reserved_bytes, Some(64));
    let error = import::read("file", bytes.as_slice(), &Options::default().device(Some(2)));
    assert!(error.unwrap_err().to_string().contains("only of device 0, 1, 3;"));
}

#[test]
fn of_several_devices_the_one_on_which_a_request_failed_is_imported() {
    let segments = vec![segment(0, BASE, 2 << 20, vec![]), segment(1, BASE, 2 << 20, blocks())];
    let failed = entry("oom", 0, 9 << 30, &[("device_free", 5.into())]);
    let two = |first, second| imported(&pickle(&snapshot(segments.clone(), vec![first, second], vec![]), 4));
    // Device 1 has more events, and device 0 has the failure.
    let recording = two(vec![failed.clone()], events(&[]));
    assert_eq!(recording.device(), Some(0));
    assert!(explain(&recording, None).verdict.code.starts_with("oom_"));
    let other = recording.unknowns().iter().find(|unknown| unknown.code == "other_device").unwrap();
    assert!(!other.text.contains("failed request"), "{}", other.text);
    // If requests failed on both devices, the busiest one counts, and the other failure is told.
    let mut busy = events(&[]);
    busy.push(failed.clone());
    let recording = two(vec![failed], busy);
    assert_eq!(recording.device(), Some(1));
    let other = recording.unknowns().iter().find(|unknown| unknown.code == "other_device").unwrap();
    let text = "device 0 is also in the file (1 entry, 2MiB reserved, 1 failed request), but was left out";
    assert!(other.text.starts_with(text), "{}", other.text);
}
