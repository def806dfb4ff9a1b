//! Prints the result of a gate as text, Markdown or JUnit XML.

use std::io::{self, Write};

use millpond_core::format_bytes;
use millpond_engine::text::plain;

use super::{Check, Gate, Quantity};
use crate::placement::Bounds;

impl Check {
    fn shown(&self, value: Option<f64>) -> String {
        let Some(value) = value else { return "not known".to_owned() };
        match self.quantity {
            Quantity::PeakAllocated | Quantity::PeakReserved => {
                let (text, exact) = (format_bytes(value as u64), format!("{}B", value as u64));
                if text == exact { text } else { format!("{text} ({} B)", value as u64) }
            }
            Quantity::ReservedOverBound => format!("{value:.4}"),
            Quantity::Failures => format!("{value}"),
        }
    }

    fn verdict(&self) -> &'static str {
        if self.is_within { "within" } else { "OVER" }
    }

    /// Returns the measured value and the budget, as a sentence.
    fn sentence(&self) -> String {
        let (measured, most) = (self.shown(self.measured), self.shown(Some(self.most)));
        match self.measured {
            Some(_) => format!("{measured}, and the budget allows {most}"),
            None => format!("the file does not have this figure, and the budget allows {most}"),
        }
    }
}

/// Prints a line for each quantity.
///
/// # Errors
/// Writing to `out` fails.
pub fn text(gate: &Gate, out: &mut impl Write) -> io::Result<()> {
    let verdict = if gate.is_within { "within the budget" } else { "OVER THE BUDGET" };
    writeln!(out, "{}: {verdict}", plain(&gate.file))?;
    for check in &gate.checks {
        let name = check.quantity.name();
        writeln!(out, "  {:<22}{:<8}{}", name, check.verdict(), check.sentence())?;
    }
    for doubt in &gate.doubts {
        writeln!(out, "  note: {}", plain(&doubt.text))?;
    }
    let (Some(stream_safe), Some(host_order)) = (gate.bound_stream_safe, gate.bound_host_order) else {
        return Ok(());
    };
    let failed = if gate.failed_requests > 0 { ", with the failed requests" } else { "" };
    writeln!(out, "any allocator needs at least {}{failed}", Bounds { host_order, stream_safe })
}

/// Prints a Markdown table, for example for `GITHUB_STEP_SUMMARY`.
///
/// # Errors
/// Writing to `out` fails.
pub fn markdown(gate: &Gate, out: &mut impl Write) -> io::Result<()> {
    let verdict = if gate.is_within { "within the budget" } else { "over the budget" };
    // A file's name may contain Markdown. So it is printed as code, without the characters that end code.
    writeln!(out, "### Memory of `{}`: {verdict}\n", plain(&gate.file).replace(['`', '|'], "_"))?;
    writeln!(out, "| quantity | measured | at most | |\n|---|---:|---:|---|")?;
    for check in &gate.checks {
        let (name, mark) = (check.quantity.name(), if check.is_within { "✓" } else { "✗" });
        let (measured, most) = (check.shown(check.measured), check.shown(Some(check.most)));
        writeln!(out, "| `{name}` | {measured} | {most} | {mark} |")?;
    }
    writeln!(out)
}

/// Prints JUnit XML: a test case for each quantity.
///
/// # Errors
/// Writing to `out` fails.
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

/// Returns the text as an XML attribute. XML cannot hold two of the characters.
fn escaped(text: &str) -> String {
    let text = plain(text).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}
