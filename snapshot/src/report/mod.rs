//! Writes one HTML page about a recording. The page needs no other file, and makes no network requests.
//!
//! The page's security policy allows only its own script and style, by their hashes. The texts of the
//! recording may come from an untrusted program. So they are JSON in the page, and the script shows them only
//! as text. The page contains the packed columns of all blocks, so it can draw any part of them. For a long
//! recording, it contains the largest blocks, and sums of the other blocks, which are exact at chosen events.

mod bands;
mod cells;
mod census;
mod curve;
mod pack;
mod places;
mod run;
mod texts;

use std::io::{self, Write};

use millpond_engine::text::write_json;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::explain::Explanation;
use crate::placement::Placement;
use crate::recording::{Recording, Sums};
pub use curve::Curve;
use pack::{Pack, base64};
use run::{Extras, Run};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPTS: [&str; 18] = [
    include_str!("read.js"),
    include_str!("units.js"),
    include_str!("run.js"),
    include_str!("view.js"),
    include_str!("chart.js"),
    include_str!("charts.js"),
    include_str!("cells.js"),
    include_str!("map.js"),
    include_str!("sizes.js"),
    include_str!("state.js"),
    include_str!("tables.js"),
    include_str!("flame.js"),
    include_str!("filter.js"),
    include_str!("block.js"),
    include_str!("lines.js"),
    include_str!("findings.js"),
    include_str!("link.js"),
    include_str!("main.js"),
];

/// The contents of a page.
///
/// ```
/// use millpond_snapshot::report::Page;
/// use millpond_snapshot::{explain, import};
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &import::Options::default())?;
/// let explanation = explain::explain(&recording, None);
/// let page = Page::new(&recording, &explanation);
/// let mut html = Vec::new();
/// page.write(&mut html)?;
/// assert!(html.starts_with(b"<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Page<'a> {
    /// The recording to draw.
    pub recording: &'a Recording,
    /// The explanation of the recording, from [`explain`](crate::explain::explain).
    pub explanation: &'a Explanation,
    /// The recording of another run, to compare with.
    pub other: Option<&'a Recording>,
    /// A placement of the recording's blocks.
    pub placement: Option<&'a Placement>,
    /// The bytes that stacks of memory resources reserved while they replayed the recording.
    pub curves: &'a [Curve],
}

impl<'a> Page<'a> {
    /// Returns a page with only the recording and its explanation.
    pub const fn new(recording: &'a Recording, explanation: &'a Explanation) -> Self {
        Self { recording, explanation, other: None, placement: None, curves: &[] }
    }

    millpond_core::setters! {
        other: Option<&'a Recording>,
        placement: Option<&'a Placement>,
        curves: &'a [Curve],
    }
}

/// The JSON in the page with the id `summary`, for programs.
#[derive(Serialize)]
struct Summary<'a> {
    version: u32,
    explanation: &'a Explanation,
    plan: Option<&'a Placement>,
    other: Option<Other<'a>>,
    stacks: Vec<StackPeak<'a>>,
}

#[derive(Serialize)]
struct Other<'a> {
    file: &'a str,
    sums: Sums,
}

#[derive(Serialize)]
struct StackPeak<'a> {
    stack: &'a str,
    peak_reserved_bytes: u64,
}

#[derive(Serialize)]
struct Layout<'a> {
    runs: Vec<Run<'a>>,
}

impl Page<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut pack = Pack::new();
        let extras = Extras { placement: self.placement, curves: self.curves, is_brief: false };
        let mut runs = vec![Run::new(self.recording, extras, &mut pack)?];
        if let Some(other) = self.other {
            runs.push(Run::new(other, Extras { is_brief: true, ..Extras::default() }, &mut pack)?);
        }
        let other = self.other.map(|other| Other { file: other.file(), sums: other.sums() });
        let peak = |curve: &Curve| curve.bytes.iter().copied().max().unwrap_or(0);
        let stacks = self.curves.iter();
        let stacks = stacks.map(|curve| StackPeak { stack: &curve.name, peak_reserved_bytes: peak(curve) });
        let (explanation, plan) = (self.explanation, self.placement);
        let summary = Summary { version: 1, explanation, plan, other, stacks: stacks.collect() };
        let script = SCRIPTS.concat();
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
            hash(&script),
            hash(STYLE)
        );
        let (summary, layout, data) = (json(&summary)?, json(&Layout { runs })?, pack.base64()?);
        let parts = [
            ("policy", policy.as_str()),
            ("style", STYLE),
            ("script", &script),
            ("summary", &summary),
            ("layout", &layout),
            ("data", &data),
        ];
        // Only the template is searched for placeholders, never the texts that replace them.
        for (at, piece) in PAGE.split('@').enumerate() {
            let part = parts.iter().find(|(mark, _)| at % 2 == 1 && *mark == piece);
            out.write_all(part.map_or(piece, |(_, text)| text).as_bytes())?;
        }
        Ok(())
    }
}

/// Returns the hash of a script or a style, in the form that a security policy needs.
fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

/// Returns JSON that cannot end an HTML element, whatever texts it contains.
fn json(value: &impl Serialize) -> io::Result<String> {
    let mut json = Vec::new();
    write_json(&mut json, value)?;
    Ok(String::from_utf8_lossy(&json).replace('<', "\\u003c"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_of_the_page_has_its_part() {
        let marks: Vec<&str> = PAGE.split('@').skip(1).step_by(2).collect();
        assert_eq!(marks, ["policy", "style", "summary", "layout", "data", "script"]);
    }

    #[test]
    fn no_text_ends_the_element_that_it_is_in() {
        let json = json(&"</script><!--<script>").unwrap();
        assert!(!json.contains('<'), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "</script><!--<script>");
    }
}
