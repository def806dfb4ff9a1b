//! The leaks that NVIDIA's compute-sanitizer reports (`--leak-check full`), as live blocks with their call
//! stacks.

use std::io::Read;

use millpond_engine::text::number_of;

use super::amounts::{grouped, hexadecimal, number_after};
use super::lines::TextLines;
use crate::budget::{Budget, Exceeded};
use crate::import::refusal::Refusal;
use crate::import::states::{Block, State, States};
use crate::recording::{Frame, Id, Recording};

/// The text with which each line of the tool starts.
const MARK: &str = "=========";

/// The most frames of a call stack that are read.
const MOST_FRAMES: usize = 512;

/// Returns whether the tool printed a line.
pub(super) fn is_start(line: &str) -> bool {
    message(line).is_some_and(|text| {
        text.contains("COMPUTE-SANITIZER") || text.contains("CUDA-MEMCHECK") || leak(text).is_some()
    })
}

/// Returns the tool's message in a line.
fn message(line: &str) -> Option<&str> {
    line.split_once(MARK).map(|(_, text)| text.trim())
}

/// Returns the address and the size of a leak.
fn leak(text: &str) -> Option<(u64, u64)> {
    let (bytes, rest) = text.strip_prefix("Leaked ")?.split_once(" bytes at ")?;
    Some((hexadecimal(rest)?, grouped(bytes)?))
}

/// Reads a report, beginning at a given line.
///
/// # Errors
/// The report has no leaks, or the budget is used up.
pub(super) fn import(
    mut recording: Recording,
    line: &str,
    lines: &mut TextLines<impl Read>,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    "compute-sanitizer leak report".clone_into(&mut recording.source.format);
    let mut report = Report::default();
    report.line(line, &mut recording, budget)?;
    while let Some(line) = lines.next()? {
        report.line(&line, &mut recording, budget)?;
    }
    report.finish(recording, budget)
}

#[derive(Default)]
struct Report {
    state: State,
    /// The address and the size of the leak whose call stack is being read.
    open: Option<(u64, u64)>,
    frames: Vec<Id>,
    /// A frame whose module is in the next line.
    waiting: Option<String>,
    leaks: u64,
    bytes: u64,
    /// The bytes and the number of leaks, as the summary states them.
    summary: Option<(u64, u64)>,
    failed: u64,
}

impl Report {
    fn line(&mut self, line: &str, recording: &mut Recording, budget: &mut Budget) -> Result<(), Exceeded> {
        let Some(text) = message(line) else { return Ok(()) };
        if let Some(leak) = leak(text) {
            self.end_leak(recording, budget)?;
            self.open = Some(leak);
        } else if let Some(frame) = text.strip_prefix("Host Frame:") {
            self.end_frame("", recording, budget)?;
            self.waiting = Some(frame.trim().to_owned());
        } else if let Some(module) = text.strip_prefix("in ") {
            self.end_frame(module, recording, budget)?;
        } else if let Some(rest) = text.strip_prefix("LEAK SUMMARY: ") {
            self.end_leak(recording, budget)?;
            let bytes = rest.split(' ').next().and_then(grouped);
            self.summary = bytes.zip(number_after(rest, "leaked in "));
        } else if text.contains("out of memory") && text.starts_with("Program hit") {
            self.failed += 1;
        } else if text.is_empty() {
            self.end_leak(recording, budget)?;
        }
        Ok(())
    }

    /// Ends the open frame. The frame itself may contain its module.
    fn end_frame(
        &mut self,
        module: &str,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        let Some(text) = self.waiting.take() else { return Ok(()) };
        let known =
            (self.open.is_some() && self.frames.len() < MOST_FRAMES).then(|| frame(&text, module)).flatten();
        if let Some(frame) = known {
            let id = recording.add_frame(frame, budget)?;
            if self.frames.len() == self.frames.capacity() {
                budget.take(2 * size_of::<Id>() * self.frames.len().max(4))?;
            }
            self.frames.push(id);
        }
        Ok(())
    }

    fn end_leak(&mut self, recording: &mut Recording, budget: &mut Budget) -> Result<(), Exceeded> {
        self.end_frame("", recording, budget)?;
        if let Some((address, bytes)) = self.open.take() {
            let stack = match self.frames.as_slice() {
                [] => None,
                frames => Some(recording.add_stack(frames, budget)?),
            };
            self.state.block(Block { address, bytes, stack, ..Block::default() }, budget)?;
            (self.leaks, self.bytes) = (self.leaks + 1, self.bytes.saturating_add(bytes));
        }
        self.frames.clear();
        Ok(())
    }

