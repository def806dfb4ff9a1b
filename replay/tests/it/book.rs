//! Runs the commands of the book that need no GPU and no framework, and compares what they print.
//!
//! A block ```` ```console ```` has commands after `$ ` and their output below. A line `…` stands for lines
//! that the page leaves out. In tables, the column `ns/op` has times of the machine, so it is not compared.
//! Of a block ```` ```text ```` below such a command, each word is compared.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::support::{Folder, HEADER, Run, program, rows};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A command of a page, and the lines that the page shows below it.
#[derive(Debug, PartialEq)]
struct Example {
    command: String,
    output: Vec<String>,
    /// The page's next block of kind `text`, with one space between its words.
    excerpt: String,
}

impl Example {
    /// The words of a command of this program, if this test can run it.
    fn words(&self) -> Option<Vec<&str>> {
        let words = self.command.strip_prefix("millpond-replay ")?;
        let needs_gpu = words.contains("cuda:0");
        let needs_sqlite = words.contains(".sqlite") && !cfg!(feature = "nsys");
        (!needs_gpu && !needs_sqlite).then(|| words.split_whitespace().collect())
    }

    /// The first line that the page shows and the program did not print after the line before.
    fn missing<'a>(&'a self, printed: &str) -> Option<&'a str> {
        if !words(printed).contains(&self.excerpt) {
            return Some(&self.excerpt);
        }
        let shown = self.output.iter().map(|line| line.trim());
        let mut shown = shown.filter(|line| !(line.is_empty() || line.starts_with(['…', '|'])));
        let mut rest = printed.lines();
        let line = shown.find(|line| {
            let start = line.trim_end_matches('…').trim_end();
            !rest.any(|printed| printed.trim().starts_with(start))
        });
        let printed = rows_of_tables(printed.lines());
        let row = || rows_of_tables(self.output.iter().map(String::as_str)).into_iter();
        line.or_else(|| row().find(|(_, row)| !printed.iter().any(|(_, it)| it == row)).map(|(line, _)| line))
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Each row of a table, as a line and as its cells without lines of dashes and without the column `ns/op`.
fn rows_of_tables<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut timed = None;
    let rows = lines.map(str::trim).filter(|line| line.starts_with('|') && !line.starts_with("|--"));
    rows.map(|line| {
        let mut cells: Vec<&str> = line.split('|').map(str::trim).collect();
        timed = cells.iter().position(|cell| *cell == "ns/op").or(timed);
        if let Some(timed) = timed.filter(|timed| *timed < cells.len()) {
            cells.remove(timed);
        }
        (line, cells)
    })
    .collect()
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let (mut block, mut continues) = ("", false);
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            (block, continues) = (kind, false);
        } else if let ("text", Some(example)) = (block, examples.last_mut()) {
            example.excerpt = words(&format!("{} {line}", example.excerpt));
        } else if block != "console" {
            continue;
        } else if let Some(command) = line.strip_prefix("$ ") {
            continues = command.ends_with('\\');
            let (command, excerpt) = (command.to_owned(), String::new());
            examples.push(Example { command, output: Vec::new(), excerpt });
        } else if let Some(example) = examples.last_mut() {
            if continues {
                example.command =
                    format!("{} {}", example.command.trim_end_matches('\\').trim_end(), line.trim());
                continues = line.ends_with('\\');
            } else {
                example.output.push(line.to_owned());
            }
        }
    }
    examples
}

fn unpacked(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(root().join(path)).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The files that the programs of the pages write, and links to folders of the checkout.
fn files() -> Folder {
    let folder = Folder::new();
    for name in ["examples", "snapshot"] {
        std::os::unix::fs::symlink(root().join(name), folder.path(name)).unwrap();
    }
    let recorded = unpacked("snapshot/tests/snapshots/out_of_memory.pickle.gz");
    for name in ["snapshot.pickle", "before.pickle", "after.pickle"] {
        folder.write(name, &recorded);
    }
    // Calls `posix.system` if Python loads it.
    folder.write(
        "bad.pickle",
        b"\x80\x04\x95\x14\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
    );
    for name in ["rmm.dev0.csv", "app.csv"] {
        folder.write(name, format!("{HEADER}{}", rows(2, 600)));
    }
    let header = HEADER.replace('\n', ",Device,Alignment,Sequence,MonotonicNs,DurationNs\n");
    let row = |action: &str, number: u32| {
        format!("7,05:01:18.9,{action},0x7f00,4096,0,cuda:0,256,{number},{number},5\n")
    };
    folder.write("millpond.csv", format!("{header}{}{}", row("allocate", 0), row("free", 1)));
    export(&folder.path("profile.sqlite"));
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

/// Runs the commands of a page; returns how many it ran.
fn run_page(name: &str) -> usize {
    let page = std::fs::read_to_string(root().join("docs/book/src").join(name)).unwrap();
    let folder = files();
    let mut problems = Vec::new();
    let mut count = 0;
    for example in examples(&page) {
        // A file that the page's reader writes with a program is not there.
        let Some(words) = example.words() else { continue };
        let is_file = |word: &&&str| word.ends_with(".csv") || word.ends_with(".plan");
        if words.iter().find(is_file).is_some_and(|file| !folder.path(file).exists()) {
            continue;
        }
        count += 1;
        let run: Run = program().args(&words).current_dir(folder.path("")).output().unwrap().into();
        let printed = format!("{}{}", run.stdout, run.stderr);
        if let Some(line) = example.missing(&printed) {
            problems.push(format!("{}: no line `{line}` in\n{printed}", example.command));
        }
        // Where the page shows a failure, it shows its text.
        if run.status != 0 && example.output.is_empty() {
            problems.push(format!("{}: status {}\n{printed}", example.command, run.status));
        }
    }
    assert!(problems.is_empty(), "{name}\n{}", problems.join("\n"));
    count
}

#[test]
fn the_commands_about_memory_that_is_out_print_what_the_page_shows() {
    assert!(run_page("out-of-memory.md") >= 16);
}

#[test]
fn the_commands_of_the_tutorial_print_what_the_page_shows() {
    assert!(run_page("tutorial.md") >= 4);
}

#[test]
fn the_commands_about_logs_and_files_print_what_the_pages_show() {
    assert!(run_page("logs.md") >= 3);
    assert!(run_page("snapshots.md") >= 6);
}

#[test]
fn a_line_that_is_not_printed_is_found() {
    let page =
        "```console\n$ millpond-replay a \\\n    b\nfirst\n…\nlast 3 …\n$ other\n```\n```rust\n$ no\n```\n";
    let found = examples(page);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].words(), Some(vec!["a", "b"]));
    assert_eq!(found[0].missing("first\nsecond\nlast 3 of 4\n"), None);
    assert_eq!(found[0].missing("last 3 of 4\nfirst\n"), Some("last 3 …"));
    assert_eq!(found[1].words(), None);
}

#[test]
fn a_figure_that_is_not_printed_is_found() {
    let page =
        "```console\n$ a\n| a | ns/op | b |\n|---|---|---|\n| x | 7 | 8 |\n```\n```text\none\ntwo\n```\n";
    let [example] = &examples(page)[..] else { panic!("one command") };
    let printed = |row: &str, text: &str| format!("| a | ns/op |  b |\n|---|----|--|\n{row}\n{text}");
    assert_eq!(example.missing(&printed("| x |    1 |  8 |", "one two three")), None);
    assert_eq!(example.missing(&printed("| x |    1 | 88 |", "one two")), Some("| x | 7 | 8 |"));
    assert_eq!(example.missing(&printed("| x |    1 |  8 |", "one")), Some("one two"));
}
