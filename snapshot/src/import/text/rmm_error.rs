//! The error text of RMM if a request failed, as Python prints it below a traceback. Old versions of RMM do
//! not print the size of the request, so their texts are not read.

use std::io::Read;

use super::amounts::after;
use super::lines::TextLines;
use super::rmm_debug::{cause_of, pool_of};
use super::traceback::{Tracebacks, pins};
use crate::budget::Budget;
use crate::import::refusal::Refusal;
use crate::recording::{Event, EventKind, Lane, Recording, Source};

/// The text before the size of the request. RMM's pools print it, and RMM's calls of the driver.
const WANTED: &str = "(failed to allocate ";

/// The start of the text.
const START: &str = "std::bad_alloc: out_of_memory: ";

/// Returns whether a line has such a text about memory of the device.
pub(super) fn is_start(line: &str) -> bool {
    line.contains(START) && line.contains(WANTED) && !pins(line)
}

/// Reads all such texts, beginning at a given line.
///
/// # Errors
/// The budget is used up.
pub(super) fn import(
    mut recording: Recording,
    line: String,
    lines: &mut TextLines<impl Read>,
    tracebacks: &mut Tracebacks,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    Source::RMM_MESSAGE.clone_into(&mut recording.source.format);
    let (mut pool, mut cause) = (None, None);
    let mut last = None;
    let mut next = Some(line);
    while let Some(line) = next {
        tracebacks.line(&line, &mut recording, budget)?;
        if let (true, Some(at), Some(bytes)) = (is_start(&line), line.find(START), after(&line, WANTED)) {
            let stack = tracebacks.take(&line[..at], &mut recording, budget)?;
            pool = pool_of(&line).or(pool);
            cause = cause_of(&line);
            // Programs log an exception, and then print it again.
            let is_repeated = last == Some(bytes) && stack.is_none();
            if !is_repeated {
                let lane = recording.add_lane(Lane::default(), budget)?;
                let failed = Event { bytes, lane, stack, ..Event::new(EventKind::AllocateFailure) };
                recording.push(failed, budget)?;
                last = Some(bytes);
            }
        }
        next = lines.next()?;
    }
    if recording.is_empty() {
        return Err(Refusal::new("has an error of RMM, but the size of the request cannot be read"));
    }
    if let Some((now, most)) = pool {
        recording.detail(Recording::POOL_BYTES, now);
        recording.detail(Recording::LIMIT_BYTES, most);
    }
    cause.into_iter().for_each(|cause| recording.detail(Recording::CAUSE, cause));
    recording.unknown("no_blocks", "the text shows only failed requests, so the live blocks are not known");
    recording.unknown("no_trace", "the text shows one moment, so the events before it are not known");
    Ok(recording)
}

#[cfg(test)]
mod tests {
    use crate::explain::explain;
    use crate::import::{Options, read};

    const TRACEBACK: &str = "Traceback (most recent call last):\n  File \"/data/me/join.py\", line 77, in \
                             main\n    left.merge(right)\n  \
                             File \"/v/lib/python3.12/site-packages/cudf/core/frame.py\", line 9, in \
                             merge\n    return super().merge(right)\n";

    #[test]
    fn issue_32_the_error_text_names_the_line_the_size_and_the_limit() {
        let text = "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/x/pool_memory.hpp:73: \
                    Maximum pool size exceeded (failed to allocate 10.500000 GiB): Not enough room to grow, \
                    current/max/try size = 70.000000 GiB, 78.000000 GiB, 10.500000 GiB\n";
        // The second text repeats the first one.
        let text = format!("{TRACEBACK}{text}{text}");
        let recording = read("job.err", text.as_bytes(), &Options::default()).unwrap();
        let explanation = explain(&recording, None);
        assert_eq!(explanation.verdict.code, "oom_limit");
        let sentence = "out of memory: a request for 10.5GiB by join.py:77 in main (cudf.core.frame.merge) \
                        failed at event 1: the allocator may take at most 78GiB from the device";
        assert_eq!(explanation.verdict.sentence, sentence);
        assert_eq!(explanation.diagnoses.len(), 1);
        assert!(explanation.diagnoses[0].evidence[0].ends_with("failed; the pool had 70GiB"));
        assert!(explanation.diagnoses[0].fixes[0].contains("maximum_pool_size"));
        assert!(explanation.lines_to_record.unwrap().contains("rmm.reinitialize(logging=True"));
    }

    #[test]
    fn a_pool_at_its_maximum_is_a_limit_and_the_line_of_the_user_leads() {
        let text = format!(
            "{TRACEBACK}  File \"copying.pyx\", line 151, in pylibcudf.join.inner_join\nMemoryError: \
             std::bad_alloc: out_of_memory: RMM failure at:/x/pool_memory_resource.hpp:257: Maximum pool \
             size exceeded (failed to allocate 3.250000 GiB)\n"
        );
        let recording = read("job.err", text.as_bytes(), &Options::default()).unwrap();
        let explanation = explain(&recording, None);
        let sentence = "out of memory: a request for 3.25GiB by join.py:77 in main (cudf.core.frame.merge) \
                        failed at event 1: the pool has reached its maximum size";
        assert_eq!(explanation.verdict.sentence, sentence);
        assert_eq!(explanation.verdict.code, "oom_limit");
        assert!(explanation.diagnoses[0].fixes[0].contains("maximum_pool_size"));
    }

    #[test]
    fn an_error_of_the_driver_has_no_limit_and_one_about_the_host_is_not_of_the_device() {
        let text = "MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 1024 bytes) \
                    at: /x/cuda_memory_resource.hpp:60: cudaErrorMemoryAllocation out of memory\n";
        let recording = read("job.err", text.as_bytes(), &Options::default()).unwrap();
        assert_eq!(recording.event(0).unwrap().bytes, 1024);
        let explanation = explain(&recording, None);
        assert_eq!(explanation.verdict.code, "oom_does_not_fit");
        let fixes = explanation.diagnoses[0].fixes.join("; ");
        assert!(fixes.contains("nvidia-smi") && !fixes.contains("pool"), "{fixes}");
        let text = text.replace("cuda_memory", "pinned_host_memory");
        let recording = read("job.err", text.as_bytes(), &Options::default()).unwrap();
        assert_eq!(explain(&recording, None).verdict.code, "oom_pinned_memory");
        let text = "std::bad_alloc: out_of_memory: RMM failure at:x: (failed to allocate ?): no\n";
        let error = read("job.err", text.as_bytes(), &Options::default()).unwrap_err().to_string();
        assert!(error.contains("the size of the request cannot be read"), "{error}");
    }
}
