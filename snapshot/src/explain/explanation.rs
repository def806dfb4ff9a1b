//! The parts of an explanation.

use serde::Serialize;

use super::holders::Holder;
use crate::recording::{Ledger, Source, StateCheck, Sums, Unknown};

/// Explains the memory of a recorded program. In JSON, events are counted from 1, as in texts.
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
    /// The name of the file.
    pub file: String,
    /// The verdict: the most important finding, as one sentence.
    pub verdict: Verdict,
    /// The format and details of the file.
    #[serde(flatten)]
    pub source: Source,
    /// The device's number, if the file records it.
    pub device: Option<u32>,
    /// Whether the device is simulated.
    pub is_simulated: bool,
    /// Counts and sums over the recording.
    pub sums: Sums,
    /// The fewest bytes that any allocator needs for the blocks and the failed requests, if streams reuse
    /// each other's memory in the order of the host's calls. `None` if the sum of all sizes needs more than
    /// 64 bits.
    pub bound_host_order: Option<u64>,
    /// The fewest bytes that any allocator needs for the blocks and the failed requests, if streams share no
    /// memory. `None` if the sum of all sizes needs more than 64 bits.
    pub bound_stream_safe: Option<u64>,
    /// The result of comparing the live blocks after the last event with the state of memory in the file.
    /// `None` if the file has no such state.
    pub state_check: Option<StateCheck>,
    /// The explained moments: the peak, the failed requests (the first nine and the last one), and the end.
    /// If the file has no events between the failed requests, only the failed requests are explained.
    pub moments: Vec<Explained>,
    /// The problems that the recording shows evidence of; empty if there are none.
    pub diagnoses: Vec<Diagnosis>,
    /// The data that the recording lacks.
    pub not_known: Vec<Unknown>,
    /// The lines to add to the program, so that it records the missing data. `None` if such lines would add
    /// no data.
    pub lines_to_record: Option<&'static str>,
    /// The size of the device, if the file records it.
    #[serde(skip)]
    pub(super) recorded_device_bytes: Option<u64>,
    /// Whether parts of the file contradict each other.
    #[serde(skip)]
    pub(super) contradicts_itself: bool,
}

/// The verdict on a recording. Each recording has exactly one verdict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// A name that programs can test, such as `oom_fragmentation`. The codes of failed requests start with
    /// `oom_`.
    pub code: &'static str,
    /// The verdict as a sentence, with the figures that support it.
    pub sentence: String,
}

/// Why a moment is explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Occasion {
    /// More requested bytes were live than at any other moment.
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
    /// The occasion: why this moment is explained.
    pub occasion: Occasion,
    /// The memory at this moment, by its use.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// The size of the failed request in bytes, if the source records it.
    pub wanted_bytes: Option<u64>,
    /// The user's code line that made the failed request, and the function that it called, if the source
    /// records the call stack, as in `train.py:31 in step (torch.cat)`.
    pub wanted_by: Option<String>,
    /// The free bytes of the device, if the source records this number. For the allocator of TensorFlow and
    /// XLA, it is the number of bytes until the allocator's limit.
    pub device_free_bytes: Option<u64>,
    /// The bytes of the device that are neither free nor reserved by the allocator: the CUDA context,
    /// libraries and other processes use them. `None` unless the device's size is given and the source
    /// records its free memory.
    pub outside_bytes: Option<u64>,
    /// The call stacks whose blocks hold the most memory.
    pub holders: Vec<Holder>,
}

/// A problem that the recording shows evidence of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// A name that programs can test, such as `fragmentation`.
    pub code: &'static str,
    /// The problem, as one sentence.
    pub what: String,
    /// The evidence in the recording, as sentences.
    pub evidence: Vec<String>,
    /// The call stacks whose blocks cause the problem.
    pub holders: Vec<Holder>,
    /// Changes that would help: code lines to paste, or advice.
    pub fixes: Vec<String>,
}
