//! Tests the ledger at any moment, and the results of `explain`.

use std::fmt::Write;

use millpond_snapshot::explain::{Diagnosis, Explanation, Occasion, Style, explain, print};
use millpond_snapshot::recording::{EventKind, Recording};

use crate::imported;
use crate::snapshots::{facts, snapshot};

const MIB: u64 = 1 << 20;

#[test]
fn the_ledger_at_the_end_has_the_sums_that_pytorch_counted() {
    for (name, facts) in facts() {
        if name == "out_of_memory" {
            continue; // taken in the middle of the program
        }
        let recording = snapshot(&name);
        let ledger = recording.moment(usize::MAX).ledger();
        let fact = |key: &str| facts[key].as_u64().unwrap();
        assert_eq!(ledger.active_bytes, fact("active_bytes.all.current"), "{name}");
        assert_eq!(ledger.active_bytes - ledger.held_bytes, fact("allocated_bytes.all.current"), "{name}");
        assert_eq!(ledger.reserved_bytes, Some(fact("reserved_bytes.all.current")), "{name}");
        // PyTorch counts no piece of an expandable segment as split.
        if !name.starts_with("expandable") {
            assert_eq!(ledger.pinned_bytes, fact("inactive_split_bytes.all.current"), "{name}");
        }
    }
}

#[test]
fn what_is_reserved_is_active_wholly_free_or_pinned_at_each_moment() {
    for (name, _) in facts() {
        let recording = snapshot(&name);
        for number in (0..recording.len()).step_by(recording.len() / 20 + 1) {
            let ledger = recording.moment(number).ledger();
            let reserved = ledger.reserved_bytes.unwrap();
            let sum = ledger.active_bytes + ledger.wholly_free_bytes + ledger.pinned_bytes;
            assert_eq!(sum, reserved, "{name} after {number}: {ledger:?}");
            assert!(ledger.held_bytes <= ledger.active_bytes, "{name} after {number}");
            assert!(ledger.largest_free_bytes <= ledger.unused_bytes(), "{name} after {number}");
        }
    }
}

#[test]
fn the_most_that_is_active_at_any_moment_is_what_pytorch_counted() {
    // A snapshot does not hold the rounding of freed blocks; it follows from PyTorch's default rules.
    for name in ["small", "held", "streams", "fragmented", "graph", "plain"] {
        let recording = snapshot(name);
        let active = (0..recording.len()).map(|number| recording.moment(number).ledger().active_bytes);
        let fact = facts()[name]["active_bytes.all.peak"].as_u64().unwrap();
        assert_eq!(active.max(), Some(fact), "{name}");
    }
}

#[test]
fn an_allocator_that_is_not_pytorchs_rounds_nothing_that_is_known() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\n\
                1,0,allocate,0x1000,100,0\n1,0,allocate,0x1100,300,0\n1,0,allocate,0x1300,1,0\n";
    let ledger = imported(text.as_bytes()).moment(usize::MAX).ledger();
    assert_eq!((ledger.active_bytes, ledger.requested_bytes, ledger.rounding_bytes), (401, 401, 0));
    assert_eq!(ledger.reserved_bytes, None);
}

/// A log with segments: each event is an action, an address in MiB, and a size in MiB.
fn log(events: &[(&str, u64, u64)]) -> Recording {
    let mut text = "Thread,Time,Action,Pointer,Size,Stream,Alignment,Stack,Notes\n".to_owned();
    let mut notes = "source PyTorch%20memory%20snapshot;frame 1 7 keep train.py;stack 1 1".to_owned();
    for &(action, place, size) in events {
        let (address, bytes) = ((1 << 40) + place * MIB, size * MIB);
        match action {
            "allocate" | "free" => {
                writeln!(text, "0,0,{action},{address:#x},{bytes},0,256,1,{notes}").unwrap();
                notes.clear();
            }
            "allocate failure" => {
                writeln!(text, "0,0,{action},(nil),{bytes},0,256,,{notes}").unwrap();
                notes = format!("device_free 0x0 {} 0 0 - - - 0 -", place * MIB);
            }
            "phase_end" => {
                let separator = if notes.is_empty() { "" } else { ";" };
                write!(notes, "{separator}tag 1 step;phase_end 0x0 0 0 0 - - - 0 1").unwrap();
            }
            note => {
                let separator = if notes.is_empty() { "" } else { ";" };
                write!(notes, "{separator}{note} {address:#x} {bytes} 0 0 - - 0:{} 0 -", place / 1000)
                    .unwrap();
            }
        }
    }
    writeln!(text, "0,0,allocate failure,(nil),0,0,,,{notes}").unwrap();
    imported(text.as_bytes())
}

