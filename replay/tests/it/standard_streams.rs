//! Tests that `-` is the standard input or output wherever a file is named, and never a file of that name.

use std::fs::File;
use std::path::Path;

use crate::support::{Folder, Run, program, snapshot};

/// Runs the words of a line in a folder, with this file as the standard input. `LOG` is a file to import.
fn run(folder: &Folder, line: &str, input: &Path) -> Run {
    let log = snapshot("plain");
    let mut command = program();
    command.current_dir(folder.path("")).stdin(File::open(input).unwrap());
    for word in line.split_whitespace() {
        if word == "LOG" {
            command.arg(&log)
        } else {
            command.arg(word)
        };
    }
    let run = command.output().unwrap().into();
    assert!(!folder.path("-").exists(), "{line}");
    run
}

#[test]
fn files_are_read_from_and_written_to_the_standard_streams() {
    let folder = Folder::new();
    for (line, start) in [
        ("- --stack cuda+pool --format json", "{"),
        ("busy - --stack cuda+pool --device sim:8GiB --format json", "{"),
        ("import - -o -", "Thread,Time,Action"),
        ("import - --format json", "{"),
        ("explain - --format json", "{"),
        ("export - --format speedscope -o -", "{"),
        ("plan - --time 1 -o -", "id,"),
        ("report - --plan-time 0 -o -", "<!doctype html>"),
        ("report LOG - --plan-time 0 -o -", "<!doctype html>"),
        ("gate - --write --budget -", "#"),
    ] {
        let run = run(&folder, line, &snapshot("plain"));
        assert!(run.status == 0 && run.stdout.starts_with(start), "{line}: {}{}", run.stdout, run.stderr);
    }
}

#[test]
fn what_a_command_writes_it_can_read_back() {
    let folder = Folder::new();
    for (write, read) in [
        ("gate LOG --write --budget -", "gate LOG --budget -"),
        (
            "calibrate --device sim:h200 --out -",
            "calibrate --device sim:h200 --profile - --check LOG --runs 1",
        ),
    ] {
        let written = run(&folder, write, &snapshot("plain"));
        let input = folder.write("input", written.stdout);
        let read = run(&folder, read, &input);
        assert!(written.status == 0 && read.status == 0, "{write}: {}{}", written.stderr, read.stderr);
    }
}

#[test]
fn other_files_cannot_be_streams() {
    let folder = Folder::new();
    folder.write("budget.toml", run(&folder, "gate LOG --write --budget -", &snapshot("plain")).stdout);
    for (line, status, told) in [
        ("gate LOG --budget budget.toml --junit -", 2, "`./-`"),
        ("gate LOG --budget budget.toml --markdown -", 2, "`./-`"),
        ("run --record - true", 2, "`./-`"),
        ("top --folder -", 2, "`./-`"),
        ("LOG --stack cuda+logging:file=-", 2, "`./-`"),
        ("LOG --stack cuda+pool+plan:file=-", 2, "`./-`"),
        ("- - --stack cuda", 2, "named twice"),
        ("gate - --budget -", 2, "named twice"),
        ("report - - -o page.html", 2, "named twice"),
    ] {
        let run = run(&folder, line, &snapshot("plain"));
        assert!(run.status == status && run.stderr.contains(told), "{line}: {} {}", run.status, run.stderr);
    }
}
