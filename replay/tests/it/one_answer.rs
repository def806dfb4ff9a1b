//! Tests that commands give the same answer about one file: the memory of its device, its allocator, and the
//! commands that they propose.

use std::path::Path;

use serde_json::Value;

use crate::support::{Folder, HEADER, Run, program, snapshot};

const MIB: u64 = 1 << 20;

fn run(words: &[&str], file: &Path) -> Run {
    program().arg(words[0]).arg(file).args(&words[1..]).output().unwrap().into()
}

fn json(words: &[&str], file: &Path) -> Value {
    let run = run(&[words, &["--format", "json"]].concat(), file);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {}", run.stderr))
}

/// A program of PyTorch on a device that had 44 MiB for it: 30 MiB reserved, 14 MiB free. Then it asked for
/// `wanted` MiB.
fn failed(folder: &Folder, wanted: u64) -> std::path::PathBuf {
    let header = HEADER.trim_end();
    let segment = format!("segment_alloc 0x20000000 {} 0 0 - - - 0 -", 30 * MIB);
    let mut log = format!("{header},Notes\n");
    for at in 0..3 {
        let (address, bytes) = ((32 + 10 * at) * MIB * 16, 10 * MIB);
        let notes = match at {
            0 => format!("source PyTorch%20memory%20snapshot;{segment}"),
            _ => String::new(),
        };
        log += &format!("1,00:00:00.0,allocate,{address:#x},{bytes},0,{notes}\n");
    }
    log += &format!("1,00:00:00.0,allocate failure,(nil),{},0,\n", wanted * MIB);
    let free = format!("device_free 0x0 {} 0 0 - - - 0 -", 14 * MIB);
    log += &format!("1,00:00:00.0,free,0x20000000,{},0,{free}\n", 10 * MIB);
    folder.write("failed run.csv", log)
}

#[test]
fn all_commands_know_how_much_memory_the_device_had() {
    let folder = Folder::new();
    let file = failed(&folder, 20);
    let tuned = json(&["tune"], &file);
    let explained = json(&["explain"], &file);
    let replayed = Run::json(&file, &[]);
    assert_eq!(explained["sums"]["available_bytes"], 44 * MIB);
    assert_eq!(json(&["import"], &file)["available_bytes"], 44 * MIB);
    assert_eq!(
        (&tuned["available_bytes"], &replayed["log"]["available_bytes"]),
        (&explained["sums"]["available_bytes"], &explained["sums"]["available_bytes"],)
    );
    // 50 MiB are needed, so nothing is recommended.
    assert_eq!((tuned["best"].clone(), tuned["best_of_all"].clone()), (Value::Null, Value::Null));
    let text = run(&["tune"], &file);
    let why = "on its device, where 44MiB were available when a request failed: it needs 50MiB";
    assert!(text.status == 1 && text.stdout.contains(why), "{}", text.stdout);
    let text = Run::of(&file, &[]).stdout;
    let why = "the program's own device had only 44MiB for its allocator when a request failed";
    assert!(text.contains(why) && text.contains("too large for the program's device"), "{text}");
    assert!(!text.contains("use this one") && !text.contains("build the program's resource"), "{text}");
    let why = "a device with 43MiB contradicts the file: at a failed request, the allocator had or could \
               take 44MiB";
    run(&["explain", "--device-memory", "43MiB"], &file).fails_with(2, &[why]);
    // With 12 MiB instead, the device had enough.
    let file = failed(&folder, 12);
    let text = Run::of(&file, &[]).stdout;
    let why = "its device had 44MiB for it, so probably a limit forbade more: see `millpond-replay explain '";
    assert!(text.contains(why), "{text}");
    let tuned = json(&["tune"], &file);
    assert!(tuned["best_of_all"].is_u64(), "{tuned}");
}

