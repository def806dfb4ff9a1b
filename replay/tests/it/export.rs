//! Tests `export`: each file follows the rules of its format.

use std::path::Path;

use serde_json::Value;

use crate::support::{Folder, Run, program, snapshot};

fn export(name: &str, format: &str, flags: &[&str]) -> String {
    let mut command = program();
    command.arg("export").arg(snapshot(name)).args(["--format", format]).args(flags);
    let run = Run::from(command.output().unwrap());
    assert_eq!(run.status, 0, "{}", run.stderr);
    run.stdout
}

/// The sums that `import` prints.
fn sums(name: &str) -> Value {
    let mut command = program();
    command.arg("import").arg(snapshot(name)).args(["--format", "json"]);
    serde_json::from_str(&Run::from(command.output().unwrap()).stdout).unwrap()
}

#[test]
fn speedscope_has_a_weight_for_each_sample_and_frames_that_exist() {
    let file: Value = serde_json::from_str(&export("plain", "speedscope", &[])).unwrap();
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = file["shared"]["frames"].as_array().unwrap();
    assert!(frames.iter().all(|frame| frame["name"].is_string()));
    let all = &file["profiles"][1];
    assert_eq!(all["name"].as_str().unwrap().split_once(", ").unwrap().1, "all frames");
    for profile in file["profiles"].as_array().unwrap() {
        speedscope_profile(profile, frames);
    }
}

/// Checks a profile of speedscope's file.
fn speedscope_profile(profile: &Value, frames: &[Value]) {
    assert_eq!((&profile["type"], &profile["unit"]), (&"sampled".into(), &"bytes".into()));
    let samples = profile["samples"].as_array().unwrap();
    let weights = profile["weights"].as_array().unwrap();
    assert_eq!(samples.len(), weights.len());
    let is_frame = |frame: &Value| (frame.as_u64().unwrap() as usize) < frames.len();
    assert!(samples.iter().all(|sample| sample.as_array().unwrap().iter().all(is_frame)));
    let sum: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
    assert_eq!(profile["endValue"], sum);
    assert_eq!(sums("plain")["peak_live_bytes"], sum);
}

#[test]
fn folded_lines_end_with_bytes_that_sum_up_to_the_instant() {
    let bytes = |text: &str| -> u64 {
        text.lines()
            .map(|line| {
                let (stack, bytes) = line.rsplit_once(' ').unwrap();
                assert!(stack.split(';').all(|frame| !frame.is_empty()), "{line}");
                bytes.parse::<u64>().unwrap()
            })
            .sum()
    };
    let peak = export("out_of_memory", "folded", &[]);
    assert_eq!(sums("out_of_memory")["peak_live_bytes"], bytes(&peak));
    assert!(peak.contains(';') && peak.contains("make.py"), "{peak}");
    let end = export("out_of_memory", "folded", &["--event", "1000000"]);
    assert_eq!(sums("out_of_memory")["live_bytes"], bytes(&end));
}

