//! Tests snapshots that are built here, in the form of each version of PyTorch.

use std::collections::BTreeMap;
use std::rc::Rc;

use millpond_engine::program::Limits;
use millpond_snapshot::explain::{Style, explain, print};
use millpond_snapshot::fidelity::Fidelity;
use millpond_snapshot::recording::{EventKind, Recording};
use proptest::prelude::*;

use crate::pickle::{Py, pickle};
use crate::{imported, read, unknowns};

pub(crate) const BASE: u64 = 0x7f00_0000_0000;

type Fields = Vec<(&'static str, Py)>;

fn dict(fields: impl IntoIterator<Item = (&'static str, Py)>) -> Py {
    Py::Dict(fields.into_iter().collect())
}

pub(crate) fn entry(action: &str, address: u64, size: u64, more: &[(&'static str, Py)]) -> Py {
    let fields: Fields = vec![
        ("action", action.into()),
        ("addr", address.into()),
        ("size", size.into()),
        ("stream", 0.into()),
    ];
    dict(fields.into_iter().chain(more.iter().cloned()))
}

fn block(address: u64, size: u64, requested: u64, state: &str) -> Py {
    dict([
        ("address", address.into()),
        ("size", size.into()),
        ("requested_size", requested.into()),
        ("state", state.into()),
        ("frames", frames(7)),
    ])
}

pub(crate) fn segment(device: u64, address: u64, size: u64, blocks: Vec<Py>) -> Py {
    dict([
        ("device", device.into()),
        ("address", address.into()),
        ("total_size", size.into()),
        ("stream", 0.into()),
        ("segment_type", "small".into()),
        ("segment_pool_id", Py::Tuple(vec![0.into(), 0.into()])),
        ("is_expandable", Py::Bool(false)),
        ("frames", Py::List(Vec::new())),
        ("blocks", Py::List(blocks)),
    ])
}

fn frames(line: u64) -> Py {
    let frame = |name: &str, line: u64| {
        dict([("name", name.into()), ("filename", "train, \"x\";.py".into()), ("line", line.into())])
    };
    Py::List(vec![frame("forward", line), frame("<module>", 1)])
}

pub(crate) fn snapshot(segments: Vec<Py>, traces: Vec<Vec<Py>>, more: Fields) -> Py {
    let traces = traces.into_iter().map(Py::List).collect();
    dict([("segments", Py::List(segments)), ("device_traces", Py::List(traces))].into_iter().chain(more))
}

/// Three blocks: one from before the trace that the trace frees, one that stays, one that comes and goes.
pub(crate) fn events(more: &[(&'static str, Py)]) -> Vec<Py> {
    let place = |number: u64| BASE + number * 1024;
    vec![
        entry("alloc", place(2), 700, more),
        entry("free_requested", place(0), 512, more),
        entry("free_completed", place(0), 512, more),
        entry("alloc", place(0), 100, more),
        entry("free_requested", place(2), 700, more),
        entry("free_completed", place(2), 700, more),
    ]
}

pub(crate) fn blocks() -> Vec<Py> {
    vec![
        block(BASE, 512, 100, "active_allocated"),
        block(BASE + 512, 512, 99, "inactive"),
        block(BASE + 1024, 1024, 1000, "active_allocated"),
        block(BASE + 2048, (2 << 20) - 2048, 700, "inactive"),
    ]
}

/// A segment in the form of PyTorch 2.0 and before: blocks have no address, but a history.
fn old_segment() -> Py {
    let old_block = |size: u64, state: &str, history: Vec<(u64, u64)>| {
        let history = history.into_iter().map(|(address, size)| {
            dict([("addr", address.into()), ("real_size", size.into()), ("frames", frames(3))])
        });
        let history = Py::List(history.collect());
        dict([("size", size.into()), ("state", state.into()), ("history", history)])
    };
    dict([
        ("device", 0.into()),
        ("address", BASE.into()),
        ("total_size", (2 << 20).into()),
        ("stream", 0.into()),
        ("segment_type", "small".into()),
        (
            "blocks",
            Py::List(vec![
                old_block(512, "active_allocated", vec![(BASE, 100)]),
                old_block(512, "inactive", vec![]),
                old_block(1024, "active_allocated", vec![(BASE + 1024, 1000)]),
                old_block((2 << 20) - 2048, "inactive", vec![(BASE + 2048, 700)]),
            ]),
        ),
    ])
}

fn settings() -> Py {
    dict([
        ("PYTORCH_CUDA_ALLOC_CONF", "a:1".into()),
        ("garbage_collection_threshold", Py::Float(0.6)),
        ("max_split_size", Py::Int(-1)),
        ("roundup_power2_divisions", dict([("1", 0.into()), ("2", 4.into())])),
    ])
}

/// millpond's own snapshots name its stacks. Advice about PyTorch's allocator would not help.
#[test]
fn a_snapshot_of_millpond_is_explained_for_millpond() {
    let settings = dict([("millpond", "cuda+pool".into()), ("expandable_segments", Py::Bool(false))]);
    // The last event fails, although half of the segment is free.
    let failure = entry("oom", 0, 3 << 19, &[("device_free", 0.into())]);
    let events = vec![
        entry("segment_alloc", BASE, 2 << 20, &[]),
        entry("alloc", BASE, 1000, &[]),
        entry("alloc", BASE + 4096, 300, &[]),
        entry("free_requested", BASE, 1000, &[]),
        entry("free_completed", BASE, 1000, &[]),
        failure,
    ];
    let kept = vec![block(BASE + 4096, 512, 300, "active_allocated")];
    let segments = vec![segment(0, BASE, 2 << 20, kept)];
    let snapshot = snapshot(segments, vec![events], vec![("allocator_settings", settings)]);
    let recording = imported(&pickle(&snapshot, 4));
    assert_eq!(recording.source().format, "millpond memory snapshot");
    // A block that was freed has only its requested size, because millpond does not round as PyTorch does.
    assert_eq!(recording.moment(1).ledger().active_bytes, 1000);
    let explanation = explain(&recording, None);
    let mut out = Vec::new();
    print(&explanation, Style::new(false), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(explanation.verdict.code.starts_with("oom_") && text.contains("pages=off"), "{text}");
    assert!(text.contains("outside millpond's stack"), "{text}");
    assert!(!text.contains("PyTorch") && !text.contains("PYTORCH") && !text.contains("torch."), "{text}");
}

/// Snapshots of one program, in the form of each version.
fn versions() -> Vec<(&'static str, Py)> {
    let old_segment = old_segment();
    let segments = || vec![segment(0, BASE, 2 << 20, blocks())];
    let stacks = Rc::new(frames(9));
    let with = |more: &[(&'static str, Py)]| {
        let stack = ("frames", Py::Shared(Rc::clone(&stacks)));
        [&[stack], more].concat()
    };
    let time = ("time_us", 1_700_000_000_000_000.into());
    let annotation = |stage: &str, time: u64| {
        dict([
            ("stage", stage.into()),
            ("name", "step, 1".into()),
            ("device", 0.into()),
            ("time_us", time.into()),
        ])
    };
    let annotations = Py::List(vec![
        annotation("START", 1_699_999_999_999_999),
        annotation("END", 1_700_000_000_000_001),
        dict([("stage", Py::None)]),
    ]);
    vec![
        ("1.13", Py::List(vec![old_segment.clone()])),
        ("2.0", snapshot(vec![old_segment], vec![events(&with(&[]))], vec![])),
        ("2.1", snapshot(segments(), vec![events(&[])], vec![])),
        (
            "2.2",
            snapshot(segments(), vec![vec![], events(&with(std::slice::from_ref(&time))), vec![]], vec![]),
        ),
        (
            "2.4",
            snapshot(
                segments(),
                vec![events(&with(std::slice::from_ref(&time)))],
                vec![("allocator_settings", settings()), ("external_annotations", annotations)],
            ),
        ),
        (
            "2.10",
            snapshot(
                segments(),
                vec![events(&with(&[
                    time.clone(),
                    ("compile_context", "N/A".into()),
                    ("user_metadata", "weights; of, \"x\"\n".into()),
                ]))],
                vec![],
            ),
        ),
        (
            "2.15",
            snapshot(
                segments(),
                vec![events(&with(&[
                    time,
                    ("pool_id", Py::Tuple(vec![0.into(), 3.into()])),
                    ("compile_context", "1/0".into()),
                    ("category", "grads".into()),
                    ("internal_metadata", "x".into()),
                ]))],
                vec![("host_segments", Py::List(vec![Py::None])), ("host_traces", Py::List(vec![]))],
            ),
        ),
    ]
}

#[test]
fn each_version_of_pytorch_is_read_in_each_protocol() {
    for (version, snapshot) in versions() {
        // In one of them, the second device has the events.
        let snapshot = match version {
            "2.2" => on_device_1(snapshot),
            _ => snapshot,
        };
        let first = imported(&pickle(&snapshot, 2));
        for protocol in 3..=5 {
            assert_eq!(imported(&pickle(&snapshot, protocol)), first, "{version} {protocol}");
        }
        let check = first.check().unwrap();
        assert!(check.is_equal(), "{version}: {check:?}");
        assert_eq!((check.state_blocks, check.state_bytes), (2, 1100), "{version}");
        let (sums, has_trace) = (first.sums(), version != "1.13");
        assert_eq!(sums.blocks_before, 2, "{version}");
        assert_eq!((sums.live_blocks, sums.reserved_bytes), (2, Some(2 << 20)), "{version}");
        assert_eq!(sums.peak_live_bytes, if has_trace { 512 + 1000 + 700 } else { 1100 }, "{version}");
        assert_eq!((sums.allocations, sums.frees), if has_trace { (2, 2) } else { (0, 0) }, "{version}");
        assert_eq!(unknowns(&first)[0], if has_trace { "began_late" } else { "no_trace" }, "{version}");
        assert_eq!(unknowns(&first).contains(&"no_times"), ["2.0", "2.1"].contains(&version), "{version}");
        assert_eq!(unknowns(&first).contains(&"no_stacks"), version == "2.1", "{version}");
        assert_eq!(unknowns(&first).contains(&"host_memory"), version == "2.15");
        check_texts(version, &first);
    }
}

/// Checks the texts that only some versions write.
fn check_texts(version: &str, first: &Recording) {
    let tags: Vec<&str> = first.events().filter_map(|event| Some(first.tag(event.tag?))).collect();
    match version {
        "2.4" => {
            let kinds: Vec<EventKind> = first.events().map(|event| event.kind).collect();
            assert_eq!(tags, ["step, 1", "step, 1"]);
            assert_eq!((kinds[3], kinds.last()), (EventKind::PhaseStart, Some(&EventKind::PhaseEnd)));
            let settings = first.settings().iter().map(|(name, value)| format!("{name}={value}"));
            let expected = "PYTORCH_CUDA_ALLOC_CONF=a:1 garbage_collection_threshold=0.6 \
                                max_split_size=-1 \
                                roundup_power2_divisions=1:0,2:4";
            assert_eq!(settings.collect::<Vec<_>>().join(" "), expected);
        }
        "2.10" => assert!(tags.len() == 4 && tags[0] == "weights; of, \"x\"\n", "{tags:?}"),
        "2.15" => {
            assert_eq!(tags[0], "grads | compile 1/0");
            assert_eq!(first.lane(first.event(3).unwrap()).pool, Some((0, 3)));
        }
        _ => assert!(tags.is_empty()),
    }
}

fn on_device_1(mut snapshot: Py) -> Py {
    let Py::Dict(fields) = &mut snapshot else { panic!("a dictionary") };
    fields[0].1 = Py::List(vec![segment(1, BASE, 2 << 20, blocks())]);
    snapshot
}

#[test]
fn an_end_that_is_not_the_state_is_said_and_no_panic() {
    let place = |number: u64| BASE + number * 1024;
    let with = |trace: Vec<Py>, blocks: Vec<Py>| {
        imported(&pickle(&snapshot(vec![segment(0, BASE, 2 << 20, blocks)], vec![trace], vec![]), 4))
    };
    let live = |address, bytes| block(address, 1024, bytes, "active_allocated");
    let cases = [
        (vec![entry("alloc", place(0), 5, &[])], vec![], "live after the last event, but not in the state"),
        (
            vec![entry("alloc", place(0), 5, &[])],
            vec![live(place(0), 6)],
            "has 5 bytes in the events, but 6 bytes in the state",
        ),
        (
            vec![entry("alloc", place(0), 5, &[]), entry("free_completed", place(0), 5, &[])],
            vec![live(place(0), 5)],
            "is in the state, but not live",
        ),
        (
            vec![entry("alloc", place(0), 5, &[]), entry("alloc", place(0), 5, &[])],
            vec![live(place(0), 5)],
            "where a block is live",
        ),
        (
            vec![entry("alloc", place(0), 2000, &[]), entry("alloc", place(1), 5, &[])],
            vec![live(place(0), 2000), live(place(1), 5)],
            "overlaps the block at",
        ),
        (
            vec![entry("free_completed", place(0), 5, &[]), entry("free_completed", place(0), 5, &[])],
            vec![],
            "where no block is live",
        ),
        (
            vec![entry("alloc", place(0), 5, &[]), entry("free_completed", place(7), 5, &[])],
            vec![block(place(0), 512, 5, "active_pending_free")],
            "not in both",
        ),
    ];
    for (trace, blocks, expected) in cases {
        let recording = with(trace, blocks);
        let check = recording.check().unwrap();
        assert!(!check.is_equal(), "{expected}: {check:?}");
        assert!(check.first.as_ref().unwrap().contains(expected), "{expected}: {check:?}");
    }
}

#[test]
fn actions_that_were_skipped_or_are_not_known_are_counted() {
    let state = || vec![segment(0, BASE, 2 << 20, blocks())];
    let is = |entry: &Py, wanted: &str| {
        let Py::Dict(fields) = entry else { panic!("a dictionary") };
        matches!(&fields[0].1, Py::Str(action) if action == wanted)
    };
    for (skipped, code) in [("free_completed", "no_completions"), ("free_requested", "no_requests")] {
        let trace = events(&[]).into_iter().filter(|entry| !is(entry, skipped)).collect();
        let recording = imported(&pickle(&snapshot(state(), vec![trace], vec![]), 4));
        assert!(recording.check().unwrap().is_equal(), "{:?}", recording.check());
        assert!(unknowns(&recording).contains(&code), "{:?}", unknowns(&recording));
        assert_eq!(recording.sums().frees, 2);
    }
    let odd = [
        entry("workspace_snapshot", 0, 0, &[]),
        entry("teleport\u{1b}[2J", 1, 2, &[]),
        entry("teleport\u{1b}[2J", 1, 2, &[]),
        entry("snapshot", 0, 0, &[]),
        dict([("action", "alloc".into())]),
        Py::None,
        dict([("size", 1.into())]),
        entry("alloc", 0, 512, &[]),
        entry("segment_free", BASE + (1 << 30), 4096, &[]),
        dict([
            ("action", "oom".into()),
            ("size", 77.into()),
            ("stream", 0.into()),
            ("device_free", 5.into()),
        ]),
    ];
    let trace = [events(&[]), odd.to_vec()].concat();
    let recording = imported(&pickle(&snapshot(state(), vec![trace], vec![]), 4));
    assert!(recording.check().unwrap().is_equal(), "{:?}", recording.check());
    let texts: Vec<&str> = recording.unknowns().iter().map(|unknown| unknown.text.as_str()).collect();
    for text in [
        "2 trace events with the unknown action `teleport\\u{1b}[2J` were left out",
        "4 items that PyTorch never writes (event, segment or block) were left out",
    ] {
        assert!(texts.contains(&text), "no `{text}` in {texts:?}");
    }
    // A segment that existed before, and was given back.
    assert_eq!(recording.sums().peak_reserved_bytes, Some((2 << 20) + 4096));
    assert_eq!(recording.sums().failures, 1);
}

#[test]
fn phases_of_2024_and_numbers_of_64_bits_are_read() {
    let frame = |name: &str| {
        let line = Py::Int(u64::MAX.into());
        Py::List(vec![dict([("name", name.into()), ("filename", "epoch".into()), ("line", line)])])
    };
    let trace = vec![
        entry("user_defined", 0, 0, &[("frames", frame("START"))]),
        entry("alloc", u64::MAX - 4095, 512, &[("frames", frame("f"))]),
        entry("user_defined", 0, 0, &[("frames", frame("END"))]),
    ];
    let blocks = vec![block(u64::MAX - 4095, 512, 512, "active_allocated")];
    let segments = vec![segment(0, u64::MAX - 4095, 4096, blocks)];
    let recording = imported(&pickle(&snapshot(segments, vec![trace], vec![]), 4));
    assert!(recording.check().unwrap().is_equal(), "{:?}", recording.check());
    let kinds: Vec<EventKind> = recording.events().map(|event| event.kind).collect();
    let expected =
        [EventKind::SegmentAllocate, EventKind::PhaseStart, EventKind::Allocate, EventKind::PhaseEnd];
    assert_eq!(kinds, expected);
    let event = recording.event(2).unwrap();
    assert_eq!(recording.stack(event.stack.unwrap()).next().unwrap().line, u64::MAX);
    assert_eq!(recording.tag(recording.event(3).unwrap().tag.unwrap()), "epoch");
}

#[test]
fn sizes_that_no_device_has_overflow_nothing() {
    let huge = u64::MAX - 7;
    let blocks = vec![
        block(BASE, huge, huge, "active_allocated"),
        block(BASE + 512, huge, huge, "active_pending_free"),
        block(BASE + 1024, huge, huge, "active_allocated"),
    ];
    let trace = vec![
        entry("free_requested", 5, huge, &[]),
        entry("free_completed", 5, huge, &[]),
        entry("alloc", 9, huge, &[("time_us", Py::Int(u64::MAX.into()))]),
        entry("segment_alloc", 1, huge, &[]),
        entry("segment_unmap", 1000, huge, &[]),
        dict([("action", "oom".into()), ("size", huge.into()), ("device_free", huge.into())]),
    ];
    let segments = vec![segment(0, BASE, huge, blocks), segment(0, BASE + 4096, huge, vec![])];
    let recording = imported(&pickle(&snapshot(segments, vec![trace], vec![]), 4));
    assert!(!recording.check().unwrap().is_equal());
    assert_eq!(recording.sums().peak_live_bytes, u64::MAX);
    let explanation = explain(&recording, Some(u64::MAX));
    assert_eq!(explanation.sums.failures, 1);
    recording.program(Limits::default()).unwrap();
}

#[test]
fn a_trace_of_pytorch_without_segments_is_rounded_as_pytorch_rounds() {
    let trace = vec![entry("alloc", BASE, 100, &[]), entry("alloc", BASE + 1024, 700, &[])];
    let recording = imported(&pickle(&snapshot(vec![], vec![trace], vec![]), 4));
    let ledger = recording.moment(usize::MAX).ledger();
    assert_eq!((ledger.requested_bytes, ledger.active_bytes, ledger.rounding_bytes), (800, 1536, 736));
}

#[test]
fn the_model_of_pytorch_overflows_nothing_where_a_snapshot_is_of_no_device() {
    let fidelity = |trace: Vec<Py>, segments: Vec<Py>| {
        let recording = imported(&pickle(&snapshot(segments, vec![trace], vec![]), 4));
        explain(&recording, None);
        Fidelity::of(&recording, None)
    };
    let whole = || entry("segment_alloc", 2 << 20, 2 << 20, &[]);
    // More bytes than addresses: the driver refuses, and the model reports the difference.
    for bytes in [u64::MAX, 1 << 63, 1 << 62] {
        let trace = vec![whole(), entry("alloc", 2 << 20, 512, &[]), entry("alloc", 1 << 40, bytes, &[])];
        let found = fidelity(trace, vec![]).unwrap();
        assert_eq!((found.allocations, found.same_address), (2, 1));
        assert!(found.first.is_some());
    }
    let end = u64::MAX - 4095;
    for (action, address, bytes) in
        [("segment_alloc", end, 1 << 63), ("segment_map", 1 << 20, 1 << 63), ("segment_unmap", end, 1 << 30)]
    {
        let error = fidelity(vec![whole(), entry(action, address, bytes, &[])], vec![]).unwrap_err();
        assert!(error.contains("which no device has"), "{error}");
    }
    let error = fidelity(vec![whole()], vec![segment(0, end, 1 << 63, vec![])]).unwrap_err();
    assert!(error.contains("which no device has"), "{error}");
}

#[test]
fn pickles_of_other_things_are_named() {
    for (value, expected) in [
        (Py::List(vec![]), "it holds a list"),
        (dict([("state_dict", Py::None), ("epoch", 3.into())]), "with the keys state_dict, epoch"),
        (dict([]), "without the key `segments`"),
        (Py::Float(0.5), "it holds a number"),
        (Py::None, "it holds only None"),
        ("text".into(), "it holds a string"),
        (snapshot(vec![], vec![vec![]], vec![]), "a snapshot without memory"),
    ] {
        let error = read(&pickle(&value, 4)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

/// The steps of a random program: allocate, free, free while another stream waits, take and give back
/// segments.
fn program() -> impl Strategy<Value = (Vec<(u8, u16)>, usize, u8)> {
    (prop::collection::vec((0_u8..8, any::<u16>()), 0..120), 0_usize..60, 2_u8..=5)
}

/// Returns the snapshot of a random program whose first events are lost.
fn snapshot_of(steps: &[(u8, u16)], lost: usize) -> (Py, BTreeMap<u64, (u64, bool)>) {
    let mut live: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut trace = Vec::new();
    let stack = Rc::new(frames(1));
    let mut add = |action: &str, address: u64, size: u64| {
        trace.push(entry(action, address, size, &[("frames", Py::Shared(Rc::clone(&stack)))]));
    };
    for &(step, number) in steps {
        let address = BASE + u64::from(number % 64) * 4096;
        match (step, live.get(&address).copied()) {
            (0..=3, None) => {
                let size = u64::from(number % 4096) + 1;
                add("alloc", address, size);
                live.insert(address, (size, false));
            }
            (4 | 5, Some((size, pending))) => {
                if !pending {
                    add("free_requested", address, size);
                }
                add("free_completed", address, size);
                live.remove(&address);
            }
            (6, Some((size, false))) => {
                add("free_requested", address, size);
                live.insert(address, (size, true));
            }
            _ => {}
        }
    }
    let blocks = (0..64).map(|number| {
        let address = BASE + number * 4096;
        match live.get(&address) {
            Some((size, true)) => block(address, 4096, *size, "active_pending_free"),
            Some((size, false)) => block(address, 4096, *size, "active_allocated"),
            None => block(address, 4096, 5, "inactive"),
        }
    });
    let segments = vec![segment(0, BASE, 64 * 4096, blocks.collect())];
    let trace = trace.split_off(lost.min(trace.len()));
    (snapshot(segments, vec![trace], vec![]), live)
}

/// Opcodes that make plain data, and numbers for those opcodes that take one.
const PLAIN: &[u8] = b"(.N\x88\x89K\x01])}\x85\x86\x87tldaesu\x94q\x00h\x00";

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_program_of_which_any_start_is_lost_leads_to_its_state((steps, lost, protocol) in program()) {
        let (snapshot, live) = snapshot_of(&steps, lost);
        let recording = imported(&pickle(&snapshot, protocol));
        let check = recording.check().unwrap();
        prop_assert!(check.is_equal(), "{:?}", check);
        prop_assert_eq!(recording.sums().live_blocks, live.len() as u64);
        prop_assert_eq!(recording.sums().live_bytes, live.values().map(|(size, _)| size).sum::<u64>());
    }

    #[test]
    fn a_snapshot_with_any_damage_never_panics(
        (steps, lost, protocol) in program(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = pickle(&snapshot_of(&steps, lost).0, protocol);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(recording) = read(&bytes) {
            let mut log = Vec::new();
            recording.write_csv(&mut log).unwrap();
            prop_assert_eq!(&read(&log).unwrap(), &recording);
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let _ = read(&bytes);
        let _ = read(&[&[0x80, 4], bytes.as_slice()].concat());
        let _ = read(&[b"<html>\"gASV", bytes.as_slice()].concat());
        let _ = read(&[&[0x1f, 0x8b], bytes.as_slice()].concat());
    }

    /// Opcodes that make plain data, in any order.
    #[test]
    fn any_plain_opcodes_never_panic(
        codes in prop::collection::vec(prop::sample::select(PLAIN), 0..300),
    ) {
        let _ = read(&[&[0x80, 4], codes.as_slice()].concat());
    }
}
