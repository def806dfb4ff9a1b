//! Tests errors in logs, stacks and devices: a clear message with the remedy, and exit code 2.

use std::io::Write;

use crate::support::{Folder, HEADER, Run, program, rows, snapshot};

/// Runs a log with these rows through plain CUDA.
fn with_rows(rows: &str) -> Run {
    Run::of(&Folder::new().log(rows), &["-s", "cuda"])
}

fn with_content(content: impl AsRef<[u8]>) -> Run {
    Run::of(&Folder::new().write("log.csv", content), &["-s", "cuda"])
}

fn with_stack(stack: &str) -> Run {
    let folder = Folder::new();
    Run::of(&folder.log(&rows(1, 10)), &["-s", stack, "-s", "cuda"])
}

#[test]
fn a_missing_file() {
    let run = Run::of(&Folder::new().path("nothing.csv"), &[]);
    run.fails_with(2, &["nothing.csv: cannot be opened", "check the path"]);
}

#[test]
fn a_peer_that_is_not_installed() {
    let folder = Folder::new();
    let run = Run::of(&folder.log(&rows(1, 10)), &["--peer", "torch=/nowhere"]);
    run.fails_with(2, &["pytorch", "/nowhere: there is no PyTorch; name its environment"]);
}

/// Python looks for modules in the working folder first, and a downloaded folder may have a package `torch`.
#[test]
fn a_peer_is_not_taken_from_the_folder_of_the_log() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 10));
    std::fs::create_dir_all(folder.path("torch/lib")).unwrap();
    let marks = ["torch/__init__.py", "torch/lib/libc10.so"].map(|name| folder.write(name, ""));
    folder.write("types.py", "open('run', 'w')\n");
    folder.write("contextlib.py", "open('run', 'w')\n");
    let mut program = program();
    program.arg(&log).args(["-d", "sim", "--peer", "torch"]).current_dir(folder.path(""));
    let run: Run = program.output().unwrap().into();
    let place = marks[0].parent().unwrap().to_str().unwrap();
    assert!(!folder.path("run").exists() && !run.stderr.contains(place), "{}", run.stderr);
}

/// A profile and a budget are read up to a limit, and their nesting has an end.
#[test]
#[cfg(unix)]
fn a_profile_or_a_budget_that_attacks_its_reader() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 10));
    let nested = |count: usize| format!("a = {}{}", "[".repeat(count), "]".repeat(count));
    let deep = folder.write("deep.toml", nested(400_000));
    let keys = folder.write("keys.toml", format!("[{}]", vec!["a"; 100_000].join(".")));
    let long = folder.write("long.toml", nested(1 << 20));
    for (file, why) in [(&deep, ""), (&keys, "recursion limit"), (&long, "more than 1 MiB")]
        .into_iter()
        .chain([(&"/dev/zero".into(), "more than 1 MiB")])
    {
        let of_device = format!("sim:{}", file.display());
        for words in [&["-s", "cuda", "-d", &of_device][..], &["gate", "--budget", file.to_str().unwrap()]] {
            let run: Run = program().args(words).arg(&log).output().unwrap().into();
            run.fails_with(2, &[why]);
            assert!(run.stderr.len() < 20_000, "{} bytes", run.stderr.len());
        }
    }
}

/// A spreadsheet must not run the name of a file.
#[test]
fn a_file_whose_name_is_a_formula() {
    let folder = Folder::new();
    folder.write("=1+1.csv", format!("{HEADER}{}", rows(1, 10)));
    for words in [&["-s", "cuda"][..], &["busy", "-s", "cuda+pool"]] {
        let mut program = program();
        program.args(words).args(["-d", "sim", "-f", "csv", "=1+1.csv"]).current_dir(folder.path(""));
        let run: Run = program.output().unwrap().into();
        let cells: Vec<&str> = run.stdout.lines().flat_map(|line| line.split(',')).collect();
        assert!(cells.contains(&"./=1+1.csv"), "{}{}", run.stdout, run.stderr);
        assert!(!cells.iter().any(|cell| cell.starts_with(['=', '@'])), "{cells:?}");
    }
}