#[test]
fn perfetto_reads_json_whose_times_ascend_and_whose_slices_nest() {
    for name in ["plain", "out_of_memory", "metadata"] {
        let file: Value = serde_json::from_str(&export(name, "perfetto", &[])).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
        assert!(times.is_sorted() && times.len() + 1 == events.len(), "{name}");
        let mut open = Vec::new();
        for event in events {
            match event["ph"].as_str().unwrap() {
                "B" => open.push(event["name"].as_str().unwrap()),
                "E" => assert_eq!(open.pop(), event["name"].as_str(), "{name}"),
                "C" => assert!(event["args"]["bytes"].is_u64(), "{event}"),
                "i" => assert_eq!(event["s"], "g"),
                "M" => {}
                other => panic!("{other}"),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        let most = |counter: &str| {
            let counters = events.iter().filter(|event| event["name"] == counter);
            counters.map(|event| event["args"]["bytes"].as_u64().unwrap()).max()
        };
        assert_eq!(sums(name)["peak_live_bytes"].as_u64(), most("live"), "{name}");
        assert_eq!(sums(name)["peak_reserved_bytes"].as_u64(), most("reserved"), "{name}");
        let failures = events.iter().filter(|event| event["ph"] == "i").count();
        assert_eq!(sums(name)["failures"], failures, "{name}");
    }
}

#[test]
fn the_series_has_a_row_for_each_event() {
    let text = export("plain", "series", &[]);
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let head: Vec<String> = rows.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(head, ["event", "unix_ns", "action", "bytes", "live_bytes", "reserved_bytes"]);
    let rows: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
    let expected = sums("plain");
    assert_eq!(expected["events"], rows.len());
    let most = |column: usize| rows.iter().map(|row| row[column].parse::<u64>().unwrap()).max().unwrap();
    assert_eq!(
        (&expected["peak_live_bytes"], &expected["peak_reserved_bytes"]),
        (&most(4).into(), &most(5).into())
    );
}

#[test]
fn a_file_is_never_written_over_itself() {
    let folder = Folder::new();
    let log = folder.log("1,00:00:00.000001,allocate,0x10,512,0\n");
    for command in [&["export", "--format", "series"][..], &["report"]] {
        let mut run = program();
        run.args(command).arg(&log).arg("-o").arg(&log);
        Run::from(run.output().unwrap()).fails_with(2, &["overwriting"]);
    }
    assert!(std::fs::read_to_string(&log).unwrap().contains("allocate"));
}

/// A log of the report's stacks overwrites neither an input nor the page, and the page overwrites no such
/// log.
#[test]
fn a_report_destroys_nothing_that_it_reads_or_writes() {
    let folder = Folder::new();
    let log = folder.log("1,00:00:00.000001,allocate,0x10,512,0\n");
    let (other, page) = (folder.write("other.csv", std::fs::read(&log).unwrap()), folder.path("page.html"));
    let stack = |file: &Path| format!("cuda+logging:file={}", file.display());
    for (file, output, says) in [
        (&log, &page, "a log that this run reads"),
        (&other, &page, "a log that this run reads"),
        (&page, &page, "both be written to"),
    ] {
        let mut run = program();
        run.arg("report").args([&log, &other]).arg("-o").arg(output).args(["--stack", &stack(file)]);
        Run::from(run.output().unwrap()).fails_with(2, &[says]);
    }
    assert!(!page.exists());
    assert_eq!(std::fs::read(&log).unwrap(), std::fs::read(&other).unwrap());
}

#[test]
fn a_single_hyphen_is_the_standard_output() {
    let folder = Folder::new();
    let log = folder.log("1,00:00:00.000001,allocate,0x10,512,0\n");
    for (command, begins) in [(&["export", "--format", "folded"][..], "(no stack) 512"), (&["report"], "<!")]
    {
        let mut run = program();
        run.current_dir(folder.path(".")).args(command).arg(&log).args(["-o", "-"]);
        let run = Run::from(run.output().unwrap());
        assert!(run.status == 0 && run.stdout.starts_with(begins), "{}{}", run.stdout, run.stderr);
    }
    assert!(!folder.path("-").exists());
}

/// Two blocks of 2^63 bytes: their sum exceeds 64 bits.
#[test]
fn blocks_beyond_64_bits_are_exported() {
    let folder = Folder::new();
    let huge = 1_u64 << 63;
    let row = |at: u32| {
        let stack = format!("frame {at} 1 f{at} a.py;stack {at} {at}");
        format!("0,00:00:00.000000,allocate,0x{at}00000,{huge},0,cuda:0,256,,{at},,,,,{stack}\n")
    };
    let head = "Thread,Time,Action,Pointer,Size,Stream,Device,Alignment,UnixNs,Stack,Pool,Tag,RoundedSize,\
                Before,Notes\n";
    let log = folder.write("huge.csv", [head.to_owned(), row(1), row(2)].concat());
    for format in ["speedscope", "folded", "all-frames", "perfetto", "series"] {
        let mut run = program();
        run.arg("export").arg(&log).args(["--format", format]);
        let run = Run::from(run.output().unwrap());
        assert_eq!(run.status, 0, "{format}: {}", run.stderr);
    }
}

/// Status 1 is reserved for a comparison that failed.
#[test]
fn an_output_that_cannot_be_written_has_the_same_status_with_each_command() {
    let (folder, file) = (Folder::new(), snapshot("small"));
    let missing = |name: &str| folder.path("nowhere").join(name).to_str().unwrap().to_owned();
    let budget = folder.write("budget.toml", "failures = 0").to_str().unwrap().to_owned();
    let (csv, xml, page) = (missing("out.csv"), missing("out.xml"), missing("out.html"));
    // Missing folders of a log are made, unless a file has the folder's name.
    let blocked = folder.write("nowhere.txt", "").join("out.csv");
    let stack = format!("cuda+logging:file={}", blocked.to_str().unwrap());
    let file = file.to_str().unwrap();
    for words in [
        vec!["export", file, "--format", "series", "--output", &csv],
        vec!["import", file, "--output", &csv],
        vec!["plan", file, "--output", &csv],
        vec!["report", file, "--plan-time", "0", "--output", &page],
        vec!["gate", file, "--budget", &budget, "--junit", &xml],
        vec!["gate", file, "--budget", &csv, "--write"],
        vec!["calibrate", "--device", "sim:h200", "--out", &csv],
        vec![file, "--device", "sim:h200", "--stack", &stack],
    ] {
        let run = Run::from(program().args(&words).output().unwrap());
        run.fails_with(2, &["nowhere"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_has_that_status_too() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = program();
    command.arg("export").arg(snapshot("plain")).args(["--format", "series"]).stdout(full);
    Run::from(command.output().unwrap()).fails_with(2, &["cannot be written"]);
}
