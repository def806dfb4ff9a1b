//! The parts of an explanation.

use serde::Serialize;

use super::holders::Holder;
use crate::recording::{Ledger, Source, StateCheck, Sums, Unknown};

/// Explains the memory of a recorded program.
///
/// ```
/// use millpond_snapshot::{explain, import};
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &import::Options::default())?;
/// let explanation = explain::explain(&recording, None);
/// assert_eq!(explanation.verdict.code, "no_problem");
/// assert_eq!(explanation.moments[0].ledger.requested_bytes, 5120);
/// # Ok::<(), millpond_engine::log::LogError>(())
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The version of this format. It grows when a field is renamed, removed or changes its meaning.
    pub version: u32,
    /// The file.
    pub file: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The format and details of the file.
    #[serde(flatten)]
    pub source: Source,
    /// The device.
    pub device: Option<u32>,
    /// Whether the device is a simulated one.
    pub is_simulated: bool,
    /// The counts and sums.
    pub sums: Sums,
    /// The fewest bytes that any allocator needs for the blocks and the failed requests, if streams reuse
    /// each other's memory in the order of the host's calls. `None` if all sizes together exceed 64 bits.
    pub bound_host_order: Option<u64>,
    /// The same if streams share no memory.
    pub bound_stream_safe: Option<u64>,
    /// How the live blocks after the last event compare with the state of memory in the file, if the file has
    /// one.
    pub state_check: Option<StateCheck>,
    /// The explained moments: the peak, the failed requests (the first nine and the last), and the end. If
    /// the file has no events between the failed requests, only these.
    pub moments: Vec<Explained>,
    /// The problems that the evidence shows; empty if there are none.
    pub diagnoses: Vec<Diagnosis>,
    /// The gaps of the recording.
    pub not_known: Vec<Unknown>,
    /// The lines to add to the program so that it records the missing data; `None` if they would add nothing.
    pub lines_to_record: Option<&'static str>,
}

/// The verdict on a recording. Each recording has exactly one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// A name for programs, such as `oom_fragmentation`; the codes of failed requests start with `oom_`.
    pub code: &'static str,
    /// The verdict as a sentence, with the figures that support it.
    pub sentence: String,
}

/// The reason why a moment is explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Occasion {
    /// The most requested bytes were live.
    Peak,
    /// A request failed.
    Failure,
    /// The recording ended.
    End,
}

/// One moment of a recording, with the call stacks whose blocks hold memory.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Explained {
    /// The occasion.
    pub occasion: Occasion,
    /// The memory at this moment, by its use.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// The size of the failed request in bytes.
    pub wanted_bytes: Option<u64>,
    /// The user's line that made the failed request, if the source records the call stack.
    pub wanted_by: Option<String>,
    /// The free bytes of the device, if the source records them.
    pub device_free_bytes: Option<u64>,
    /// The bytes of the device that are neither the allocator's nor free: the context, libraries and other
    /// processes. `None` unless the device's size is given and the source records its free memory.
    pub outside_bytes: Option<u64>,
    /// The call stacks whose blocks hold the most memory.
    pub holders: Vec<Holder>,
}

/// A problem that the evidence in a recording shows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// A name for programs, such as `fragmentation`.
    pub code: &'static str,
    /// The problem, in one sentence.
    pub what: String,
    /// The evidence in the recording, one sentence each.
    pub evidence: Vec<String>,
    /// The call stacks whose blocks cause the problem.
    pub holders: Vec<Holder>,
    /// Changes that would help: lines to paste, or advice to follow.
    pub fixes: Vec<String>,
}
