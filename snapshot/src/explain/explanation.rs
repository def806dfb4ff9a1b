//! What an explanation consists of.

use serde::Serialize;

use super::holders::Holder;
use crate::recording::{Ledger, Source, StateCheck, Sums, Unknown};

/// What a recording says about the memory of its program.
///
/// ```
/// use millpond_snapshot::{explain, import};
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &import::Options::default())?;
/// let explanation = explain::explain(&recording, None);
/// assert_eq!(explanation.moments[0].ledger.requested_bytes, 5120);
/// # Ok::<(), millpond_engine::log::LogError>(())
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The version of this format. It grows when a field is renamed, removed or changes its meaning.
    pub version: u32,
    /// The file.
    pub file: String,
    /// What the file is.
    #[serde(flatten)]
    pub source: Source,
    /// The device.
    pub device: Option<u32>,
    /// Whether the device is a simulated one.
    pub is_simulated: bool,
    /// The counts and sums.
    pub sums: Sums,
    /// The least bytes that any allocator needs for the blocks and the failed requests, if streams take each
    /// other's memory in the order of the host's calls. `None` if all sizes together exceed 64 bits.
    pub bound_host_order: Option<u64>,
    /// The same if no stream takes what another one used.
    pub bound_stream_safe: Option<u64>,
    /// How the end compares with the state in the file, if it holds one.
    pub state_check: Option<StateCheck>,
    /// The peak, the failed requests (the first ten), and the end.
    pub moments: Vec<Explained>,
    /// What is wrong, by the evidence; empty if nothing is.
    pub diagnoses: Vec<Diagnosis>,
    /// What the recording cannot say.
    pub not_known: Vec<Unknown>,
    /// The lines that make the program record what is missing; `None` if they would bring nothing.
    pub lines_to_record: Option<&'static str>,
}

/// A moment that is explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// The most requested bytes were live.
    Peak,
    /// A request failed.
    Failure,
    /// The recording ended.
    End,
}

/// One moment of a recording, with what holds memory.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// The occasion.
    pub occasion: Occasion,
    /// Where the memory was.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// The bytes of the request that failed.
    pub wanted_bytes: Option<u64>,
    /// The bytes that the device had free, if the source says so.
    pub device_free_bytes: Option<u64>,
    /// The bytes of the device that were neither the allocator's nor free: the context, libraries and other
    /// processes. `None` unless the size of the device was given and the source says what was free.
    pub outside_bytes: Option<u64>,
    /// The stacks that held the most.
    pub holders: Vec<Holder>,
}

/// Something that is wrong, by the evidence in a recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Diagnosis {
    /// A name for programs, such as `fragmentation`.
    pub code: &'static str,
    /// One sentence.
    pub what: String,
    /// What in the recording shows it, one sentence each.
    pub evidence: Vec<String>,
    /// The stacks that it is about.
    pub holders: Vec<Holder>,
    /// Lines to paste or to follow.
    pub fixes: Vec<String>,
}