#[track_caller]
fn only(explanation: &Explanation) -> &Diagnosis {
    let [diagnosis] = explanation.diagnoses.as_slice() else { panic!("{:?}", explanation.diagnoses) };
    assert!(!diagnosis.what.is_empty() && !diagnosis.evidence.is_empty() && !diagnosis.fixes.is_empty());
    diagnosis
}

#[test]
fn a_failed_request_has_the_cause_that_the_ledger_shows() {
    let segments = [("segment_alloc", 0, 20), ("segment_alloc", 100, 20)];
    // 30 MiB are free in two pieces that two small blocks pin.
    let pinned = [("allocate", 0, 5), ("allocate", 100, 5)];
    let case = |events: &[&[(&str, u64, u64)]]| explain(&log(&events.concat()), Some(200 * MIB));

    let explanation = case(&[&segments, &pinned, &[("allocate failure", 1, 25)]]);
    let diagnosis = only_failure(&explanation);
    assert_eq!(diagnosis.code, "fragmentation");
    assert!(
        diagnosis.evidence.iter().any(|line| line.contains("2 blocks of 10MiB together keep 30MiB in 2 seg"))
    );
    assert_eq!(diagnosis.holders[0].stack, ["keep (train.py:7)"]);
    assert_eq!((diagnosis.holders[0].bytes, diagnosis.holders[0].blocks), (10 * MIB, 2));
    assert!(diagnosis.fixes[0].contains("expandable_segments:True"));
    let failure = explanation.moments.iter().find(|moment| moment.occasion == Occasion::Failure).unwrap();
    assert_eq!((failure.wanted_bytes, failure.device_free_bytes), (Some(25 * MIB), Some(MIB)));
    assert_eq!(failure.outside_bytes, Some(159 * MIB));
    assert_eq!(failure.ledger.largest_free_bytes, 15 * MIB);

    let explanation = case(&[&segments, &pinned, &[("allocate failure", 1, 32)]]);
    assert_eq!(only_failure(&explanation).code, "does_not_fit");
    let explanation = case(&[&segments, &pinned, &[("allocate failure", 3, 32)]]);
    assert_eq!(only_failure(&explanation).code, "fragmentation");
    let explanation = case(&[&segments, &pinned, &[("allocate failure", 80, 40)]]);
    assert_eq!(only_failure(&explanation).code, "limit");
    // A request for 2 MiB makes PyTorch ask the driver for 20 MiB. The device has 14 MiB, and no memory is
    // unused.
    let full = [("segment_alloc", 3000, 30), ("allocate", 3000, 30)];
    let explanation = case(&[&full, &[("allocate failure", 14, 2)]]);
    assert_eq!(only_failure(&explanation).code, "does_not_fit");
    let private = [("segment_alloc", 2000, 50)];
    let explanation = case(&[&segments, &pinned, &private, &[("allocate failure", 1, 40)]]);
    let diagnosis = only_failure(&explanation);
    assert_eq!(diagnosis.code, "other_pool");
    let what = "50MiB were free, but in 1 private pool, so this request could not use them";
    assert_eq!(diagnosis.what, what);
    assert_eq!(diagnosis.evidence[2], "these free segments were reserved by:");
}

