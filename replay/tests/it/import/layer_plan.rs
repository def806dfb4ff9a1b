//! Plans of logs for the layer `plan`, and replays over them.

use std::path::Path;

use millpond_planning::{Options, ProgramPlan};
use millpond_replay::placement::{Request, Sharing, for_layer};
use millpond_replay::recording::Recording;

use super::read;

use crate::support::{Folder, HEADER, Run, program};

const STREAMS: [&str; 2] = ["0", "0x5100"];

/// A log of steps: blocks of two streams, of which some live to the end.
fn steps(count: u64, first: u64) -> String {
    let mut rows = String::new();
    let mut row = |action: &str, block: u64, bytes: u64| {
        let stream = STREAMS[(block % 3 / 2) as usize];
        rows += &format!("1,00:00:00.000001,{action},0x{:x},{bytes},{stream}\n", (block + 1) << 32);
    };
    row("allocate", 900, first);
    let bytes = |block: u64| (block * 7 % 11 + 1) * 100_000;
    for step in 0..count {
        (0..60).for_each(|block| row("allocate", block, bytes(block)));
        (0..60).rev().filter(|block| block % 20 > 0).for_each(|block| row("free", block, bytes(block)));
        if step + 1 < count {
            (0..60).filter(|block| block % 20 == 0).for_each(|block| row("free", block, bytes(block)));
        }
    }
    rows
}

fn run(arguments: &[&str], file: &Path) -> Run {
    program().arg("plan").arg(file).args(arguments).output().unwrap().into()
}

#[test]
fn a_log_is_planned_once_and_followed_from_its_first_pass_on() {
    let folder = Folder::new();
    let log = folder.log(&steps(6, 3 << 20));
    let plan = folder.path("step.plan");
    let told = run(&["-o", plan.to_str().unwrap()], &log);
    assert_eq!(told.status, 0, "{}", told.stderr);
    assert!(told.stdout.contains("written     361 allocations, "), "{}", told.stdout);
    let parts = ProgramPlan::read(std::fs::read(&plan).unwrap().as_slice()).unwrap();
    let parts = parts.parts();
    assert!(told.stdout.contains(&parts.log.to_string()), "{}", told.stdout);
    assert_eq!((parts.lanes.len(), parts.bytes(), parts.ratio()), (2, parts.bound, 1.0));
    let stacks = ["cuda+pool".to_owned(), format!("cuda+pool+plan:file={}", plan.display())];
    let report = Run::json(&log, &["--repeat", "4", "--stack", &stacks[0], "--stack", &stacks[1]]);
    let planned = &report["stacks"][1];
    assert_eq!((planned["spec"].as_str(), planned["failures"].as_u64()), (Some(&*stacks[1]), Some(0)));
    let calls: Vec<_> =
        planned["passes"].as_array().unwrap().iter().map(|it| it["driver_calls"].as_u64()).collect();
    assert_eq!(calls[1..], [Some(0); 3], "{calls:?}");
    for pass in ["first", "last"] {
        let peak = planned[format!("peak_reserved_bytes_{pass}")].as_u64().unwrap();
        // A page for each lane and one for what has no slot.
        assert!(
            peak <= parts.bytes() + parts.beside + (6 << 20),
            "{peak} in the {pass} pass: {}",
            parts.bytes()
        );
    }
}

#[test]
fn a_plan_of_another_log_takes_no_more_than_the_pool() {
    let folder = Folder::new();
    let plan = folder.path("other.plan");
    let other = folder.write("other.csv", format!("{HEADER}{}", steps(20, 4 << 20)));
    assert_eq!(run(&["-o", plan.to_str().unwrap()], &other).status, 0);
    let log = folder.log(&crate::support::rows(1, 6000));
    let with_plan = format!("cuda+pool+plan:file={}", plan.display());
    let report = Run::json(&log, &["--repeat", "3", "--stack", "cuda+pool", "--stack", &with_plan]);
    let peak = |stack: usize, pass| report["stacks"][stack][format!("peak_reserved_bytes_{pass}")].as_u64();
    for pass in ["first", "last"] {
        assert!(peak(1, pass) <= peak(0, pass), "{:?}, {:?}", peak(1, pass), peak(0, pass));
    }
    assert_eq!(report["stacks"][1]["failures_all_passes"], 0);
}