#[test]
fn a_folder() {
    let folder = Folder::new();
    Run::of(&folder.path(""), &[]).fails_with(2, &["is a folder; name the log files in it"]);
}

#[test]
fn an_empty_file() {
    with_content("").fails_with(2, &["log.csv: is empty", "Thread,Time,Action,Pointer,Size,Stream"]);
}

#[test]
fn a_header_and_nothing_else() {
    with_content(HEADER).fails_with(2, &["log.csv: has a header but no rows"]);
}

#[test]
fn a_wrong_header() {
    let run = with_content("Thread,Time,Action,Address,Size,Stream\n1,0,free,0x1,1,0\n");
    run.fails_with(
        2,
        &["log.csv:1: column Pointer: the header lacks this column", "Thread,Time,Action,Pointer"],
    );
}

#[test]
fn a_negative_size() {
    let run = with_rows("1,0,allocate,0x100,8,0\n1,0,allocate,0x200,-8,0\n");
    run.fails_with(2, &["log.csv:3: column Size: `-8` is negative"]);
}

#[test]
fn a_size_of_more_than_64_bits() {
    let run = with_rows("1,0,allocate,0x100,18446744073709551616,0\n");
    run.fails_with(2, &["log.csv:2: column Size:", "does not fit into 64 bits"]);
}

#[test]
fn requests_of_two_to_the_63_bytes_fail_in_every_stack_and_break_none() {
    let folder = Folder::new();
    let log = folder.log(
        "1,0,allocate,0x100,9223372036854775808,0\n1,0,allocate,0x200,18446744073709551615,0\n\
         1,0,free,0x100,9223372036854775808,0\n1,0,allocate,0x300,64,0\n1,0,free,0x300,64,0\n",
    );
    for order in ["1", "free"] {
        let report = Run::json(&log, &["--threads", order, "-n", "1"]);
        for stack in report["stacks"].as_array().unwrap() {
            let spec = &stack["spec"];
            assert_eq!(
                (stack["status"].as_str(), stack["failures"].as_u64()),
                (Some("ran"), Some(2)),
                "{spec}"
            );
            assert_eq!(
                (stack["first_failure"]["line"].as_u64(), stack["misuses_all_passes"].as_u64()),
                (Some(2), Some(0))
            );
        }
    }
    assert_eq!(Run::of(&log, &[]).status, 1);
}

#[test]
fn a_size_of_zero_is_nothing_special() {
    let run =
        with_rows("1,0,allocate,(nil),0,0\n1,0,allocate,0x100,0,0\n1,0,free,0x100,0,0\n1,0,free,(nil),0,0\n");
    assert_eq!(run.status, 0, "{}", run.stderr);
}

#[test]
fn an_unknown_action_a_bad_pointer_and_a_bad_stream() {
    with_rows("1,0,reallocate,0x1,8,0\n")
        .fails_with(2, &["log.csv:2: column Action: `reallocate` is not an action"]);
    with_rows("1,0,free,here,8,0\n").fails_with(2, &["column Pointer: `here` is not an address"]);
    with_rows("1,0,free,0x1,8,main\n").fails_with(2, &["column Stream: `main` is not a stream"]);
    with_rows("x,0,free,0x1,8,0\n").fails_with(2, &["column Thread: `x` is not a number"]);
    with_rows("1,0,allocate,(nil),8,0\n")
        .fails_with(2, &["column Pointer: no block of 8 bytes can be at (nil)"]);
}

#[test]
fn missing_columns() {
    with_rows("1,0,free,0x1\n").fails_with(2, &["log.csv:2: column Size: the row has 4 columns"]);
}

