//! Reads Python tracebacks in the form of text.

use crate::recording::Frame;

/// Returns the frames of a traceback in its order, the outermost first. Other lines are left out.
pub(super) fn frames(text: &str) -> impl DoubleEndedIterator<Item = Frame<'_>> {
    text.lines().filter_map(|line| {
        let (file, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
        let (line, function) = rest.split_once(", in ")?;
        Some(Frame { function: function.trim_end(), file, line: line.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_are_left_out() {
        let text = "  File \"/data/a b.py\", line 3, in <module>\n    f()\n  File \"x.py\", line 10, in f\n\
                    \n    1/0\n  File \"x.py\", line ?, in g\nFile \"x.py\n";
        let found: Vec<Frame<'_>> = frames(text).collect();
        let first = Frame { function: "<module>", file: "/data/a b.py", line: 3 };
        assert_eq!(found, [first, Frame { function: "f", file: "x.py", line: 10 }]);
    }
}
