//! Tests that all commands read a log in the same way: peaks, beginning, double addresses, sizes, cuts and
//! failed requests; and that one stack has one figure.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Folder, HEADER, Run, program, rows, snapshot};

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

/// Runs a command that prints JSON.
fn json(words: &[&str], log: &Path) -> Value {
    let run: Run = program().arg(words[0]).arg(log).args(&words[1..]).output().unwrap().into();
    assert!(run.status < 2, "{words:?} {}: {}", log.display(), run.stderr);
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {}", run.stdout))
}

/// Logs with flaws: the name, the content, and the peak of live bytes.
fn flawed() -> Vec<(&'static str, Vec<u8>, u64)> {
    let log = |rows: &str| format!("{HEADER}{rows}").into_bytes();
    let whole = rows(4, 6000);
    let half: String = whole.lines().skip(3000).map(|line| format!("{line}\n")).collect();
    let (cut, late) = (gzip(&format!("{HEADER}{whole}")), gzip(&format!("{HEADER}{half}")));
    vec![
        (
            "late.csv",
            log("1,0,allocate,0x7f0000,1048576,0\n1,1,free,0x7f8000000,8589934592,5\n\
                 1,2,free,0x7f4000000,1073741824,0\n1,3,free,0x7f0000,1048576,0\n"),
            (9 << 30) + (1 << 20),
        ),
        ("twice.csv", log("1,0,allocate,0x7f00,1048576,0\n2,0,allocate,0x7f00,2097152,0\n"), 2 << 20),
        (
            "again.csv",
            log("1,0,allocate,0x7f00,512,0\n1,0,free,0x7f00,512,0\n1,0,free,0x7f00,512,0\n\
                 1,0,allocate,0x8f00,256,0\n"),
            512,
        ),
        ("sizes.csv", log("1,0,allocate,0x7f00,1024,0\n1,0,free,0x7f00,512,0\n"), 1024),
        (
            "torn.csv",
            log("1,0,allocate,0x7f00,1024,0\n1,0,allocate,0x8f00,1024,0\n1,0,free,0x7f00,102"),
            2048,
        ),
        (
            "fails.csv",
            log("1,0,allocate,0x7f00,1024,0\n1,0,allocate failure,(nil),4096,0\n\
                 1,0,allocate failure,(nil),4096,0\n1,0,allocate,0x9f00,4096,0\n"),
            5120,
        ),
        (
            "devices.csv",
            b"Thread,Time,Action,Pointer,Size,Stream,Device\n1,0,allocate,0x7f00,2048,0,cuda:1\n\
              1,0,allocate,0x7f00,4096,0,cuda:0\n1,0,free,0x7f00,2048,0,cuda:1\n\
              1,0,allocate,0x8f00,1024,0,cuda:1\n1,0,free,0x7f00,4096,0,cuda:0\n"
                .to_vec(),
            2048,
        ),
        ("cut.csv.gz", cut[..cut.len() / 2].to_vec(), 0),
        ("half.csv.gz", late, 0),
    ]
}