/// Each step allocates a larger tensor, and then frees the one before.
#[test]
fn a_tensor_that_grows_by_copying_is_no_leak() {
    let steps = |keeps: bool| {
        let mut events = vec![("allocate", 1000, 1)];
        for step in 1..150 {
            let (old, new) = (1000 + 500 * ((step - 1) % 2), 1000 + 500 * (step % 2));
            events.extend([("allocate", new, step + 1), ("free", old, step)]);
            if keeps {
                events.push(("allocate", 5000 + step, 1));
            }
        }
        explain(&log(&events), None)
    };
    let explanation = steps(false);
    let diagnosis = explanation.diagnoses.last().unwrap();
    let what = "a tensor grows by copying (train.py:7 in keep, by 1MiB a step), and the old and the new one \
                are live together (149MiB and 150MiB)";
    assert_eq!((diagnosis.code, diagnosis.what.as_str()), ("grows_by_copying", what));
    assert!(steps(true).diagnoses.iter().all(|diagnosis| diagnosis.code != "grows_by_copying"));
}

/// Returns the diagnosis of the only failed request.
fn only_failure(explanation: &Explanation) -> &Diagnosis {
    let diagnosis = &explanation.diagnoses[0];
    let others = explanation.diagnoses[1..].iter().map(|other| other.code);
    assert!(others.clone().all(|code| code == "reserved_beyond_need"), "{:?}", others.collect::<Vec<_>>());
    diagnosis
}

#[test]
fn a_leak_is_memory_that_grows_with_each_step() {
    let step = |number: u64, kept: u64| {
        let mut events = vec![("allocate", 1000 * number, 50), ("allocate", 1000 * number + 100, kept)];
        events.extend([("free", 1000 * number, 50), ("phase_end", 0, 0)]);
        events
    };
    let leaking: Vec<_> = (1..8).flat_map(|number| step(number, 3)).collect();
    let explanation = explain(&log(&leaking), None);
    let diagnosis = only(&explanation);
    assert_eq!((diagnosis.code, diagnosis.holders[0].bytes), ("leak", 3 * 3 * MIB));
    assert_eq!(
        diagnosis.what,
        "live memory grew in each of 4 phases `step`, by 12MiB in all: possibly a leak"
    );
    let kept = |later: &str| {
        format!("3 blocks of 9MiB were allocated before the last of them and live at its end; {later}")
    };
    assert_eq!(diagnosis.evidence[1], kept("none of these blocks was freed before the file ends"));
    // The program may free these blocks later.
    let freed = [leaking.as_slice(), &[("free", 5100, 3), ("snapshot", 0, 0)]].concat();
    assert_eq!(only(&explain(&log(&freed), None)).evidence[1], kept("1 of these blocks was freed later"));
    let steady: Vec<_> = (1..8).flat_map(|number| step(number, if number < 4 { 3 } else { 0 })).collect();
    assert_eq!(explain(&log(&steady), None).diagnoses, []);
}

