//! Tests that texts from files reach a terminal without control characters, whatever command prints them.
//!
//! A file's name, a tag, a frame or a message may hold escape sequences, which change the state of a
//! terminal, and characters that show a text in another order.
#![cfg(unix)]

use std::path::PathBuf;

use millpond_engine::log::notes::push_word;
use millpond_engine::text::plain_lines;

use crate::support::{Folder, HEADER, Run, program, rows, snapshot};

/// A window's title, an escape sequence of one character, a new line, and text from right to left.
const ATTACK: &str = "\u{1b}]0;title\u{7}\u{9b}2J\r\u{202e}txt.";

fn word(text: &str) -> String {
    let mut word = String::new();
    push_word(&mut word, text);
    word
}

/// A log whose texts are the attack: as a recording of a program, with a failed request.
fn recording(folder: &Folder, name: &str) -> PathBuf {
    let of = word(ATTACK);
    let texts = format!("source {of};detail {of} {of};setting {of} {of};unknown {of} {of};tag 1 {of}");
    let notes = format!("{texts};frame 1 7 {of} {of};stack 1 1");
    let head = "Thread,Time,Action,Pointer,Size,Stream,UnixNs,Stack,Tag,Notes\n";
    let text = format!(
        "{head}1,0,allocate,0x1000,1048576,0,1,1,{of},{notes}\n\
         1,0,allocate,0x200000,1048576,0,2,1,{of},\n\
         1,0,free,0x1000,1048576,0,3,1,,\n\
         1,0,allocate failure,(nil),9223372036854775807,0,4,1,{of},\n"
    );
    folder.write(name, text)
}

/// Runs a command with this file. Returns each line that a terminal would not show as it is.
fn attacks(folder: &Folder, file: &str, words: &[&str]) -> Vec<String> {
    let arguments = words.iter().map(|word| if *word == "FILE" { file } else { word });
    let run: Run = program().args(arguments).current_dir(folder.path("")).output().unwrap().into();
    let mut printed = run.stdout + &run.stderr;
    if words[0] == "import" {
        // A log is data: it keeps every character that RMM's form of a log can have.
        printed = printed.replace('\u{202e}', "");
    }
    assert!(run.status < 128 && !printed.is_empty(), "{words:?}: {}", run.status);
    let lines = printed.split('\n').filter(|line| **line != plain_lines(line));
    lines.map(|line| format!("{words:?}: {line:?}")).collect()
}

#[track_caller]
fn none(attacks: &[String]) {
    assert!(attacks.is_empty(), "{}", attacks.join("\n"));
}

/// The commands that read a log, in each of their formats.
const COMMANDS: [&[&str]; 29] = [
    &["FILE", "-d", "sim", "-s", "cuda", "-s", "cuda+pool"],
    &["FILE", "-d", "sim", "-s", "cuda+pool:max=2MiB", "-f", "details"],
    &["FILE", "-d", "sim", "-s", "cuda", "-f", "json"],
    &["FILE", "-d", "sim", "-s", "cuda", "-f", "csv"],
    &["FILE", "-d", "sim", "--progress", "-s", "cuda"],
    &["busy", "FILE", "-d", "sim", "-s", "cuda+pool"],
    &["busy", "FILE", "-d", "sim", "-s", "cuda+pool", "-f", "csv"],
    &["busy", "FILE", "-d", "sim", "-s", "cuda+pool", "-f", "json"],
    &["calibrate", "--device", "sim", "--check", "FILE"],
    &["explain", "FILE"],
    &["explain", "FILE", "--device-memory", "80GiB"],
    &["explain", "FILE", "-f", "json"],
    &["export", "FILE", "-f", "speedscope"],
    &["export", "FILE", "-f", "folded"],
    &["export", "FILE", "-f", "all-frames"],
    &["export", "FILE", "-f", "perfetto"],
    &["export", "FILE", "-f", "series"],
    &["fidelity", "FILE"],
    &["gate", "FILE", "--write", "--budget", "b.toml"],
    &["gate", "FILE", "--budget", "FILE"],
    &["import", "FILE"],
    &["import", "FILE", "-f", "json"],
    &["import", "FILE", "-o", "-"],
    &["plan", "FILE"],
    &["plan", "FILE", "-f", "json"],
    &["report", "FILE", "-o", "-"],
    &["tune", "FILE"],
    &["tune", "FILE", "-f", "json"],
    &["top", "--folder", "FILE"],
];

#[test]
fn no_command_prints_control_characters_of_a_file() {
    let folder = Folder::new();
    let plain = folder.log(&rows(2, 40));
    let named = folder.path(&format!("{ATTACK}.csv"));
    std::fs::copy(plain, &named).unwrap();
    let inside = recording(&folder, "inside.csv");
    let both = recording(&folder, &format!("both{ATTACK}.csv"));
    let broken = folder.write(&format!("broken{ATTACK}"), format!("{HEADER}1,0,{ATTACK},0x1,8,0\n"));
    let files = [named, inside, both, broken, folder.path(ATTACK)];
    let found =
        files.iter().flat_map(|file| COMMANDS.map(|words| attacks(&folder, file.to_str().unwrap(), words)));
    none(&found.flatten().collect::<Vec<_>>());
}

/// A user may paste a command that names the file.
#[test]
fn a_suggested_command_quotes_the_name_of_the_file() {
    let folder = Folder::new();
    let name = "$(touch run);`touch run`.pickle.gz";
    std::fs::copy(snapshot("fragmented"), folder.path(name)).unwrap();
    let run: Run = program().args(["explain", name]).current_dir(folder.path("")).output().unwrap().into();
    let (_, command) = run.stdout.split_once("millpond-replay tune ").expect("it suggests a command");
    assert!(command.starts_with(&format!("'{name}'")), "{command}");
}

/// A profile names its device, and an error quotes a profile, a budget or a plan.
#[test]
fn no_command_prints_control_characters_of_a_profile_a_budget_or_a_plan() {
    let folder = Folder::new();
    let log = folder.log(&rows(1, 10));
    let escaped: String = ATTACK.chars().map(|char| format!("\\u{:04x}", u32::from(char))).collect();
    let profile = include_str!("../../../driver/profiles/h200.toml");
    let line = profile.lines().find(|line| line.starts_with("name = ")).unwrap();
    let named = folder.write("named.toml", profile.replace(line, &format!("name = \"{escaped}\"")));
    let quoted = folder.write("quoted.toml", format!("{profile}\n\"{escaped}\" = 1\n"));
    let raw = folder.write("raw.toml", format!("a = '{ATTACK}'\n{ATTACK}"));
    let plan = folder.write("raw.plan", format!("millpond plan {ATTACK}\n"));
    let (log, mut found) = (log.to_str().unwrap(), Vec::new());
    for file in [named, quoted, raw, plan] {
        let file = file.display();
        for words in [
            &[log, "-s", "cuda", "-d", &format!("sim:{file}")][..],
            &[log, "-s", "cuda", "-f", "csv", "-d", &format!("sim:{file}")],
            &[log, "-d", "sim", "-s", &format!("cuda+plan:file=\"{file}\"")],
            &["gate", log, "--budget", &file.to_string()],
            &["bench", "-d", &format!("sim:{file}"), "-s", "cuda", "--workload", "pair", "--threads", "1"],
        ] {
            found.extend(attacks(&folder, "", words));
        }
    }
    none(&found);
}