#[test]
fn text_that_is_not_utf8() {
    let content = [HEADER.as_bytes(), b"1,0,fr\xff\xfee,0x1,8,0\n"].concat();
    with_content(content).fails_with(2, &["log.csv:2: column Action:", "not UTF-8"]);
}

#[test]
fn a_truncated_gzip_and_a_truncated_zstd() {
    let text = format!("{HEADER}{}", rows(3, 20_000));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for packed in [&gzip, &zstd] {
        for length in [5, 15] {
            with_content(&packed[..length]).fails_with(2, &["log.csv", "truncated; copy it again"]);
        }
        for length in [packed.len() / 2, packed.len() - 1] {
            let run = with_content(&packed[..length]);
            assert_eq!(run.status, 0, "{}", run.stderr);
            let note = "note: the rest of the file is missing: ";
            assert!(run.stdout.contains(note) && run.stdout.contains("truncated"), "{}", run.stdout);
        }
    }
}

#[test]
fn of_a_truncated_log_what_there_is_is_replayed() {
    let text = format!("{HEADER}{}", rows(3, 20_000));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let folder = Folder::new();
    let log = folder.write("log.csv", &gzip[..gzip.len() / 2]);
    for flags in [&["-s", "cuda", "-n", "1", "--skip-bad-rows"][..], &["-s", "cuda"]] {
        let report = Run::json(&log, flags);
        assert!(report["log"]["rest_missing"].as_str().unwrap().contains("truncated"));
        assert_eq!(report["log"]["skipped_rows"], 0);
        let nothing = folder.write("short.csv", &gzip[..15]);
        Run::of(&nothing, flags).fails_with(2, &["truncated; copy it again"]);
    }
    let torn = folder.log("1,0,allocate,0x7f00,1024,0\n1,0,free,0x7f00,102");
    let report = Run::json(&torn, &["-s", "cuda"]);
    assert_eq!((&report["log"]["events"], &report["log"]["peak_live_bytes"]), (&1.into(), &1024.into()));
    assert!(report["log"]["rest_missing"].as_str().unwrap().contains("log.csv:3: the last row is cut off"));
}

#[test]
fn binary_noise() {
    let mut state = 99_u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(300_000)
    .collect();
    with_content(&noise).fails_with(2, &["log.csv"]);
    with_content([b"\x1f\x8b", &noise[..]].concat()).fails_with(2, &["log.csv"]);
    with_content([b"\x28\xb5\x2f\xfd", &noise[..]].concat()).fails_with(2, &["log.csv"]);
    with_content([HEADER.as_bytes(), &noise].concat()).fails_with(2, &["log.csv:2"]);
    with_content(vec![b'x'; 1 << 20]).fails_with(2, &["log.csv", "is text in an unknown format"]);
    with_content(vec![0; 1 << 20]).fails_with(2, &["log.csv", "has an unknown format"]);
    let zeros = [HEADER.as_bytes(), &vec![0; 1 << 20]].concat();
    with_content(zeros).fails_with(2, &["a line is longer than 64 KiB"]);
}

#[test]
fn bad_rows_are_skipped_only_when_asked_for_and_counted() {
    let folder = Folder::new();
    let good = rows(2, 100);
    let log = folder.log(&format!("1,0,free,0x1,-1,0\n{good}nonsense\n"));
    let advice = "--skip-bad-rows skips such rows";
    Run::of(&log, &["-s", "cuda"]).fails_with(2, &["log.csv:2: column Size", advice]);
    let report = Run::json(&log, &["-s", "cuda", "--skip-bad-rows"]);
    assert_eq!(
        (report["log"]["events"].as_u64(), report["log"]["skipped_rows"].as_u64()),
        (Some(100), Some(2))
    );
    let table = Run::of(&log, &["-s", "cuda", "--skip-bad-rows"]);
    assert!(table.stdout.contains("2 bad rows skipped; the first: "), "{}", table.stdout);
    let all_bad = folder.write("bad.csv", format!("{HEADER}nonsense\n"));
    Run::of(&all_bad, &["--skip-bad-rows"]).fails_with(2, &["no row that can be read (1 bad row was"]);
}