#[test]
fn the_log_that_import_writes_replays_as_its_snapshot() {
    let folder = Folder::new();
    for name in ["expandable", "out_of_memory", "graph"] {
        let (file, log) = (snapshot(name), folder.path(&format!("{name}.csv.gz")));
        let written = run(&["import", "--output", log.to_str().unwrap()], &file);
        assert_eq!(written.status, 0, "{}", written.stderr);
        let [of_file, of_log] = [&file, &log].map(|file| Run::json(file, &[]));
        for field in
            ["recorded_with", "private_pools", "available_bytes", "imported_from", "not_known", "operations"]
        {
            assert_eq!(of_file["log"][field], of_log["log"][field], "{name}: {field}");
        }
        let first = of_log["stacks"][0]["spec"].as_str().unwrap();
        assert!(first.starts_with("torch"), "{name}: {first}");
        let piped = std::process::Command::new("sh")
            .args(["-c", "cat \"$1\" | \"$0\" - --device sim:h200 --format json"])
            .args([env!("CARGO_BIN_EXE_millpond-replay").as_ref(), log.as_os_str()])
            .output()
            .unwrap();
        let piped: Value = serde_json::from_slice(&piped.stdout).unwrap();
        assert_eq!(piped["log"]["recorded_with"], of_log["log"]["recorded_with"], "{name}");
    }
    // Only the log reader skips bad rows.
    let rows = "1,0,allocate,0x7f00,1024,0,\n1,0,oops,0x7f00,1024,0,\n1,0,free,0x7f00,1024,0,\n";
    let bad = folder.write("bad.csv", format!("{},Notes\n{rows}", HEADER.trim_end()));
    assert_eq!(Run::json(&bad, &["--skip-bad-rows"])["log"]["skipped_rows"], 1);
    Run::of(&bad, &[]).fails_with(2, &["bad.csv:3"]);
}

#[test]
fn commands_to_paste_have_the_name_of_the_file_and_sizes_as_people_write_them() {
    let folder = Folder::new();
    let rows = "1,0,allocate,0x7f00,1048576,0\n1,0,allocate failure,(nil),4096,0\n";
    let file = folder.write("it's a log.csv", format!("{HEADER}{rows}"));
    let quoted = format!("\"{}\"", file.display());
    let text = run(&["explain", "--device-memory", "40GB"], &file).stdout;
    let command = format!("millpond-replay {quoted} --device sim:40GB\n");
    assert!(text.contains(&command), "{text}");
    let text = Run::of(&file, &[]).stdout;
    assert!(text.contains(&format!("`millpond-replay tune {quoted}`")), "{text}");
    let text = run(&["explain"], &snapshot("fragmented")).stdout;
    let command = format!("`millpond-replay tune {}`", snapshot("fragmented").display());
    assert!(text.contains(&command), "{text}");
    let graph = snapshot("graph");
    let command = format!("`millpond-replay explain {}`", graph.display());
    for text in [run(&["tune"], &graph).stdout, Run::of(&graph, &[]).stdout] {
        assert!(text.contains(&command), "{text}");
    }
    let text = run(&["tune", "--capacity", "40GiB"], &file).stdout;
    assert!(text.contains("CudaMemoryResource()") && !text.contains("42949672960"), "{text}");
}

#[test]
fn a_torn_file_is_told_in_the_first_note() {
    let folder = Folder::new();
    let rows = "1,0,allocate,0x7f00,1024,0,source PyTorch%20memory%20snapshot;unknown x why\n\
                1,0,allocate failure,(nil),4096,0,\n1,0,free,0x7f00,10";
    for (name, header, rows) in [
        ("recording.csv", format!("{},Notes", HEADER.trim_end()), rows.to_owned()),
        (
            "log.csv",
            HEADER.trim_end().to_owned(),
            rows.replace(
                ",source PyTorch%20memory%20snapshot;\
            unknown x why",
                "",
            )
            .replace(",0,\n", ",0\n"),
        ),
        (
            "mixed.csv",
            format!("hello\n{}", HEADER.trim_end()),
            rows.replace(
                ",source PyTorch%20memory%20\
            snapshot;unknown x why",
                "",
            )
            .replace(",0,\n", ",0\n"),
        ),
    ] {
        let file = folder.write(name, format!("{header}\n{rows}"));
        let text = Run::of(&file, &["--stack", "cuda"]).stdout;
        let note = text.lines().find(|line| line.starts_with("note:")).unwrap();
        assert!(note.contains("the rest of the file is missing"), "{name}: {text}");
        let text = run(&["explain"], &file).stdout;
        let first = text.split("not known:\n").nth(1).unwrap().lines().next().unwrap();
        assert!(first.contains("the rest of the file is missing"), "{name}: {text}");
    }
}

#[test]
fn figures_of_memory_that_nothing_knows_are_null() {
    let folder = Folder::new();
    let file = folder.log("1,0,allocate,0x7f00,1024,0\n1,0,free,0x7f00,1024,0\n");
    let stacks = ["cuda_async", "cuda_async+tracking", "cuda_async+statistics", "cuda+pool+statistics"];
    let flags: Vec<&str> = stacks.iter().flat_map(|stack| ["--stack", stack]).collect();
    let replayed = Run::json(&file, &flags);
    for (at, stack) in stacks.into_iter().enumerate() {
        let figures = &replayed["stacks"][at];
        for field in ["largest_free_block_bytes", "bytes_beyond_slack", "ladder", "frees"] {
            assert_eq!(figures[field].is_null(), !stack.contains("pool"), "{stack} {field}: {figures}");
        }
    }
}
