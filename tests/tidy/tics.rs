//! Counts tics: turns of phrase that hide the subject or the verb of a sentence.

use super::{File, rust, words};

/// Each tic, in lower case, with the number of uses that are allowed. The tics are written in pieces, so that
/// this file contains none of them.
pub(crate) const TICS: [(&str, usize); 11] = [
    (concat!("that ", "of"), 0),
    (concat!("those ", "of"), 0),
    // PyTorch's message in its reader.
    (concat!("of ", "which"), 4),
    // Headings and questions on pages.
    (concat!("what ", "it"), 10),
    (concat!("what ", "the"), 4),
    (concat!("what ", "is"), 2),
    (concat!("what ", "no"), 0),
    // A key of plan files, a public field, and the name of a source; and a page.
    (concat!("be", "side"), 8),
    (concat!("but ", "for"), 0),
    (concat!("in place ", "of"), 0),
    (concat!("of one's ", "own"), 0),
];

/// Returns the text of a file that people read, on the same lines. Of Rust, this is strings and comments.
fn prose(file: &File) -> String {
    let path = file.path.as_str();
    let is_record =
        path == "CHANGELOG.md" || path.starts_with("docs/lab/") || path.starts_with("docs/public-api/");
    let is_data = path.contains("LICENSE-")
        || path.contains("/tests/readers/")
        || path.ends_with("Cargo.lock")
        || file.is("plan");
    if is_record || is_data {
        String::new()
    } else if file.is("rs") {
        // A backslash continues a string on the next line.
        rust::texts(&file.text).replace("\\\n", "\n")
    } else {
        file.text.clone()
    }
}

/// Returns the line of each use of a tic, with the tic's index in [`TICS`].
pub(crate) fn uses(file: &File) -> Vec<(usize, usize)> {
    words::uses(&prose(file), &TICS.map(|(tic, _)| tic))
}

/// Returns all uses of each tic that has more uses than its number allows.
pub(crate) fn too_frequent(files: &[File]) -> Vec<String> {
    let mut places = vec![Vec::new(); TICS.len()];
    for file in files {
        for (line, index) in uses(file) {
            places[index].push(format!("{}:{line}", file.path));
        }
    }
    let mut problems = Vec::new();
    for ((tic, allowed), places) in TICS.iter().zip(&places) {
        if places.len() > *allowed {
            let advice = format!("`{tic}`: {} uses, over {allowed}; name the subject", places.len());
            problems.extend(places.iter().map(|place| format!("{place}: {advice}")));
        }
    }
    problems
}