#[test]
fn a_bad_log_does_not_lose_the_others() {
    let folder = Folder::new();
    let good = folder.log(&rows(1, 100));
    let bad = folder.path("missing.csv");
    let run: Run = program()
        .args([&bad, &good])
        .args(["-s", "cuda", "-d", "sim", "-f", "json"])
        .output()
        .unwrap()
        .into();
    run.fails_with(2, &["missing.csv: cannot be opened"]);
    assert!(run.stdout.contains(r#""events":100"#));
}

#[test]
fn an_unknown_stack_name_and_an_unknown_parameter() {
    with_stack("cuda+puddle").fails_with(2, &["there is no layer `puddle`", "pool"]);
    with_stack("cuda+pool:size=1").fails_with(2, &["`pool` has no parameter `size`", "initial"]);
    with_stack("cuda+pool:max=lots").fails_with(2, &["max=lots", "write for example"]);
    with_stack("").fails_with(2, &["a layer's name is missing"]);
    with_stack("pool").fails_with(2, &["`pool` needs a resource below it; write for example `cuda+pool`"]);
    with_stack("cuda+cuda").fails_with(2, &["put it first"]);
}

#[test]
fn an_initial_size_above_the_maximum() {
    let run = with_stack("cuda+pool:initial=2GiB,max=1GiB");
    run.fails_with(2, &["cuda+pool:initial=2GiB,max=1GiB", "initial", "maximum"]);
    assert_eq!(run.stderr.matches("cuda+pool:initial").count(), 1, "said once: {}", run.stderr);
    assert!(!run.stdout.contains("initial=2GiB"), "and not as a note: {}", run.stdout);
    assert!(run.stdout.contains("| cuda "), "the other stack is not lost: {}", run.stdout);
}

#[test]
fn a_maximum_above_the_device() {
    with_stack("cuda+pool:max=10TiB").fails_with(2, &["cuda+pool:max=10TiB", "10TiB"]);
}

#[test]
fn where_no_stack_can_be_built_there_are_no_figures() {
    let folder = Folder::new();
    let run = Run::of(&folder.log(&rows(1, 10)), &["-s", "cuda+pool:initial=2GiB,max=1GiB"]);
    run.fails_with(2, &["exceeds its maximum"]);
    assert_eq!(run.stdout.lines().count(), 1, "{}", run.stdout);
}

#[test]
fn a_bad_filter_of_diagnostics() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 10));
    let with = |filter: &str| -> Run {
        let flags = ["-s", "cuda", "-d", "sim"];
        program().arg(&log).args(flags).env("MILLPOND_LOG", filter).output().unwrap().into()
    };
    with("millpond=loud").fails_with(2, &["MILLPOND_LOG=`millpond=loud`", "write for example"]);
    let traced = with("trace");
    assert_eq!(traced.status, 0, "{}", traced.stderr);
    assert!(!traced.stderr.contains('\u{1b}'), "no colours where no terminal is: {}", traced.stderr);
    assert_eq!(with("").status, 0);
}

#[test]
fn issue_9_a_size_of_a_device_is_said_once() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 100));
    let run = Run::of(&log, &["-s", "cuda", "--device", "sim:620MiB"]);
    let line = run.stdout.lines().find(|line| line.starts_with("replayed")).unwrap();
    assert_eq!(line.matches("620MiB").count(), 1, "{line}");
    assert!(line.contains("on sim:620MiB (simulated H200)"), "{line}");
}

#[test]
fn bad_devices() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 10));
    Run::of(&log, &["--device", "tpu:0"]).fails_with(2, &["write cuda:0, sim:h200"]);
    Run::of(&log, &["--device", "sim:1"]).fails_with(2, &["at least", "did you mean 1GiB?"]);
    Run::of(&log, &["--device", "cuda:4000"]).fails_with(2, &["error: no device"]);
}

