//! A gate's result as text, as markdown and as JUnit's XML.

use std::io::{self, Write};

use millpond_core::format_bytes;

use super::{Check, Gate, Quantity};

impl Check {
    fn shown(&self, value: Option<f64>) -> String {
        let Some(value) = value else { return "not known".to_owned() };
        match self.quantity {
            Quantity::PeakAllocated | Quantity::PeakReserved => {
                format!("{} ({} B)", format_bytes(value as u64), value as u64)
            }
            Quantity::ReservedOverBound => format!("{value:.4}"),
            Quantity::Failures => format!("{value}"),
        }
    }

    fn verdict(&self) -> &'static str {
        if self.is_within { "within" } else { "OVER" }
    }

    /// The measured value over the budget, as a sentence.
    fn sentence(&self) -> String {
        let (measured, most) = (self.shown(self.measured), self.shown(Some(self.most)));
        match self.measured {
            Some(_) => format!("{measured}, and the budget has {most}"),
            None => format!("the file does not say, and the budget has {most}"),
        }
    }
}

/// Prints a line for each quantity.
///
/// # Errors
/// Those of `out`.
pub fn text(gate: &Gate, out: &mut impl Write) -> io::Result<()> {
    let verdict = if gate.is_within { "within the budget" } else { "OVER THE BUDGET" };
    writeln!(out, "{}: {verdict}", plain(&gate.file))?;
    for check in &gate.checks {
        let name = check.quantity.name();
        writeln!(out, "  {:<22}{:<8}{}", name, check.verdict(), check.sentence())?;
    }
    let (Some(apart), Some(host_order)) = (gate.bound_stream_safe, gate.bound_host_order) else {
        return Ok(());
    };
    let (apart, host_order) = (format_bytes(apart), format_bytes(host_order));
    writeln!(
        out,
        "any allocator needs at least {apart} with streams apart, {host_order} in the order of the host's \
         calls"
    )
}

/// Prints a table of markdown, as for `GITHUB_STEP_SUMMARY`.
///
/// # Errors
/// Those of `out`.
pub fn markdown(gate: &Gate, out: &mut impl Write) -> io::Result<()> {
    let verdict = if gate.is_within { "within the budget" } else { "over the budget" };
    // A file's name may have marks of markdown: it stands as code, without what ends that.
    writeln!(out, "### Memory of `{}`: {verdict}\n", plain(&gate.file).replace(['`', '|'], "_"))?;
    writeln!(out, "| quantity | measured | at most | |\n|---|---:|---:|---|")?;
    for check in &gate.checks {
        let (name, mark) = (check.quantity.name(), if check.is_within { "✓" } else { "✗" });
        let (measured, most) = (check.shown(check.measured), check.shown(Some(check.most)));
        writeln!(out, "| `{name}` | {measured} | {most} | {mark} |")?;
    }
    writeln!(out)
}

/// Prints JUnit's XML: a test case for each quantity.
///
/// # Errors
/// Those of `out`.
pub fn junit(gate: &Gate, out: &mut impl Write) -> io::Result<()> {
    let (tests, file) = (gate.checks.len(), escaped(&gate.file));
    let failures = gate.checks.iter().filter(|check| !check.is_within).count();
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<testsuites tests=\"{tests}\" failures=\"{failures}\">")?;
    writeln!(out, "  <testsuite name=\"millpond gate\" tests=\"{tests}\" failures=\"{failures}\">")?;
    for check in &gate.checks {
        write!(out, "    <testcase classname=\"{file}\" name=\"{}\"", check.quantity.name())?;
        if check.is_within {
            writeln!(out, "/>")?;
        } else {
            let message = escaped(&check.sentence());
            writeln!(out, ">\n      <failure message=\"{message}\"/>\n    </testcase>")?;
        }
    }
    writeln!(out, "  </testsuite>\n</testsuites>")
}

/// A text without characters that a terminal would obey, or that XML cannot hold.
fn plain(text: &str) -> String {
    let allowed = |char: char| !char.is_control() && !matches!(char, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|char| if allowed(char) { char } else { '\u{fffd}' }).collect()
}

/// A text as an attribute of XML.
fn escaped(text: &str) -> String {
    let text = plain(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}
