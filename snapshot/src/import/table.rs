//! The rows of a table whose cells are separated by commas.

use csv::{ReaderBuilder, StringRecord, Trim};

/// The cell that is added to a line with quotes.
const END: &str = ".";

/// Returns the cells of a line, without the space around them. Returns `None` if a quoted cell does not end
/// on the line, because otherwise a stray quote would swallow the lines after it.
pub(super) fn row(line: &str) -> Option<StringRecord> {
    if !line.contains('"') {
        return Some(line.split(',').map(str::trim).collect());
    }
    let marked = format!("{},{END}", line.trim_end_matches(['\r', '\n']));
    let mut row = ReaderBuilder::new();
    row.has_headers(false).flexible(true).trim(Trim::All);
    let mut row = row.from_reader(marked.as_bytes()).into_records().next()?.ok()?;
    // A cell without an end goes on to the end of the text.
    let cells = row.len().checked_sub(1).filter(|last| row.get(*last) == Some(END))?;
    row.truncate(cells);
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_trimmed_and_a_quoted_one_may_hold_commas_and_quotes() {
        for (line, expected) in [
            ("a, b ,,1\r\n", &["a", "b", "", "1"][..]),
            ("\"a,b\",\"c\"\"d\",2\r\n", &["a,b", "c\"d", "2"]),
            ("\"\",x", &["", "x"]),
            ("5\" disk,2\n", &["5\" disk", "2"]),
            ("x,\"a\"", &["x", "a"]),
            ("", &[""]),
        ] {
            assert_eq!(row(line).unwrap().iter().collect::<Vec<_>>(), expected, "{line:?}");
        }
        for line in ["\"a,1,2\n", "1,\"", "\"a\"\",b\n"] {
            assert_eq!(row(line), None, "{line:?}");
        }
    }
}
