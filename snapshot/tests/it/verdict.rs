//! Tests the verdict on files that people have: logs that fail, break off, begin late or contradict
//! themselves, and snapshots of a GPU.

use std::io::Write;

use millpond_snapshot::explain::{Explanation, Style, explain, print};
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::Recording;

use crate::snapshots::snapshot;
use crate::{HEADER, imported, read, unknowns};

const GIB: u64 = 1 << 30;

/// Makes a log of rows with an action, an address and a size.
fn log(rows: &[(&str, u64, u64)]) -> Recording {
    let row = |&(action, address, bytes): &(&str, u64, u64)| match action {
        "allocate failure" => format!("1,10:00:00.000001,{action},(nil),{bytes},0\n"),
        _ => format!("1,10:00:00.000001,{action},{address:#x},{bytes},0\n"),
    };
    imported(format!("{HEADER}{}", rows.iter().map(row).collect::<String>()).as_bytes())
}

fn verdict(recording: &Recording, device_bytes: Option<u64>) -> (&'static str, String) {
    let verdict = explain(recording, device_bytes).verdict;
    (verdict.code, verdict.sentence)
}

fn text(explanation: &Explanation) -> String {
    let mut out = Vec::new();
    print(explanation, Style::new(false), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_log_that_ends_in_a_failed_request_says_so_with_what_was_live() {
    let recording = log(&[
        ("allocate", 0x1000, GIB),
        ("allocate", 0x2000, 7),
        ("free", 0x2000, 7),
        ("allocate failure", 0, 3 * GIB),
    ]);
    let (code, sentence) = verdict(&recording, None);
    assert_eq!(code, "oom_unexplained");
    assert!(sentence.contains("a request for 3GiB failed at event 4 with 1GiB live"), "{sentence}");
    assert!(sentence.contains("the size of the device is not known"), "{sentence}");
    for (device, expected, part) in [
        (2 * GIB, "oom_beyond_device", "the device has only 2GiB in all"),
        (3 * GIB, "oom_does_not_fit", "4GiB are needed, and the device has 3GiB"),
        (8 * GIB, "oom_unexplained", "4GiB would have sufficed, and the device has 8GiB"),
    ] {
        let (code, sentence) = verdict(&recording, Some(device));
        assert_eq!(code, expected, "{sentence}");
        assert!(sentence.contains(part), "{sentence}");
    }
    let beyond = log(&[("allocate", 0x1000, GIB), ("allocate failure", 0, 1 << 60)]);
    assert_eq!(verdict(&beyond, None).0, "oom_beyond_device");
    // More failures than are explained: the verdict is about the last one.
    let many: Vec<_> = (1..=30).map(|gib| ("allocate failure", 0, gib * GIB)).collect();
    let many = log(&[&[("allocate", 0x1000, 64)], many.as_slice()].concat());
    assert!(verdict(&many, None).1.contains("a request for 30GiB failed at event 31"));
}

#[test]
fn a_log_that_begins_late_counts_what_it_only_frees() {
    let recording = log(&[
        ("allocate", 0x7f00, 1 << 20),
        ("free", 0x7f80_0000, 8 * GIB),
        ("free", 0x7f40_0000, GIB),
        ("free", 0x7f00, 1 << 20),
    ]);
    let sums = recording.sums();
    assert_eq!((sums.blocks_before, sums.bytes_before), (2, 9 * GIB));
    assert_eq!((sums.peak_live_bytes, sums.live_bytes), (9 * GIB + (1 << 20), 0));
    assert_eq!((sums.allocations, sums.frees), (1, 3));
    let (code, sentence) = verdict(&recording, None);
    assert_eq!(code, "history_missing");
    assert!(sentence.contains("at least 9GiB"), "{sentence}");
    let text = text(&explain(&recording, None));
    assert!(text.contains("to record the missing data:"), "{text}");
    // The failed request matters more, but its figures are the least.
    let failed = log(&[("free", 0x7f80_0000, 8 * GIB), ("allocate failure", 0, GIB)]);
    let (code, sentence) = verdict(&failed, None);
    assert_eq!(code, "oom_unexplained");
    assert!(sentence.ends_with("the file begins late, so the real figures may be higher"), "{sentence}");
}

#[test]
fn a_log_that_contradicts_itself_says_where() {
    let twice = log(&[("allocate", 0x100, 1 << 20), ("allocate", 0x100, 2 << 20)]);
    assert_eq!(twice.sums().peak_live_bytes, 2 << 20);
    let (code, sentence) = verdict(&twice, None);
    assert_eq!(code, "contradiction");
    assert!(
        sentence.contains("1 allocation returned the address of a live block (first at line 3)"),
        "{sentence}"
    );
    let again = log(&[("allocate", 0x100, 64), ("free", 0x100, 64), ("free", 0x100, 64)]);
    let (code, sentence) = verdict(&again, None);
    assert_eq!(code, "contradiction");
    assert!(sentence.contains("1 free named a block that was already free (first at line 4)"), "{sentence}");
    assert_eq!(again.sums().blocks_before, 0);
    let sizes = log(&[("allocate", 0x100, 64), ("free", 0x100, 65)]);
    let (code, sentence) = verdict(&sizes, None);
    assert_eq!(code, "contradiction");
    assert!(sentence.contains("1 free had another size than the allocation (first at line 3)"), "{sentence}");
}

#[test]
fn a_log_that_is_cut_off_is_explained_up_to_its_last_whole_row() {
    let rows = "1,10:00:00.1,allocate,0x7f00,1024,0\n1,10:00:00.2,free,0x7f00,1024,0\n";
    for torn in ["1,10:00:00.3,free,0x7f00,102", "1,10", "1,10:00:00.3,allo"] {
        let recording = read(format!("{HEADER}{rows}{torn}").as_bytes()).unwrap();
        assert_eq!((recording.len(), unknowns(&recording)[0]), (2, "rest_missing"), "{torn}");
        let (code, sentence) = verdict(&recording, None);
        assert_eq!(code, "history_missing");
        assert!(sentence.contains("file:4: the last row is cut off"), "{sentence}");
    }
    let many = (0..5000).map(|row| format!("1,10:00:00.{row},allocate,{:#x},{row},0\n", row * 4096 + 4096));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(format!("{HEADER}{}", many.collect::<String>()).as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let recording = read(&gzip[..gzip.len() / 2]).unwrap();
    assert!((100..5000).contains(&recording.len()), "{}", recording.len());
    assert_eq!(unknowns(&recording)[0], "rest_missing");
    // Of a whole recording, the notes of its last row may be cut.
    let mut log = Vec::new();
    snapshot("small").write_csv(&mut log).unwrap();
    let cut = read(&log[..log.len() - 20]).unwrap();
    assert!(unknowns(&cut).contains(&"rest_missing"), "{:?}", unknowns(&cut));
}

#[test]
fn a_request_beyond_the_device_is_never_no_problem() {
    let recording = log(&[("allocate", 0x100, 1 << 62), ("free", 0x100, 1 << 62)]);
    let (code, sentence) = verdict(&recording, None);
    assert_eq!(code, "beyond_device");
    assert!(sentence.contains("4096PiB") || sentence.contains("4EiB"), "{sentence}");
    let recording = log(&[("allocate", 0x100, 3 * GIB)]);
    assert_eq!(verdict(&recording, Some(2 * GIB)).0, "beyond_device");
    assert_eq!(verdict(&recording, Some(4 * GIB)).0, "no_problem");
}

#[test]
fn memory_that_rises_in_each_part_may_be_a_leak_and_loading_is_none() {
    let mut rows: Vec<(&str, u64, u64)> = Vec::new();
    for step in 0..200 {
        let (work, kept) = (0x1000_0000 + (step % 2) * 0x1000, 0x2000_0000 + step * 0x1000);
        rows.extend([("allocate", work, 1 << 20), ("free", work, 1 << 20)]);
        rows.extend([("allocate", work, 1 << 19), ("free", work, 1 << 19)]);
        rows.push(("allocate", kept, 4096));
    }
    let (code, sentence) = verdict(&log(&rows), None);
    assert_eq!(code, "leak");
    let rose = "the memory that stays live grew from 240KiB to 720KiB in the last 70 % of the events";
    assert_eq!(sentence, format!("{rose}: possibly a leak"));
    let evidence = &explain(&log(&rows), None).diagnoses[0].evidence[1];
    assert_eq!(
        evidence,
        "140 blocks of 560KiB were allocated in the last 7 tenths, and not freed before the file ends"
    );
    rows.push(("allocate failure", 0, GIB));
    assert_eq!(verdict(&log(&rows), None).0, "oom_leak");
    // The program also keeps a model that is four times as large as the leak.
    rows.pop();
    rows.insert(0, ("allocate", 0x4000_0000, 2 << 20));
    assert_eq!(verdict(&log(&rows), None).0, "leak");
    rows[0].2 = 8 << 20;
    assert_eq!(verdict(&log(&rows), None).0, "no_problem", "a small growth is not told");
    let loading: Vec<_> = (0..1000).map(|block| ("allocate", 0x1000 + block * 0x1000, 4096)).collect();
    assert_eq!(verdict(&log(&loading), None).0, "no_problem");
}

/// Each step keeps two of its three blocks; the driver's own memory appears in the middle of the recording.
#[test]
fn a_leak_of_most_blocks_of_a_step_is_found_beside_the_driver_s_memory() {
    let mut rows = String::new();
    let mut row = |action: &str, address: u64, bytes: u64, tag: &str| {
        let notes = if rows.is_empty() { "source driver%20calls%20of%20a%20program" } else { "" };
        rows += &format!("1,10:00:00.000001,{action},{address:#x},{bytes},0,{tag},{notes}\n");
    };
    for step in 0..100_u64 {
        let kept = 0x2000_0000 + step * 0x10000;
        row("allocate", 0x1000, 1 << 20, "");
        row("allocate", kept, 8192, "");
        row("free", 0x1000, 1 << 20, "");
        row("allocate", kept + 0x2000, 4096, "");
        if step >= 50 && step % 5 == 0 {
            let driver = 0x1000_0000_0000_0000 + step * 0x100_0000;
            if step > 50 {
                row("free", driver - 0x500_0000, 0x100_0000, "driver");
            }
            row("allocate", driver, 0x100_0000, "driver");
        }
    }
    let header = HEADER.trim_end();
    let recording = imported(format!("{header},Tag,Notes\n{rows}").as_bytes());
    let explanation = explain(&recording, None);
    assert_eq!(explanation.verdict.code, "leak", "{}", explanation.verdict.sentence);
    let holders = &explanation.diagnoses[0].holders;
    assert!(holders.iter().all(|holder| holder.bytes < 0x100_0000), "{holders:?}");
}

#[test]
fn a_request_that_fails_in_less_memory_than_was_live_before_is_fragmentation() {
    let blocks = (0..8_u64).flat_map(|number| {
        let at = 0x1000_0000 + number * (GIB + 4096);
        [("allocate", at, GIB), ("allocate", at + GIB, 4096)]
    });
    let frees = (0..8_u64).map(|number| ("free", 0x1000_0000 + number * (GIB + 4096), GIB));
    let mut rows: Vec<_> = blocks.chain(frees).collect();
    let failed = |rows: &[(&str, u64, u64)], bytes| {
        let rows = [rows, &[("allocate failure", 0, bytes)]].concat();
        verdict(&log(&rows), None)
    };
    let (code, sentence) = failed(&rows, 2 * GIB);
    assert_eq!(code, "oom_fragmentation", "{sentence}");
    let what = "probably fragmentation: 8.00GiB were live earlier, but the largest free piece among the \
                addresses of earlier blocks now has 1GiB";
    assert!(sentence.ends_with(what), "{sentence}");
    assert_eq!(failed(&rows, GIB).0, "oom_unexplained", "a piece is large enough");
    assert_eq!(failed(&rows, 9 * GIB).0, "oom_unexplained", "more than was ever live");
    rows.push(("free", 0x1000_0000 + GIB, 4096));
    assert_eq!(failed(&rows, 2 * GIB).0, "oom_unexplained", "two pieces are one");
}

#[test]
fn a_program_beyond_its_budget_is_told_to_raise_it() {
    let notes = "source driver%20calls%20of%20a%20program;detail limit%20in%20bytes 1073741824";
    let rows = format!(
        "1,10:00:00.000001,allocate,0x1000,1000000000,0,{notes}\n\
         1,10:00:00.000002,allocate failure,(nil),100000000,0,\n"
    );
    let explanation = explain(&imported(format!("{},Notes\n{rows}", HEADER.trim_end()).as_bytes()), None);
    assert_eq!(explanation.verdict.code, "oom_limit");
    assert!(explanation.diagnoses[0].fixes[0].contains("`--budget`"), "{:?}", explanation.diagnoses[0].fixes);
}

#[test]
fn no_problem_has_its_figures_and_comes_first_in_the_text() {
    let recording = log(&[("allocate", 0x100, 3 << 20), ("free", 0x100, 3 << 20)]);
    let explanation = explain(&recording, None);
    let sentence = "no problem: 1 allocation and no failed request; at most 3MiB were live; how much the \
                    allocator reserved is not recorded";
    assert_eq!(explanation.verdict.sentence, sentence);
    assert_eq!(text(&explanation).lines().next(), Some(format!("verdict: {sentence}").as_str()));
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(
        (&json["verdict"]["code"], &json["verdict"]["sentence"]),
        (&"no_problem".into(), &sentence.into())
    );
    let (code, sentence) = verdict(&snapshot("plain"), None);
    assert_eq!(code, "no_problem", "{sentence}");
    assert!(
        sentence.contains(" reserved, ") && sentence.contains(" % of it in use at the peak"),
        "{sentence}"
    );
    // The program may have failed for want of memory that a snapshot does not have.
    assert!(sentence.starts_with("no problem of device memory: "), "{sentence}");
    let limit = "The file does not tell about memory of the host: if the program failed, give `explain` its \
                 error text";
    assert!(sentence.ends_with(limit), "{sentence}");
}

#[test]
fn sizes_in_sentences_have_at_most_three_digits() {
    let log = |name: &str| (name.to_owned(), imported(&crate::texts::file(name)));
    let texts =
        ["oom_old.txt", "oom_ranks.txt", "oom_wrapped.txt", "bfc_chunks.txt", "xla.txt", "trace.json"];
    let names =
        ["fragmented", "held", "late", "max_split", "out_of_memory", "plain", "ring", "shapes", "streams"];
    let snapshots = names.map(|name| (name.to_owned(), snapshot(name)));
    let mut sizes = 0;
    for (name, recording) in snapshots.into_iter().chain(texts.map(log)) {
        for device_bytes in [None, Some(80 * GIB + 12_345_678)] {
            let explanation = explain(&recording, device_bytes);
            let mut sentences = vec![explanation.verdict.sentence.clone()];
            for diagnosis in explanation.diagnoses {
                sentences.push(diagnosis.what);
                sentences.extend(diagnosis.evidence);
            }
            for word in sentences.iter().flat_map(|sentence| sentence.split([' ', ',', ';', '(', ')'])) {
                let Some((number, _)) = word.split_once("iB").filter(|(_, rest)| rest.is_empty()) else {
                    continue;
                };
                let digits = number.chars().filter(char::is_ascii_digit).collect::<String>();
                assert!(digits.trim_start_matches('0').len() <= 3, "{name}: {word} in {sentences:?}");
                sizes += 1;
            }
        }
    }
    assert!(sizes > 50, "{sizes}");
}

#[test]
fn snapshots_of_a_gpu_have_the_verdicts_that_their_programs_were_made_for() {
    for (name, codes) in [
        ("out_of_memory", &["oom_limit"][..]),
        ("fragmented", &["oom_fragmentation"]),
        ("held", &["held_by_streams"]),
        ("state_only", &["too_little_recorded"]),
        ("ring", &["history_missing"]),
        ("late", &["history_missing", "held_by_streams", "fragmented", "idle"]),
        ("max_split", &["fragmented", "idle"]),
        ("small", &["no_problem", "rounding"]),
    ] {
        let (code, sentence) = verdict(&snapshot(name), None);
        assert!(codes.contains(&code), "{name}: {code}: {sentence}");
    }
    let options = Options::default();
    let header = "Thread,Time,Action,Pointer,Size,Stream,Alignment,Notes\n";
    let nothing = format!("{header}0,0,allocate failure,(nil),0,0,,source test\n");
    let nothing = import::read("nothing", nothing.as_bytes(), &options).unwrap();
    assert_eq!(verdict(&nothing, None).0, "too_little_recorded");
}

/// A recording with segments. Each has an address in GiB and a size in MiB; a block at its start has another
/// size in MiB, if it is not 0. Then a request for some MiB fails with some MiB of the device free.
fn with_segments(settings: &str, segments: &[(u64, u64, u64)], failure: Option<(u64, u64)>) -> Recording {
    const MIB: u64 = 1 << 20;
    let mut notes = format!("source PyTorch%20memory%20snapshot{settings}");
    let mut rows = "Thread,Time,Action,Pointer,Size,Stream,Alignment,Notes\n".to_owned();
    for &(address, bytes, block) in segments {
        let (address, bytes, block) = (address << 30, bytes * MIB, block * MIB);
        notes.push_str(&format!(";segment_alloc {address:#x} {bytes} 0 0 - - 0:0 0 -"));
        if block > 0 {
            rows.push_str(&format!("0,0,allocate,{address:#x},{block},0,256,{notes}\n"));
            "detail more rows".clone_into(&mut notes);
        }
    }
    if let Some((wanted, free)) = failure {
        rows.push_str(&format!("0,0,allocate failure,(nil),{},0,256,{notes}\n", wanted * MIB));
        notes = format!("device_free 0x0 {} 0 0 - - - 0 -", free * MIB);
    }
    rows.push_str(&format!("0,0,allocate failure,(nil),0,0,,{notes}\n"));
    imported(rows.as_bytes())
}

#[test]
fn settings_and_other_users_are_told_from_a_program_that_is_too_large() {
    let code = |settings: &str, segments: &[(u64, u64, u64)], failure, device_bytes| {
        let (code, sentence) = verdict(&with_segments(settings, segments, failure), device_bytes);
        assert!(!sentence.is_empty());
        (code, sentence)
    };
    let full = [(1024, 10 << 10, 10 << 10)];
    let split = ";setting max_split_size 33554432";
    let free = [(1024, 100, 0), (1025, 20, 19)];
    let (found, sentence) = code(split, &free, Some((24, 0)), None);
    assert_eq!(found, "oom_max_split_size", "{sentence}");
    assert!(sentence.contains("max_split_size forbids splitting pieces above 32MiB"), "{sentence}");
    assert_eq!(code("", &free, Some((24, 0)), None).0, "oom_other_pool");
    let (found, sentence) = code("", &full, Some((2048, 1024)), Some(80 * GIB));
    assert_eq!(found, "oom_outside", "{sentence}");
    assert!(sentence.contains("1GiB more, and 69GiB were used outside of the allocator"), "{sentence}");
    assert_eq!(code("", &full, Some((2048, 1024)), Some(12 * GIB)).0, "oom_does_not_fit");
    assert_eq!(code("", &full, Some((2048, 4096)), None).0, "oom_limit");
    // Without a failure.
    let (found, sentence) = code("", &[(1024, 100, 0), (1025, 20, 20)], None, None);
    assert_eq!(found, "idle", "{sentence}");
    assert!(sentence.contains("100MiB of 120MiB reserved (83 %)"), "{sentence}");
    let (found, sentence) = code("", &[(1024, 200, 10), (1025, 20, 20)], None, None);
    assert_eq!(found, "fragmented", "{sentence}");
    assert!(sentence.contains("190MiB of 220MiB reserved (86 %)"), "{sentence}");
}