#[test]
fn rules_that_the_layer_has_not_are_refused() {
    let folder = Folder::new();
    let log = folder.log(&steps(2, 256));
    let plan = folder.path("a.plan");
    for (flags, why) in [
        (["--streams", "host-order"], "whose streams are always apart; leave --streams out"),
        (["--alignment", "512"], "whose alignment is 256; leave --alignment out"),
    ] {
        let refused = run(&[flags[0], flags[1], "-o", plan.to_str().unwrap()], &log);
        assert_eq!(refused.status, 2, "{}", refused.stdout);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let none = run(&["--capacity", "1KiB", "-o", plan.to_str().unwrap()], &log);
    assert!(none.stdout.contains("too little for any allocator"), "{}", none.stdout);
    let empty = folder.log("1,00:00:00.000001,allocate failure,0x0,512,0\n");
    let empty = run(&["-o", plan.to_str().unwrap()], &empty);
    assert!(empty.stderr.contains("no plan can be written: no allocation has a slot"), "{}", empty.stderr);
    assert!(!plan.exists());
}

fn plan_of(recording: &Recording) -> ProgramPlan {
    let options = Options { rounds: 1, ..Options::default() };
    let request = Request { sharing: Sharing::StreamSafe, alignment: 256, capacity: None, options };
    for_layer(recording, &request).unwrap().1.unwrap()
}

fn log(rows: &[&str]) -> Recording {
    let rows = rows.iter().map(|row| format!("1,00:00:00.000001,{row}\n"));
    read(format!("{HEADER}{}", rows.collect::<String>()).as_bytes()).unwrap()
}

#[test]
fn the_hash_is_of_sizes_streams_births_and_deaths() {
    let hash = |rows: &[&str]| plan_of(&log(rows)).parts().log.to_string();
    let rows = ["allocate,0x10,5120,1", "allocate,0x20,700,2", "free,0x10,5120,1", "allocate,0x30,64,1"];
    // printf '5120 0 0 2\n700 1 1 -\n64 0 3 -\n' | sha256sum
    let known = "sha256:7abb5154088b7b80e0424527c813c713169475d42020afd4856a4e80ff941048";
    assert_eq!(hash(&rows), known);
    let failed = ["allocate failure,0x0,9,1", "allocate,0x1000,0,1", "free,0x1000,0,1"];
    for same in [
        ["allocate,0x90,5120,7", "allocate,0x20,700,4", "free,0x90,5120,7", "allocate,0x90,64,7"].to_vec(),
        [failed.as_slice(), &rows].concat(),
    ] {
        assert_eq!(hash(&same), known, "addresses, names of streams, and what takes no memory");
    }
    for other in [
        ["allocate,0x10,5121,1", rows[1], rows[2], rows[3]],
        [rows[0], "allocate,0x20,700,1", rows[2], rows[3]],
        [rows[0], rows[2], rows[1], rows[3]],
        [rows[0], rows[1], rows[3], rows[2]],
    ] {
        assert_ne!(hash(&other), known, "{other:?}");
    }
}

#[test]
fn the_begin_and_what_other_streams_free_have_no_slots() {
    let slots = |rows: &[&str]| {
        let plan = plan_of(&log(rows));
        let slots =
            plan.parts().allocations.iter().map(|it| it.slot.map(|slot| (slot.life.get(), slot.offset)));
        (slots.collect::<Vec<_>>(), plan.parts().lanes.clone(), plan.parts().beside)
    };
    let rows = [
        "allocate,0x10,1000,1",
        "allocate,0x20,2000,1",
        "allocate,0x30,1048576,1",
        "allocate,0x40,512,2",
        "free,0x40,512,1",
        "free,0x30,1048576,1",
        "allocate,0x50,524288,1",
    ];
    // The begin has at most a 128th of the peak.
    assert_eq!(
        slots(&rows),
        (vec![None, None, Some((2, 0)), None, Some((1, 0))], vec![1 << 20, 0], 1024 + 2048 + 512)
    );
    let (large_first, lanes, beside) = slots(&rows[2..3]);
    assert_eq!((large_first, lanes, beside), (vec![Some((1, 0))], vec![1 << 20], 0));
}