    fn finish(mut self, mut recording: Recording, budget: &mut Budget) -> Result<Recording, Refusal> {
        self.end_leak(&mut recording, budget)?;
        if self.leaks == 0 {
            return Err(Refusal::new(
                "is a compute-sanitizer report without leaks; run `compute-sanitizer --tool memcheck \
                 --leak-check full PROGRAM`. If the program leaks no memory, there are no blocks to show",
            ));
        }
        States::default().add(&mut recording, self.state, budget)?;
        recording.detail("leaks", self.leaks);
        recording.unknown(
            "leaks_only",
            "the report shows only blocks that were never freed, as they were at the program's end",
        );
        recording.unknown(
            "no_trace",
            "the report shows no events: the peak, and the order of calls, are not known",
        );
        recording.unknown(
            "pools",
            "the report shows memory that the process allocated from the driver: blocks inside pools are \
             missing",
        );
        recording.unknown(
            "device",
            "the report does not name the device of a block; pinned host memory also counts",
        );
        match self.summary {
            Some((bytes, leaks)) if (bytes, leaks) != (self.bytes, self.leaks) => {
                let text = format!(
                    "the report lists {} of {leaks} leaks, and {} of {bytes} bytes; raise `--print-limit`",
                    self.leaks, self.bytes
                );
                recording.unknown("sums_differ", text);
            }
            Some(_) => {}
            None => recording.unknown("rest_missing", "the report has no summary, so its end is missing"),
        }
        if self.failed > 0 {
            let requests = number_of(self.failed, "failed request");
            recording.unknown("failures", format!("the report does not show the size of {requests}"));
        }
        Ok(recording)
    }
}

/// Reads a frame: `function [0x1234] in module`, `file.cpp:12:function(int) [0x1234]`, or
/// `module (function + 0x12) [0x1234]`.
fn frame<'a>(text: &'a str, module: &'a str) -> Option<Frame<'a>> {
    let (place, rest) = text.rsplit_once('[').unwrap_or((text, ""));
    let module = rest.split_once("] in ").map_or(module, |(_, module)| module).trim();
    let place = place.trim();
    // An old form, which cuda-memcheck printed.
    if let Some((file, function)) = place.strip_suffix(')').and_then(|place| place.split_once(" ("))
        && let Some((function, _)) = function.rsplit_once(" + ")
    {
        return Some(Frame { function, file, line: 0 });
    }
    // `function in file.cu:53`, or `file.cu:53:function`.
    if let Some((function, place)) = place.rsplit_once(" in ")
        && let Some((file, line)) = place.rsplit_once(':')
        && let Ok(line) = line.parse()
    {
        return Some(Frame { function, file, line });
    }
    let mut parts = place.splitn(3, ':');
    if let (Some(file), Some(line), Some(function)) = (parts.next(), parts.next(), parts.next())
        && let Ok(line) = line.parse()
    {
        return Some(Frame { function, file, line });
    }
    let function = if place.is_empty() { "(unnamed)" } else { place };
    (!place.is_empty() || !module.is_empty()).then_some(Frame { function, file: module, line: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_several_forms() {
        for (text, module, expected) in [
            ("cudaMallocManaged [0x527bb] in app", "", ("cudaMallocManaged", "app", 0)),
            ("[0x28e3ce]", "/usr/lib/libcuda.so.1", ("(unnamed)", "/usr/lib/libcuda.so.1", 0)),
            (
                "api/runtime.cpp:11306:hostAlloc(unsigned long, int) [0x21fa6]",
                "r.so",
                ("hostAlloc(unsigned long, int)", "api/runtime.cpp", 11306),
            ),
            ("main in /app/y.cu:36 [0x1234] in a.out", "", ("main", "/app/y.cu", 36)),
            (
                "/usr/lib/libcuda.so (cuMemAlloc_v2 + 0x1ef) [0xdf84f]",
                "",
                ("cuMemAlloc_v2", "/usr/lib/libcuda.so", 0),
            ),
            ("Catch::Run(std::string) [0x2ce42]", "t", ("Catch::Run(std::string)", "t", 0)),
        ] {
            let frame = frame(text, module).unwrap();
            assert_eq!((frame.function, frame.file, frame.line), expected);
        }
        assert_eq!(frame("", ""), None);
        assert_eq!(leak("Leaked 1,048,576 bytes at 0x7f56"), Some((0x7f56, 1 << 20)));
        assert_eq!(leak("Leaked an OptixProgramGroup with handle 0x55db"), None);
    }
}
