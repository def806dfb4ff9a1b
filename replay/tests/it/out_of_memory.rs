//! Runs the commands of docs/OUT_OF_MEMORY.md that need no GPU and no framework, as they stand there.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::support::{Folder, HEADER, Run, program, rows};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The lines of the page's blocks of shell commands that are of this program, without their comments.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut is_shell = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(kind) => is_shell = kind == "sh",
            None if is_shell && line.starts_with("millpond-replay ") => {
                commands.push(line.split(" #").next().unwrap_or(line).trim().to_owned());
            }
            None => {}
        }
    }
    commands
}

fn unpacked(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(root().join(path)).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The files that the page's programs would have written.
fn files() -> Folder {
    let folder = Folder::new();
    let snapshot = unpacked("snapshot/tests/snapshots/out_of_memory.pickle.gz");
    folder.write("FILE", &snapshot);
    folder.write("snapshot.pickle", &snapshot);
    folder.write("rmm.dev0.csv", format!("{HEADER}{}", rows(2, 600)));
    let header = HEADER.replace('\n', ",Device,Alignment,Sequence,MonotonicNs,DurationNs\n");
    let row = |action: &str, number: u32| {
        format!("7,05:01:18.9,{action},0x7f00,4096,0,cuda:0,256,{number},{number},5\n")
    };
    folder.write("millpond.csv", format!("{header}{}{}", row("allocate", 0), row("free", 1)));
    folder
}

#[cfg(feature = "nsys")]
fn export(path: &Path) {
    let sql =
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, globalPid, deviceId, contextId, address, bytes, \
               memKind, memoryOperationType, streamId);
               INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (1, 0, 0, 1, 28672, 4096, 2, 0, 7), \
               (2, 0, 0, 1, 28672, 4096, 2, 1, 7);";
    rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[cfg(not(feature = "nsys"))]
fn export(_: &Path) {}

#[test]
fn each_command_of_the_page_does_what_it_says() {
    let page = std::fs::read_to_string(root().join("docs/OUT_OF_MEMORY.md")).unwrap();
    let folder = files();
    export(&folder.path("profile.sqlite"));
    let commands = commands(&page);
    let of = |file: &str| commands.iter().filter(|command| command.contains(file)).count();
    let counts = ["FILE", "snapshot.pickle", "rmm.dev0.csv", "profile.sqlite", "millpond.csv"].map(of);
    assert!(counts.into_iter().all(|count| count >= 3), "{commands:?}");
    for command in commands {
        if command.contains(".sqlite") && !cfg!(feature = "nsys") {
            continue;
        }
        let words = command.split_whitespace().skip(1);
        let run: Run = program().args(words).current_dir(folder.path("")).output().unwrap().into();
        assert_eq!(run.status, 0, "{command}\n{}{}", run.stdout, run.stderr);
        assert!(!run.stdout.is_empty(), "{command}");
        assert_eq!(run.stderr, "", "{command}");
    }
    // What the page promises of the first file.
    let explained: Run =
        program().args(["explain", "snapshot.pickle"]).current_dir(folder.path("")).output().unwrap().into();
    assert!(explained.stdout.contains("at the failed request"), "{}", explained.stdout);
    let html = std::fs::read_to_string(folder.path("report.html")).unwrap();
    assert!(html.starts_with("<!") && !html.contains("http://"), "the page needs no network");
}
