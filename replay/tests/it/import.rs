//! Tests the command `import`, and the commands that import a file first.

use millpond_snapshot::import::{self, Options};
use serde_json::Value;

use crate::support::{Folder, Run, program, snapshot};

/// Returns the most bytes live at one time in a snapshot of the tests.
fn peak_live_bytes(name: &str) -> u64 {
    import::open(&snapshot(name), &Options::default()).unwrap().sums().peak_live_bytes
}

#[test]
fn the_command_replays_a_snapshot_and_imports_it() {
    let log = snapshot("streams");
    let report = Run::json(&log, &["--stack", "cuda+pool"]);
    assert_eq!(report["log"]["imported_from"], "PyTorch memory snapshot");
    assert_eq!(report["log"]["peak_live_bytes"], peak_live_bytes("streams"));
    assert_eq!(report["stacks"][0]["failures"], 0);

    let folder = Folder::new();
    let (output, packed) = (folder.path("log.csv"), folder.path("log.csv.zst"));
    for output in [&output, &packed] {
        let run: Run = program()
            .args(["import".as_ref(), log.as_os_str(), "--output".as_ref(), output.as_os_str()])
            .output()
            .unwrap()
            .into();
        assert_eq!(run.status, 0, "{}", run.stderr);
        assert!(run.stdout.contains("exactly the blocks in the file's state"), "{}", run.stdout);
        let again = Run::json(output, &["--stack", "cuda+pool"]);
        for field in ["operations", "peak_live_bytes", "streams", "leaked_bytes", "peak_live_blocks"] {
            assert_eq!(again["log"][field], report["log"][field], "{field}");
        }
    }
    // RMM's readers know only three actions and read only six columns.
    let text = std::fs::read_to_string(&output).unwrap();
    assert!(text.starts_with("Thread,Time,Action,Pointer,Size,Stream,"));
    for row in text.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!(cells.len(), 15, "{row}");
        assert!(["allocate", "free", "allocate failure"].contains(&cells[2]), "{row}");
    }
    let run: Run = program().args(["import", "--output"]).args([&output, &output]).output().unwrap().into();
    run.fails_with(2, &["overwriting the imported file"]);
}

#[test]
fn a_snapshot_packed_with_zstd_is_replayed_too_also_from_a_pipe() {
    let mut whole = Vec::new();
    let file = std::fs::File::open(snapshot("shapes")).unwrap();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut whole).unwrap();
    let folder = Folder::new();
    let packed = folder.write("shapes", zstd::encode_all(whole.as_slice(), 1).unwrap());
    let flags = ["--stack", "cuda+pool"];
    let report = Run::json(&packed, &flags);
    assert_eq!(report["log"]["peak_live_bytes"], peak_live_bytes("shapes"));
    let piped: Run = program()
        .args(["-", "--device", "sim:h200", "--format", "json"])
        .args(flags)
        .stdin(std::fs::File::open(&packed).unwrap())
        .output()
        .unwrap()
        .into();
    let piped: Value = serde_json::from_str(&piped.stdout).unwrap();
    assert_eq!(piped["log"]["operations"], report["log"]["operations"]);
}

#[test]
fn a_file_of_no_format_is_named_with_what_to_do_by_each_command() {
    let folder = Folder::new();
    for (content, expected) in [
        (&b"PK\x03\x04rest"[..], "is a zip file, such as a checkpoint of torch.save"),
        (b"\x7fELF\x02\x01", "is a program or a library (ELF)"),
        (b"PAR1abc", "is a Parquet file"),
        (b"{\"traceEvents\": [{}]}", "is a trace for Chrome or Perfetto without memory events"),
        (b"{\"traceEvents\": null}", "is an empty trace"),
        (b"[1, 2]", "is JSON"),
        (b"<html></html>", "is a web page without a snapshot in it"),
        (b"\x80\x04cos\nsystem\n.", "asks to import os.system"),
    ] {
        let file = folder.write("a.csv", content);
        let replayed = Run::of(&file, &[]);
        replayed.fails_with(2, &[expected, "a.csv"]);
        let imported: Run = program().arg("import").arg(&file).output().unwrap().into();
        imported.fails_with(2, &[expected, "a.csv"]);
    }
    let file = folder.write("snapshot.pickle", "hello\n");
    let imported: Run = program().arg("import").arg(&file).output().unwrap().into();
    imported.fails_with(2, &["is text in an unknown format"]);
}

#[test]
fn the_report_is_text_or_json_and_the_log_may_go_to_the_output() {
    let folder = Folder::new();
    let file = folder.write("buffers", "id,lower,upper,size\na,0,9,4096\n");
    let run = |flags: &[&str]| -> Run {
        let run: Run = program().arg("import").arg(&file).args(flags).output().unwrap().into();
        assert_eq!(run.status, 0, "{}", run.stderr);
        run
    };
    let text = run(&[]).stdout;
    for part in [
        "minimalloc CSV",
        "2: 1 allocation, 1 free, 0 failed requests",
        "4KiB live at event 1",
        "least       any allocator needs 4KiB",
        "not known:\n",
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    let report: serde_json::Value = serde_json::from_str(&run(&["--format", "json"]).stdout).unwrap();
    assert_eq!((&report["format"], &report["peak_live_bytes"]), (&"minimalloc CSV".into(), &4096.into()));
    assert_eq!((&report["bound_host_order"], &report["bound_stream_safe"]), (&4096.into(), &4096.into()));
    assert_eq!(report["not_known"][0]["code"], "addresses");
    assert!(report["is_equal_to_state"].is_null());
    let log = run(&["--output", "-"]).stdout;
    assert!(log.starts_with("Thread,Time,Action") && log.lines().count() == 3, "{log}");
}