#[test]
fn settings_that_the_allocator_did_not_take_or_that_change_nothing_are_named() {
    let explained = |asked: &str, taken: &[(&str, &str)], more: &str| {
        let mut notes = format!("source test;setting PYTORCH_CUDA_ALLOC_CONF {}", asked.replace(',', "%2C"));
        for (name, value) in taken {
            write!(notes, ";setting {name} {value}").unwrap();
        }
        let head = "Thread,Time,Action,Pointer,Size,Stream,Alignment,Notes";
        let segment = "segment_alloc 0x10000000000 20971520 0 0 - - 0:0 0 -";
        let row = format!("0,0,allocate,0x10000000000,3145728,0,256,{notes};{segment}");
        explain(&imported(format!("{head}\n{row}\n{more}").as_bytes()), None)
    };
    let is_named = |explanation: &Explanation, text: &str| {
        let of_settings = |diagnosis: &&Diagnosis| diagnosis.code == "settings_without_effect";
        let found = explanation.diagnoses.iter().find(of_settings);
        found.is_some_and(|diagnosis| diagnosis.evidence.iter().any(|line| line.contains(text)))
    };
    let none = [("max_split_size", "-1"), ("expandable_segments", "False")];
    let late = explained("max_split_size_mb:128,expandable_segments:True", &none, "");
    assert!(is_named(&late, "`max_split_size_mb:128` was in the environment"), "{:?}", late.diagnoses);
    assert!(is_named(&late, "`expandable_segments:True` was in the environment"));
    let large = explained("max_split_size_mb:128", &[("max_split_size", "134217728")], "");
    assert!(is_named(&large, "the largest segment has 20MiB"), "{:?}", large.diagnoses);
    let fixed = explained("expandable_segments:True", &[("expandable_segments", "True")], "");
    assert!(is_named(&fixed, "all segments have a fixed size"));
    let four = [("roundup_power2_divisions", "1:4%2C2:4%2C4:4%2C8:4")];
    assert!(!is_named(&explained("roundup_power2_divisions:4", &four, ""), "every request is rounded"));
    let row = "0,0,allocate,0x20000000000,2621441,0,256,\n";
    let list = "roundup_power2_divisions:[1:4,2:1,4:1,8:1]";
    let table = [("roundup_power2_divisions", "1:4%2C2:1%2C4:1%2C8:1")];
    assert!(is_named(
        &explained(list, &table, row),
        "without this setting, every request is rounded to the same size"
    ));
    // All settings of the GPU snapshots had an effect, except for sizes that no block has.
    for (name, facts) in facts() {
        let has_idle = explain(&snapshot(&name), None)
            .diagnoses
            .iter()
            .any(|diagnosis| diagnosis.code == "settings_without_effect");
        assert_eq!(has_idle, name == "roundup_list", "{name}: {}", facts["conf"]);
    }
}

#[test]
fn a_size_of_the_device_that_contradicts_the_file_is_refused() {
    let full = [("segment_alloc", 3000, 30), ("allocate", 3000, 30), ("allocate failure", 14, 20)];
    let explanation = explain(&log(&full), None);
    assert_eq!(explanation.check_device_bytes(44 * MIB), Ok(()));
    let error = explanation.check_device_bytes(43 * MIB).unwrap_err();
    let why = "a device with 43MiB contradicts the file: at a failed request, the allocator had or could \
               take 44MiB; give the size of the device on which the program ran";
    assert!(error.starts_with(why), "{error}");
    // What was reserved or live at one time also proves a size.
    let half = [("segment_alloc", 3000, 30), ("allocate", 3000, 15)];
    let error = explain(&log(&half), None).check_device_bytes(29 * MIB).unwrap_err();
    assert!(error.contains("30MiB were reserved at one time"), "{error}");
    let text = format!("{}1,0,allocate,0x100,1000,0\n", crate::HEADER);
    let error = explain(&imported(text.as_bytes()), None).check_device_bytes(999).unwrap_err();
    assert!(error.contains("1000B were live at one time"), "{error}");
    // A file that contradicts itself proves nothing.
    let text = format!("{text}1,0,allocate,0x100,1000,0\n");
    assert_eq!(explain(&imported(text.as_bytes()), None).check_device_bytes(999), Ok(()));
}

#[test]
fn a_program_does_not_fit_into_what_it_could_get_and_the_device_is_not_mentioned() {
    let full = [("segment_alloc", 3000, 30), ("allocate", 3000, 30), ("allocate failure", 14, 20)];
    let what = &explain(&log(&full), None).diagnoses[0].what;
    let expected = "the program does not fit: with 30MiB in use, 14MiB were left in the allocator and on the \
                    device for a request for 20MiB: 6MiB were missing";
    assert_eq!(what, expected);
    // PyTorch serves small requests from large segments.
    let small = [&full[..2], &[("allocate failure", 14, 2)]].concat();
    let what = &explain(&log(&small), None).diagnoses[0].what;
    assert!(what.contains("for a request for 2MiB, which needs a segment of 20MiB: 6MiB were"), "{what}");
}

/// Free memory on the device and in the allocator may suffice only together.
#[test]
fn pieces_of_free_memory_are_named_with_their_places() {
    let events = [("segment_alloc", 0, 20), ("allocate", 0, 10), ("allocate failure", 20, 25)];
    let diagnosis = &explain(&log(&events), None).diagnoses[0];
    let expected = "10MiB in the allocator and 20MiB on the device were free, but in pieces that were too \
                    small: fragmentation";
    assert_eq!((diagnosis.code, diagnosis.what.as_str()), ("fragmentation", expected));
}

