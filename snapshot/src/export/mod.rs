//! Writes a recording in the formats of other tools: the call stacks of live blocks at one moment, or live
//! bytes over time.
//!
//! | format | read by |
//! |---|---|
//! | [`Format::Speedscope`] | speedscope |
//! | [`Format::Folded`] | flamegraph.pl, inferno, speedscope |
//! | [`Format::AllFrames`] | the same |
//! | [`Format::Perfetto`] | Perfetto, chrome://tracing |
//! | [`Format::Series`] | spreadsheets, pandas, gnuplot |

mod curve;
mod perfetto;
mod series;
mod stacks;

use std::io::{self, Write};

use crate::recording::Recording;

/// A format of another tool.
///
/// ```
/// use millpond_snapshot::export::Format;
/// use millpond_snapshot::import;
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &import::Options::default())?;
/// let mut text = Vec::new();
/// Format::Folded.write(&recording, None, &mut text)?;
/// assert_eq!(text, b"(no stack) 5120\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Format {
    /// JSON for speedscope: the call stacks of the blocks that are live at one moment, with their bytes. The
    /// file has two profiles. The first profile shows the user's frames, and folds the frames of PyTorch and
    /// of libraries. The second profile shows all frames.
    Speedscope,
    /// Text with one line for each call stack of blocks that are live at one moment. A line has the frames,
    /// the outermost first, with `;` between them, and then the bytes. The frames are the user's frames;
    /// frames of PyTorch and of libraries are folded.
    Folded,
    /// The same text as [`Folded`](Self::Folded), but with all frames of each call stack.
    AllFrames,
    /// JSON in the format of Chrome's trace events: live and reserved bytes as counters, failed requests and
    /// phases.
    Perfetto,
    /// CSV: the number, time and kind of each event, and the live and reserved bytes after the event.
    Series,
}

impl Format {
    /// Writes a recording in this format. For a format that shows one moment, `event` is the number of the
    /// event after which the memory is shown, counted from 0. `None` means the event with the most live
    /// bytes. Formats over time ignore `event`.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write(self, recording: &Recording, event: Option<usize>, out: &mut impl Write) -> io::Result<()> {
        let event = event.unwrap_or_else(|| recording.sums().peak_event as usize);
        match self {
            Self::Speedscope => stacks::speedscope(recording, event, out),
            Self::Folded => stacks::folded(recording, event, false, out),
            Self::AllFrames => stacks::folded(recording, event, true, out),
            Self::Perfetto => perfetto::write(recording, out),
            Self::Series => series::write(recording, out),
        }
    }
}
