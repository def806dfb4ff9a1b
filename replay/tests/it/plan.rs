//! Tests of the command `plan`, and of replays over plans for the layer `plan`.

use std::path::Path;

use millpond_planning::{MinimallocCsv, ProgramPlan, validate};

use crate::support::{Folder, HEADER, Run, program, rows, snapshot};

#[test]
fn the_command_says_whether_a_capacity_suffices() {
    let file = snapshot("fragmented");
    let run =
        |flags: &[&str]| -> Run { program().arg("plan").arg(&file).args(flags).output().unwrap().into() };
    // 400 MiB failed with 36 blocks of 4 MiB live, under a limit of 800 MiB: fragmentation, not need.
    let fits = run(&["--capacity", "800MiB"]);
    assert_eq!(fits.status, 0, "{}", fits.stderr);
    assert!(fits.stdout.contains("800MiB suffices: the plan proves it"), "{}", fits.stdout);
    let short = run(&["--capacity", "500MiB"]);
    assert_eq!(short.status, 1, "{}", short.stderr);
    assert!(short.stdout.contains("500MiB is too little for any allocator"), "{}", short.stdout);
    let report: serde_json::Value = serde_json::from_str(&run(&["--format", "json"]).stdout).unwrap();
    assert_eq!(report["failed_requests"], 1);
    assert_eq!(report["height"], report["bound"]);
    let wrong = run(&["--alignment", "0"]);
    assert_eq!(wrong.status, 2);
    assert!(wrong.stderr.contains("an alignment must be at least 1 byte"), "{}", wrong.stderr);
}

/// `any allocator` is said only of the peak of live memory, which also bounds allocators that move pages.
#[test]
fn a_capacity_is_refused_with_the_rule_that_it_breaks() {
    let folder = Folder::new();
    let file = "1,00:00:00.0,allocate,0x1000,4096,0\n1,00:00:00.1,free,0x1000,4096,0\n\
                   1,00:00:00.2,allocate,0x1000,4096,0x5100\n1,00:00:00.3,free,0x1000,4096,0x5100\n";
    let file = folder.log(file);
    for (capacity, why) in [
        ("4KiB", "4KiB is too little if streams share no memory, which needs 8KiB"),
        ("2KiB", "2KiB is too little for any allocator: 4KiB are needed"),
    ] {
        let told = run(&["--capacity", capacity], &file);
        assert_eq!(told.status, 1, "{}", told.stderr);
        assert!(told.stdout.contains(why), "{}", told.stdout);
    }
}

const STREAMS: [&str; 2] = ["0", "0x5100"];

/// A log of steps: blocks of two streams; some live to the end.
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
        // A page for each lane, and one for blocks without a slot.
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
    let log = folder.log(&rows(1, 6000));
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
        (["--streams", "host-order"], "always keeps streams apart; omit --streams"),
        (["--alignment", "512"], "always aligns to 256 bytes; omit --alignment"),
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

#[test]
fn rows_of_minimalloc_keep_their_ids_and_steps_and_get_offsets() {
    let folder = Folder::new();
    let output = folder.path("placed.csv");
    let placed = |rows: &str, flags: &[&str]| {
        let file = folder.write("rows.csv", rows);
        let run = run(&[flags, &["-o", output.to_str().unwrap()]].concat(), &file);
        assert_eq!(run.status, 0, "{}", run.stderr);
        std::fs::read_to_string(&output).unwrap()
    };
    let rows = "size,id,lower,upper\n300,late,70,90\n100,a b,5,80\n";
    let expected =
        |offset: u64| format!("size,id,lower,upper,offset\n300,late,70,90,0\n100,a b,5,80,{offset}\n");
    assert_eq!(placed(rows, &["--capacity", "400B"]), expected(300));
    assert_eq!(placed(rows, &["--alignment", "256"]), expected(512));
    // A column of streams keeps them apart, as in what `plan` writes.
    let streams = "id,lower,upper,size,stream\nx,0,1,64,0\ny,1,2,64,1\n";
    assert!(placed(streams, &[]).contains("y,1,2,64,1,64"));
    assert!(placed(streams, &["--streams", "host-order"]).contains("y,1,2,64,1,0"));
}