#[test]
fn issue_32_json_counts_events_from_one_as_the_text_does() {
    let full = [("segment_alloc", 3000, 30), ("allocate", 3000, 30), ("allocate failure", 14, 20)];
    let explanation = explain(&log(&full), None);
    assert_eq!(explanation.sums.peak_event, 1);
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!((&json["version"], &json["sums"]["peak_event"]), (&3.into(), &2.into()));
    let events: Vec<u64> =
        json["moments"].as_array().unwrap().iter().map(|moment| moment["event"].as_u64().unwrap()).collect();
    assert_eq!(events, [2, 3, 3]);
    let what = json["diagnoses"][0]["evidence"][0].as_str().unwrap();
    assert!(what.starts_with("at event 3, "), "{what}");
}

#[test]
fn a_problem_of_a_repeated_request_is_printed_once() {
    let rows =
        "1,0,allocate,0x100,1000,0\n1,0,allocate failure,(nil),99,0\n1,0,allocate failure,(nil),99,0\n";
    let explanation = explain(&imported(format!("{}{rows}", crate::HEADER).as_bytes()), None);
    assert_eq!(explanation.diagnoses.len(), 2);
    let mut text = Vec::new();
    print(&explanation, Style::default(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.matches("\nunexplained: ").count(), 1, "{text}");
    assert!(text.contains("  at event 2, a request") && text.contains("  at event 3, a request"), "{text}");
}

#[test]
fn numbers_that_the_file_does_not_tell_are_null() {
    let pieces = [
        "rounding_bytes",
        "held_bytes",
        "wholly_free_bytes",
        "pinned_bytes",
        "largest_free_bytes",
        "segments",
    ];
    let json = |recording: &Recording| serde_json::to_value(explain(recording, None)).unwrap();
    let log_of_rmm = imported(format!("{}1,0,allocate,0x100,1000,0\n", crate::HEADER).as_bytes());
    let message = imported(&crate::texts::file("oom_old.txt"));
    for recording in [&log_of_rmm, &message] {
        let moment = &json(recording)["moments"][0];
        assert!(pieces.iter().all(|name| moment[name].is_null()), "{moment}");
        assert!(moment["active_bytes"].is_u64(), "{moment}");
    }
    let moment = &json(&snapshot("small"))["moments"][0];
    assert!(pieces.iter().all(|name| moment[name].is_u64()), "{moment}");
}

/// The free bytes of the device belong to the failed request, and are no event of their own.
#[test]
fn only_what_the_program_did_is_an_event() {
    let recording = snapshot("out_of_memory");
    let failed: Vec<usize> = (0..recording.len())
        .filter(|&number| recording.event(number).unwrap().kind == EventKind::AllocateFailure)
        .collect();
    assert_eq!(failed.len(), 1);
    assert!(recording.device_free_bytes(failed[0]).is_some());
    assert_eq!((recording.len(), recording.sums().events), (145, 145));
    assert!((0..recording.len()).all(|at| at == failed[0] || recording.device_free_bytes(at).is_none()));
}

#[test]
fn snapshots_of_a_gpu_are_explained() {
    let codes = |name: &str| -> Vec<&str> {
        explain(&snapshot(name), None).diagnoses.iter().map(|diagnosis| diagnosis.code).collect()
    };
    assert_eq!(codes("out_of_memory"), ["limit"]);
    assert!(codes("streams").contains(&"held_by_streams"));
    assert_eq!(codes("held"), ["held_by_streams"]);
    // Their peak may have been before the trace.
    for name in ["state_only", "ring"] {
        assert!(!codes(name).contains(&"reserved_beyond_need"), "{name}");
    }
    assert!(codes("max_split").contains(&"reserved_beyond_need"));
    assert_eq!(codes("fragmented"), ["fragmentation"]);
    let held = explain(&snapshot("held"), None);
    assert_eq!(held.moments.last().unwrap().ledger.held_bytes, 6 * MIB);
}
