//! Finds names in documents that no source has: paths, types, functions, and tests of the file named before.

use crate::markdown;
use crate::repo::File;

/// Names in the guide to the pool that other crates define.
const OF_OTHERS: [&str; 6] = [
    "trim",
    "LadderCounts",
    "event_record_if_alive",
    "record_unless_capturing",
    "resources/src/",
    "allocate",
];

/// Returns each function, type, constant or file in the pool guide's backticks that no source has.
pub(crate) fn unknown_in_guide(document: &File, sources: &[File]) -> Vec<String> {
    let is_known = |name: &str| match name.strip_suffix('/').or(name.strip_suffix(".rs")) {
        Some(path) => sources.iter().any(|file| {
            let below = file.path.trim_start_matches("resources/src/");
            below.contains(&format!("{path}/")) || below.ends_with(&format!("{path}.rs"))
        }),
        None => name.split("::").all(|part| sources.iter().any(|file| defines(&file.text, part))),
    };
    let mut problems = Vec::new();
    for (index, line) in document.text.lines().enumerate().filter(|(_, line)| !line.starts_with("```")) {
        // Names from CUDA and Rust, and parts of a stack's text, are not ours.
        let ours = markdown::code_spans(line)
            .into_iter()
            .filter(|name| is_name(name) && !name.starts_with("cu") && !name.starts_with("limits."));
        let unknown = ours.filter(|name| !is_known(name) && !OF_OTHERS.contains(name));
        problems
            .extend(unknown.map(|name| format!("{}:{}: no source has `{name}`", document.path, index + 1)));
    }
    problems
}

/// Returns each path and name in backticks that no file of the repository has. The first column of a table
/// has another project's names. In the other columns, a name that follows a file's path must be in that file.
pub(crate) fn unknown_names(document: &File, files: &[File]) -> Vec<String> {
    let sources: Vec<&File> = files.iter().filter(|file| file.is("rs")).collect();
    let mut problems = Vec::new();
    for (number, line) in markdown::prose(&document.text) {
        let cells = cells(line);
        let ours = if cells.len() > 1 { &cells[1..] } else { &cells[..] };
        for cell in ours {
            let mut inside: Option<&File> = None;
            for name in markdown::code_spans(cell).into_iter().filter(|name| is_name(name)) {
                let problem = if name.contains('/') {
                    inside = files.iter().find(|file| file.path == name);
                    let exists = inside.is_some()
                        || name.ends_with('/') && files.iter().any(|file| file.path.starts_with(name));
                    (!exists).then(|| format!("`{name}` does not exist"))
                } else if let Some(file) = inside {
                    (!has(&file.text, name)).then(|| format!("`{}` has no `{name}`", file.path))
                } else {
                    let is_known = |part: &str| sources.iter().any(|file| has(&file.text, part));
                    (!name.split("::").all(is_known)).then(|| format!("no source has `{name}`"))
                };
                problems.extend(problem.map(|what| format!("{}:{number}: {what}", document.path)));
            }
        }
    }
    problems
}

/// Returns each line of code in the second column of a section's table that is not in the program below the
/// table.
pub(crate) fn code_outside_the_program(document: &File, heading: &str) -> Vec<String> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let program = words(&markdown::fenced(&document.text, "rust").join("\n"));
    let rows = markdown::table_rows(&document.text, heading);
    let code = rows.iter().flat_map(|row| cells(row).get(1).cloned());
    let lines: Vec<String> = code
        .flat_map(|cell| {
            markdown::code_spans(&cell).into_iter().map(|it| it.replace("\\|", "|")).collect::<Vec<_>>()
        })
        .collect();
    let missing = lines.iter().filter(|line| !program.contains(&words(line)));
    missing.map(|line| format!("{}: the program has no `{line}`", document.path)).collect()
}

/// Returns the cells of a table's row; for another line, the line itself. `\|` stands for a bar inside a
/// cell.
fn cells(line: &str) -> Vec<String> {
    let Some(row) = line.trim().strip_prefix('|') else { return vec![line.to_owned()] };
    let row = row.replace("\\|", "\0");
    row.trim_end_matches('|').split('|').map(|cell| cell.replace('\0', "\\|")).collect()
}

/// Returns whether a quoted text is a path or a name, and not code or a stack's text.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_:/.".contains(c))
}

/// Returns whether a source defines the name, as an item, a macro's test, a variant, a field, or a stack's
/// layer.
fn has(text: &str, name: &str) -> bool {
    let is_line = |line: &str| {
        let line = line.trim();
        line.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([',', '(', ' ']))
            && name.starts_with(char::is_uppercase)
            || line.starts_with(&format!("{name} => "))
            || line.starts_with(&format!("pub {name}: "))
    };
    defines(text, name)
        || text.contains(&format!("name: \"{name}\""))
        || text.contains(&format!("(\"{name}\", \""))
        || text.lines().any(is_line)
}

/// Returns whether a source defines an item of this name.
fn defines(text: &str, name: &str) -> bool {
    ["fn ", "struct ", "enum ", "trait ", "type ", "const ", "mod ", "static "].iter().any(|keyword| {
        text.match_indices(&format!("{keyword}{name}")).any(|(at, found)| {
            let after = text[at + found.len()..].chars().next();
            !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    })
}