#[test]
fn names_that_are_nearly_right_come_with_the_right_one() {
    let folder = Folder::new();
    let log = folder.log("1,00:00:00.0,allocate,0x100,7,0\n");
    folder.write("card.toml", "");
    let profile = format!("sim:{}", folder.path("crad.toml").display());
    for (flags, meant) in [
        (["--stack", "cuda+pol"], "did you mean `pool`?"),
        (["--stack", "cuda+pool:maxx=1GiB"], "did you mean `max`?"),
        (["--stack", "fallback:upstreams=(cuda+poool)"], "did you mean `pool`?"),
        (["--device", "sim:h20"], "did you mean `sim:h200`?"),
        (["--device", profile.as_str()], "card.toml`?"),
    ] {
        Run::of(&log, &flags).fails_with(2, &[meant]);
    }
    let run: Run =
        program().args(["explian", "log.csv"]).current_dir(folder.path("")).output().unwrap().into();
    run.fails_with(2, &["explian: there is no such file", "did you mean `explain`?"]);
    for (words, meant) in [
        (&["explian", "log.csv", "--device-memory", "8GiB"][..], "did you mean `explain`?"),
        (&["explain", "lgo.csv"], "lgo.csv: there is no such file; did you mean `log.csv`?"),
        (&["lgo.csv"], "lgo.csv: there is no such file; did you mean `log.csv`?"),
        (&["gate", "log.csv", "--budget", "crad.toml"], "did you mean `card.toml`?"),
        (&["bench", "--workload", "pairs"], "did you mean `pair`?"),
        (&["calibrate", "--device", "sim:h20", "--out", "-"], "did you mean `sim:h200`?"),
    ] {
        let run: Run = program().args(words).current_dir(folder.path("")).output().unwrap().into();
        run.fails_with(2, &[meant]);
    }
    // An existing file of that name is read as a file.
    folder.write("explian", format!("{HEADER}1,00:00:00.0,allocate,0x100,7,0\n"));
    let run: Run = program().arg("explian").current_dir(folder.path("")).output().unwrap().into();
    assert_eq!(run.status, 0, "{}", run.stderr);
}

/// The message names the argument, so the words of the error's kind would only stand in the way.
#[test]
fn errors_of_all_commands_have_one_form() {
    let folder = Folder::new();
    let sums = concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshot/tests/readers/oom_wrapped.txt");
    let log = folder.log("1,00:00:00.0,allocate,0x100,7,0\n");
    let missing = folder.path("lgo.csv");
    let page = folder.path("page.html");
    let [log, missing, page] = [&log, &missing, &page].map(|path| path.to_str().unwrap());
    for words in [
        &["plan", sums][..],
        &["report", sums, "-o", page],
        &["tune", sums],
        &["gate", log, "--budget", missing],
        &["explain", missing],
        &["plan", missing],
        &["report", missing, "-o", page],
        &["fidelity", log],
        &["plan", log, "--capacity", "8"],
        &["tune", log, "--capacity", "8"],
        &["explain", log, "--device-memory", "8"],
        &["report", log, "-o", page, "--device-memory", "x"],
        &["import", log, "--memory", "8"],
        &["--device", "sim:h20", log],
        &["--stack", "cuda+pool:max=lots", log],
        &["--stack", "cuda+pool:initial=2GiB,max=1GiB", log],
    ] {
        let run: Run = program().args(words).output().unwrap().into();
        assert_eq!(run.status, 2, "{words:?}: {}", run.stderr);
        assert!(run.stderr.starts_with("error: "), "{words:?}: {}", run.stderr);
        assert!(!run.stderr.contains("invalid argument"), "{words:?}: {}", run.stderr);
    }
}