#[test]
fn ids_in_quotes_come_back_from_a_written_placement() {
    let folder = Folder::new();
    let file = folder.write("in.csv", "id,lower,upper,size\n\"a,b\",0,4,100\n\"c\"\"d\",1,2,300\n");
    let (first, second) = (folder.path("first.csv"), folder.path("second.csv"));
    for (from, to) in [(&file, &first), (&first, &second)] {
        let told = run(&["-o", to.to_str().unwrap()], from);
        assert_eq!(told.status, 0, "{}", told.stderr);
    }
    let written = [first, second].map(|file| std::fs::read_to_string(file).unwrap());
    assert_eq!(written[0], written[1]);
    for row in ["\"a,b\",0,4,100,", "\"c\"\"d\",1,2,300,"] {
        assert!(written[0].contains(row), "{written:?}");
    }
}

#[test]
fn hard_problems_of_minimalloc_fit_into_their_capacity() {
    let folder = Folder::new();
    for name in ["A", "G"] {
        let file = format!("{}/../planning/tests/minimalloc/mm_{name}.csv", env!("CARGO_MANIFEST_DIR"));
        let output = folder.path("placed.csv");
        let flags = ["--capacity", "1MiB", "--time", "3600", "-o", output.to_str().unwrap()];
        let run = run(&flags, Path::new(&file));
        assert_eq!(run.status, 0, "{name}: {}{}", run.stdout, run.stderr);
        let [rows, placed] = [Path::new(&file), &output].map(|path| std::fs::read_to_string(path).unwrap());
        let kept = placed.lines().zip(rows.lines()).all(|(placed, row)| placed.starts_with(row));
        assert!(kept && placed.lines().count() == rows.lines().count(), "{placed}");
        let placed = MinimallocCsv::parse(&placed).unwrap();
        let offsets: Vec<u64> = placed.rows().iter().filter_map(|row| row.offset).collect();
        assert!(validate(&placed.problem().unwrap(), &offsets).unwrap() <= 1 << 20);
    }
}

#[test]
fn a_log_that_lacks_a_part_gives_no_plan() {
    let folder = Folder::new();
    let whole = steps(2, 256);
    let late = format!("{HEADER}1,00:00:00.000001,free,0x7000,640,0\n{whole}");
    let cut = format!("{HEADER}{whole}1,00:00:00.000001,fr");
    for (text, why) in [(late, "1 block, in all at least 640B"), (cut, "the last row is cut off")] {
        let log = folder.write("part.csv", text);
        assert_eq!(run(&[], &log).status, 0);
        for name in ["part.plan", "part.placed.csv"] {
            let output = folder.path(name);
            run(&["-o", output.to_str().unwrap()], &log).fails_with(2, &["no plan is written", why]);
            assert!(!output.exists());
        }
    }
}

#[test]
fn no_plan_is_written_for_streams_that_the_pool_serves_with_less() {
    let folder = Folder::new();
    let plan = folder.path("mixed.plan");
    let mut rows = String::new();
    for step in 0..8 {
        for action in ["allocate", "free"] {
            rows += &format!("1,00:00:00.000001,{action},0x7000000,{},{:#x}\n", 64 << 20, 0x5100 + step);
        }
    }
    let refused = run(&["-o", plan.to_str().unwrap()], &folder.log(&rows));
    let because = "no plan is written, because for this file cuda+pool needs 64MiB";
    refused.fails_with(1, &[because, "512MiB with the plan"]);
    assert!(refused.stdout.contains("512MiB: if streams share no memory") && !plan.exists());
}

#[test]
fn a_log_that_is_too_large_for_its_time_is_placed_nevertheless() {
    let log = Folder::new();
    let log = log.write("large.csv", format!("{HEADER}{}", rows(1, 40_000)));
    let placed = run(&["--time", "0"], &log);
    assert!(placed.stdout.contains("more `--time` may find it"), "{}{}", placed.stdout, placed.stderr);
}
