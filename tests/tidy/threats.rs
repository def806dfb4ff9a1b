//! Checks that each row of the page of threats names tests that exist.

use crate::markdown;
use crate::repo::{File, file, files};

const PAGE: &str = "docs/design/threats.md";

#[test]
fn each_threat_has_a_test() {
    let (page, files) = (file(PAGE), files());
    let (rows, problems) = untested(&page, &files);
    assert!(rows > 30, "the page has {rows} rows with tests");
    crate::none(problems);
}

/// Counts the rows of the tables whose last column is `test`. Returns the problems of their last cells: the
/// path of a file, and then tests in this file, all in backticks.
fn untested(page: &File, files: &[File]) -> (usize, Vec<String>) {
    let (mut rows, mut problems, mut is_listed) = (0, Vec::new(), false);
    for (number, line) in markdown::prose(&page.text) {
        let cell = line.trim().strip_prefix('|').and_then(|row| row.trim_end_matches('|').rsplit('|').next());
        let Some(cell) = cell.map(str::trim) else {
            is_listed = false;
            continue;
        };
        if cell == "test" {
            is_listed = true;
        } else if is_listed && !cell.starts_with("---") {
            rows += 1;
            let wrong = wrong_names(cell, files);
            problems.extend(wrong.into_iter().map(|what| format!("{}:{number}: {what}", page.path)));
        }
    }
    (rows, problems)
}

fn wrong_names(cell: &str, files: &[File]) -> Vec<String> {
    let (mut problems, mut tests, mut inside) = (Vec::new(), 0, None);
    for name in markdown::code_spans(cell) {
        if name.contains('/') {
            inside = files.iter().find(|file| file.path == name);
            problems.extend(inside.is_none().then(|| format!("`{name}` does not exist")));
        } else if let Some(file) = inside {
            tests += 1;
            problems.extend((!is_test(file, name)).then(|| format!("`{}` has no test `{name}`", file.path)));
        }
    }
    problems.extend((tests == 0).then(|| "the row names no test".to_owned()));
    problems
}

/// Returns whether a file defines the test: in Rust, a function below `#[test]`.
fn is_test(file: &File, name: &str) -> bool {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    if file.is("py") {
        return name.starts_with("test_")
            && lines.iter().any(|line| line.starts_with(&format!("def {name}(")));
    }
    let defines = |line: &&str| line.starts_with(&format!("fn {name}("));
    lines.iter().position(defines).is_some_and(|at| {
        let mut above = lines[..at].iter().rev().take_while(|line| line.starts_with('#'));
        above.any(|line| *line == "#[test]")
    })
}

/// Shows that the rule finds each problem that it refuses.
#[test]
fn rows_without_tests_are_found() {
    let source = "#[test]\n#[cfg(unix)]\nfn one() {}\nfn helper() {}\n";
    let files = [File::of("a/b.rs", source), File::of("c/d.py", "def test_it(made):\n")];
    let found = |cell: &str| {
        let page = format!(
            "| attack | test |\n|---|---|\n| x | {cell} |\n\n| other | why |\n|---|---|\n| a | b |\n"
        );
        untested(&File::of("p.md", page), &files)
    };
    assert_eq!(found("`a/b.rs` `one`; `c/d.py` `test_it`"), (1, vec![]));
    for (cell, what) in [
        ("none", "the row names no test"),
        ("`one`", "the row names no test"),
        ("`a/b.rs`", "the row names no test"),
        ("`a/b.rs` `helper`", "`a/b.rs` has no test `helper`"),
        ("`a/b.rs` `one` `two`", "`a/b.rs` has no test `two`"),
        ("`a/b.rs` `one` `a/c.rs`", "`a/c.rs` does not exist"),
    ] {
        assert_eq!(found(cell), (1, vec![format!("p.md:3: {what}")]), "{cell}");
    }
}