#[test]
fn colours_are_shown_where_they_are_asked_for() {
    let folder = Folder::new();
    let missing = folder.path("missing.csv");
    let stderr = |flags: &[&str], variable: Option<(&str, &str)>| {
        let mut program = program();
        program.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").envs(variable).arg(&missing).args(flags);
        String::from_utf8(program.output().unwrap().stderr).unwrap()
    };
    let has_colours = |text: &str| text.contains("\u{1b}[31m") || text.contains("\u{1b}[1m");
    assert!(!has_colours(&stderr(&[], None)), "the standard error is no terminal");
    assert!(has_colours(&stderr(&["--color", "always"], None)));
    assert!(has_colours(&stderr(&[], Some(("CLICOLOR_FORCE", "1")))));
    assert!(!has_colours(&stderr(&["--color", "never"], Some(("CLICOLOR_FORCE", "1")))));
    assert!(!has_colours(&stderr(&[], Some(("NO_COLOR", "1")))));
    assert!(stderr(&[], None).starts_with("error: "));
    let explained: Run =
        program().args(["explain", "--color", "always"]).arg(&missing).output().unwrap().into();
    assert!(has_colours(&explained.stderr), "{}", explained.stderr);
}

#[test]
fn an_explanation_has_colours_where_they_are_asked_for_and_the_same_text_elsewhere() {
    let snapshot = snapshot("out_of_memory");
    let explained = |flags: &[&str]| {
        let mut program = program();
        program.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        let run = Run::from(program.args(flags).arg("explain").arg(&snapshot).output().unwrap());
        assert_eq!(run.status, 0, "{}", run.stderr);
        run.stdout
    };
    let (plain, coloured) = (explained(&[]), explained(&["--color", "always"]));
    assert!(!plain.contains('\u{1b}') && plain == explained(&["--color=never"]));
    assert!(coloured.contains("\u{1b}[1;31m") && coloured.contains("try: \u{1b}[32m"), "{coloured}");
    let without = ["\u{1b}[1;31m", "\u{1b}[32m", "\u{1b}[1m", "\u{1b}[0m"]
        .iter()
        .fold(coloured, |text, sequence| text.replace(sequence, ""));
    assert_eq!(without, plain);
}

#[test]
fn an_error_of_a_placement_names_the_file() {
    let folder = Folder::new();
    let log = folder.log(
        "1,00:00:00.0,allocate,0x100,9223372036854775808,0\n\
         1,00:00:00.1,allocate,0x200,9223372036854775808,0\n",
    );
    for command in ["plan", "report"] {
        let page = folder.path("page.html");
        let flags: &[&str] = if command == "report" { &["-o", page.to_str().unwrap()] } else { &[] };
        let run: Run = program().arg(command).arg(&log).args(flags).output().unwrap().into();
        run.fails_with(2, &["log.csv: ", "64 bits"]);
    }
}

#[test]
fn progress_is_plain_lines_where_no_terminal_is() {
    let folder = Folder::new();
    let log = folder.log("1,00:00:00.0,allocate,0x100,7,0\n");
    let run = Run::of(&log, &["--progress", "--stack", "cuda", "--stack", "cuda+pool"]);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{}", run.stderr);
    assert!(lines[0].starts_with("reading ") && lines[0].ends_with("log.csv"), "{}", run.stderr);
    assert_eq!(lines[1..], ["replaying cuda", "replaying cuda+pool"]);
    assert_eq!(Run::of(&log, &["--stack", "cuda"]).stderr, "");
    assert_eq!(Run::of(&log, &["--stack", "cuda", "--progress", "--no-progress"]).stderr, "");
    for words in [["--progress", "import"], ["import", "--progress"]] {
        let run = Run::from(program().args(words).arg(&log).output().unwrap());
        assert!(run.stderr.starts_with("reading ") && run.stderr.ends_with("log.csv\n"), "{}", run.stderr);
    }
}
