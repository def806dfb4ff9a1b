//! Texts that programs print: messages that memory ran out, dumps of allocators, and logs mixed with other
//! lines. The first line that a reader knows decides which reader reads the text. Messages of PyTorch without
//! figures do not count, unless they are about page-locked memory and nothing else is in the text.

mod amounts;
mod bfc;
mod lines;
mod pinned;
mod rmm_debug;
mod rmm_error;
mod sanitizer;
mod torch_oom;
mod traceback;

use std::io::Read;

use super::csv;
use super::options::Options;
use super::refusal::Refusal;
use crate::budget::Budget;
use crate::recording::Recording;

use lines::TextLines;
use traceback::Tracebacks;

const NO_FIGURES: &str = "says that memory ran out, but has no figures; record the blocks with \
                          torch.cuda.memory._record_memory_history() and \
                          torch.cuda.memory._dump_snapshot(\"snapshot.pickle\"), or with \
                          rmm.reinitialize(logging=True)";

/// Texts that people have but that contain too little, each with a description and the remedy.
const HINTS: [(&str, &str); 6] = [
    (
        "PyTorch CUDA memory summary",
        "is the output of torch.cuda.memory_summary(), which shows sums, but no blocks; write a snapshot \
         with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")",
    ),
    (
        "NVIDIA-SMI ",
        "is the output of nvidia-smi, which shows only one sum for each process; record the program with \
         `millpond-replay run --record log.csv -- PROGRAM`",
    ),
    ("CUDA error: out of memory", NO_FIGURES),
    ("cudaErrorMemoryAllocation", NO_FIGURES),
    ("CUDA_ERROR_OUT_OF_MEMORY", NO_FIGURES),
    ("out_of_memory", NO_FIGURES),
];

/// Reads a text of any program.
///
/// # Errors
/// No reader recognises a line of the text: the error is `unknown`, or describes the text. Otherwise, the
/// errors of the reader.
pub(super) fn import(
    name: &str,
    text: impl Read + Send,
    unknown: &str,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let mut lines = TextLines::new(text);
    let mut recording = Recording::new(name, "text");
    let mut tracebacks = Tracebacks::default();
    let (mut hint, mut is_pinned, mut pinned_by) = (None, false, None);
    let mut next = lines.next()?;
    while let Some(line) = next {
        if csv::is_start(&line) {
            let (number, rest) = (lines.number(), lines.into_rest(&line));
            return csv::import_from(name, rest, number, options, budget);
        }
        if sanitizer::is_start(&line) {
            return sanitizer::import(recording, &line, &mut lines, budget);
        }
        if rmm_debug::is_start(&line) {
            return rmm_debug::import(recording, line, &mut lines, budget);
        }
        if bfc::is_start(&line) {
            let read = bfc::import(recording, line, &mut lines, &mut tracebacks, options, budget)?;
            return read.ok_or_else(|| Refusal::new(NO_FIGURES));
        }
        if rmm_error::is_start(&line) && pinned::failure(&line, &tracebacks).is_none() {
            return rmm_error::import(recording, line, &mut lines, &mut tracebacks, budget);
        }
        // This comes last: the reader hands back a line for another reader, and would get it again.
        if torch_oom::is_start(&line) {
            next = torch_oom::import(
                &mut recording,
                line,
                &mut lines,
                &mut tracebacks,
                options,
                is_other,
                budget,
            )?;
            if !recording.is_empty() {
                return Ok(recording);
            }
            hint = Some(NO_FIGURES);
            continue;
        }
        tracebacks.line(&line, &mut recording, budget)?;
        if let Some(before) = pinned::failure(&line, &tracebacks) {
            is_pinned = true;
            pinned_by = tracebacks.take(before, &mut recording, budget)?.or(pinned_by);
        }
        hint = hint.or_else(|| HINTS.iter().find(|(words, _)| line.contains(words)).map(|(_, hint)| *hint));
        next = lines.next()?;
    }
    match is_pinned {
        true => Ok(pinned::finish(recording, pinned_by, budget)?),
        false => Err(Refusal::new(hint.unwrap_or(unknown))),
    }
}

/// Returns whether a reader recognises a line, other than the reader of PyTorch's messages.
fn is_other(line: &str) -> bool {
    csv::is_start(line) || sanitizer::is_start(line) || rmm_debug::is_start(line) || bfc::is_start(line)
}
