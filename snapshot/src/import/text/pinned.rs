//! Messages that page-locked (pinned) memory of the host could not be allocated. They have no figures, but
//! the traceback before a message names the code.

use super::traceback::{Tracebacks, pins};
use crate::budget::{Budget, Exceeded};
use crate::recording::{Event, EventKind, Id, Lane, Recording, Source};

/// Parts of messages about a call of the driver that failed. The function or the code tells whose memory it
/// asked for.
const ERRORS: [&str; 8] = [
    "CUDA error: out of memory",
    "CUDA error: invalid argument",
    "HIP error: out of memory",
    "HIP error: invalid argument",
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "hipErrorOutOfMemory",
    "out_of_memory",
];

/// Returns the text before the message, if a line says that page-locked memory could not be allocated. Either
/// the message or the code that failed must name such memory.
pub(super) fn failure<'a>(line: &'a str, tracebacks: &Tracebacks) -> Option<&'a str> {
    let at = ERRORS.iter().filter_map(|error| line.find(error)).min()?;
    let before = &line[..at];
    (pins(line) || tracebacks.pins(before)).then_some(before)
}

/// Makes the recording of a text whose last such message has this stack.
///
/// # Errors
/// The budget is used up.
pub(super) fn finish(
    mut recording: Recording,
    stack: Option<Id>,
    budget: &mut Budget,
) -> Result<Recording, Exceeded> {
    Source::PINNED_MESSAGE.clone_into(&mut recording.source.format);
    let lane = recording.add_lane(Lane::default(), budget)?;
    recording.push(Event { lane, stack, ..Event::new(EventKind::AllocateFailure) }, budget)?;
    recording.unknown("no_sums", "the text does not say how much page-locked memory was requested");
    recording.unknown("no_blocks", "the text does not show any memory that was live");
    Ok(recording)
}