#[test]
fn every_command_has_the_same_peak_and_the_same_remarks() {
    let folder = Folder::new();
    for (name, content, peak) in flawed() {
        let log = folder.write(name, content);
        let replayed = Run::json(&log, &["--stack", "cuda"]);
        let of_log = &replayed["log"];
        let peak = if peak > 0 { peak } else { of_log["peak_live_bytes"].as_u64().unwrap() };
        assert_eq!(of_log["peak_live_bytes"], peak, "{name}");
        let imported = json(&["import", "--format", "json"], &log);
        let explained = json(&["explain", "--format", "json"], &log);
        for sums in [&imported, &explained["sums"]] {
            assert_eq!(sums["peak_live_bytes"], peak, "{name}");
            assert_eq!(sums["live_blocks"], of_log["leaked_blocks"], "{name}");
            assert_eq!(sums["live_bytes"], of_log["leaked_bytes"], "{name}");
            assert_eq!(sums["failures"], of_log["failed_allocations"], "{name}");
            assert_eq!(sums["failed_requests"], of_log["failed_requests"], "{name}");
            assert_eq!(sums["bytes_before"], of_log["bytes_before"], "{name}");
            assert_eq!(sums["blocks_before"], of_log["unknown_frees"], "{name}");
        }
        assert_eq!(explained["verdict"]["code"] == "no_problem", name == "devices.csv", "{name}");
        let budget = folder.path("budget.toml");
        let gate = |flags: &[&str]| -> Run {
            let budget = ["--budget", budget.to_str().unwrap()];
            program().arg("gate").arg(&log).args(budget).args(flags).output().unwrap().into()
        };
        assert_eq!(gate(&["--write"]).status, 0, "{name}");
        let written = std::fs::read_to_string(&budget).unwrap();
        assert!(written.contains(&format!("peak_allocated_bytes = {peak}\n")), "{name}: {written}");
        let series: Run = program().arg("export").arg(&log).args(["-f", "series"]).output().unwrap().into();
        let live = series.stdout.lines().skip(1).map(|line| line.split(',').nth(4).unwrap().parse::<u64>());
        assert_eq!(live.map(Result::unwrap).max(), Some(peak), "{name}");
        // Bounds round each block to 256 bytes, and count failed requests.
        let planned = json(&["plan", "--time", "0", "--format", "json"], &log);
        let tuned = json(&["tune", "--time", "0", "--format", "json"], &log);
        assert_eq!(planned["bound_host_order"], explained["bound_host_order"], "{name}");
        assert_eq!(tuned["bound_host_order"], explained["bound_host_order"], "{name}");
        assert!(planned["bound_host_order"].as_u64() >= Some(peak), "{name}");

        // Each names the oddity in the same words.
        let oddities: Vec<String> = explained["not_known"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|unknown| is_flaw(unknown["code"].as_str().unwrap()))
            .map(|unknown| unknown["text"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(oddities.is_empty(), name == "fails.csv", "{name}: {oddities:?}");
        let table = Run::of(&log, &["--stack", "cuda"]).stdout;
        let texts = [table, gate(&[]).stdout, text("plan", &log), text("tune", &log), text("import", &log)];
        for printed in &texts {
            for oddity in &oddities {
                assert!(printed.contains(oddity), "{name}: no `{oddity}` in: {printed}");
            }
        }
    }
}

fn is_flaw(code: &str) -> bool {
    let flaws = ["began_late", "repeated_frees", "duplicate_allocations", "size_mismatches", "rest_missing"];
    flaws.contains(&code) || code == "other_device"
}

fn text(command: &str, log: &Path) -> String {
    let time: &[&str] = if command == "import" { &[] } else { &["--time", "0"] };
    let run: Run = program().arg(command).arg(log).args(time).output().unwrap().into();
    run.stdout
}

#[test]
fn a_log_replays_as_its_import_does() {
    let folder = Folder::new();
    for (name, content, _) in flawed() {
        let log = folder.write(name, content);
        let written = folder.path("written.csv");
        let run: Run = program()
            .args(["import".as_ref(), log.as_os_str(), "--output".as_ref(), written.as_os_str()])
            .output()
            .unwrap()
            .into();
        assert_eq!(run.status, 0, "{}", run.stderr);
        let flags = ["--stack", "cuda", "--stack", "cuda+pool"];
        let (direct, imported) = (Run::json(&log, &flags), Run::json(&written, &flags));
        for field in
            ["peak_live_bytes", "peak_live_bytes_apart", "peak_live_blocks", "leaked_bytes", "operations"]
        {
            assert_eq!(direct["log"][field], imported["log"][field], "{name}: {field}");
        }
        for stack in 0..2 {
            for field in ["peak_reserved_bytes_first", "failures"] {
                let [direct, imported] = [&direct, &imported].map(|report| &report["stacks"][stack][field]);
                assert_eq!(direct, imported, "{name}: {field}");
            }
        }
    }
}

fn example_log() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/logs/rmm_cupy_4streams.csv.gz")
}

/// The driver's pool holds more than the blocks that it hands out.
#[test]
fn one_stack_has_one_figure_in_all_commands() {
    let folder = Folder::new();
    for log in [example_log(), snapshot("small")] {
        let replayed = Run::json(&log, &["--stack", "cuda_async", "--stack", "cuda+pool"]);
        let taken = |stack: usize| &replayed["stacks"][stack]["peak_reserved_bytes_first"];
        let page = folder.path("page.html");
        let run: Run = program()
            .args(["report".as_ref(), log.as_os_str()])
            .args(["--stack", "cuda_async", "--stack", "cuda+pool", "--plan-time", "0", "-o"])
            .arg(&page)
            .output()
            .unwrap()
            .into();
        assert_eq!(run.status, 0, "{}", run.stderr);
        let page = std::fs::read_to_string(&page).unwrap();
        let summary = page.split("id=\"summary\"").nth(1).unwrap();
        let summary = &summary[summary.find('{').unwrap()..summary.find("</script>").unwrap()];
        let summary: Value = serde_json::from_str(summary).unwrap();
        for stack in 0..2 {
            assert_eq!(&summary["stacks"][stack]["peak_reserved_bytes"], taken(stack), "{stack}");
        }
    }
    let log = folder.log(&rows(2, 2000));
    let tuned = json(&["tune", "--format", "json"], &log);
    let replayed = Run::json(&log, &["--stack", "cuda_async"]);
    let tried =
        tuned["tried"].as_array().unwrap().iter().find(|tried| tried["stack"] == "cuda_async").unwrap();
    assert_eq!(tried["peak_without_limit"], replayed["stacks"][0]["peak_reserved_bytes_first"]);
}
