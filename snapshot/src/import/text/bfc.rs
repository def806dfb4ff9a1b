//! The dumps that the allocator of TensorFlow and XLA (BFC) logs when there is no memory for a request: its
//! chunks, or their sums.
//!
//! The lines come from `bfc_allocator.cc`, and may have any prefix. A dump first names the failed request.
//! Then it lists each chunk with its address and size, then sums by size, and then statistics. Logs of JAX
//! often lack the chunks.

use std::io::Read;

use millpond_engine::text::number_of;

use super::amounts::{after, amount, grouped, hexadecimal, number_after};
use super::lines::TextLines;
use super::traceback::Tracebacks;
use crate::budget::{Budget, Exceeded};
use crate::import::left_out::left_out;
use crate::import::options::Options;
use crate::import::refusal::Refusal;
use crate::import::states::{Block, Failure, State, States};
use crate::recording::{Frame, Id, Recording, Source};

/// How many different sizes a summary may list.
const MOST_SIZES: usize = 1 << 16;

/// The most chunks of a summary that become separate blocks. If there are more, the chunks of each size
/// become one block.
const MOST_CHUNKS: u64 = 1 << 16;

const OUT_OF_MEMORY: &str = "out of memory trying to allocate";
const SUMMARY: &str = " Chunks of size ";
const REGION: &str = "Next region of size";

/// Texts at the end of a dump.
const RAISED: [&str; 3] = ["RESOURCE_EXHAUSTED", "Resource exhausted", "ResourceExhaustedError"];

/// Returns whether a line belongs to a dump.
pub(super) fn is_start(line: &str) -> bool {
    let is_bin = line.contains("Bin (") && line.contains("Total Chunks:");
    let is_sum = line.contains("Sum Total of in-use chunks")
        || line.contains(REGION)
        || line.contains(SUMMARY) && line.contains(" totalling ");
    ran_out(line) || is_bin || is_sum || chunk(line).is_some() || exhausted(line).is_some()
}

/// Returns whether a line names a failed request. Some failed requests do not count, because their callers
/// then request less.
fn ran_out(line: &str) -> bool {
    let is_failure = !line.contains("this is not a failure");
    is_failure && line.contains(OUT_OF_MEMORY) && line.to_ascii_lowercase().contains("ran out")
}

/// Returns the bytes of the request in XLA's own message.
fn exhausted(line: &str) -> Option<u64> {
    let is_xla = RAISED.iter().any(|word| line.contains(word));
    let markers = ["Out of memory while trying to allocate ", "Out of memory allocating "];
    markers.iter().filter(|_| is_xla).find_map(|marker| after(line, marker))
}

/// Returns whether a chunk is in use, its address, its size, and the rest of the chunk's line.
fn chunk(line: &str) -> Option<(bool, u64, u64, &str)> {
    let (place, rest) = line.split_once(" of size ")?;
    let (place, address) = place.rsplit_once(" at ")?;
    let place = place.trim_end();
    let is_used = place.ends_with("InUse") || place.ends_with("Chunk");
    if !is_used && !place.ends_with("Free") {
        return None;
    }
    let end = rest.find(' ').unwrap_or(rest.len());
    Some((is_used, hexadecimal(address)?, grouped(&rest[..end])?, &rest[end..]))
}

/// Reads all dumps of a text, beginning at a given line.
///
/// # Errors
/// No dump has figures, no dump is about the requested device, or the budget is used up.
pub(super) fn import(
    mut recording: Recording,
    line: String,
    lines: &mut TextLines<impl Read>,
    tracebacks: &mut Tracebacks,
    options: &Options,
    budget: &mut Budget,
) -> Result<Option<Recording>, Refusal> {
    Source::BFC.clone_into(&mut recording.source.format);
    let mut dumps = Dumps { wanted: options.device, ..Dumps::default() };
    let mut next = Some(line);
    while let Some(line) = next {
        tracebacks.line(&line, &mut recording, budget)?;
        let is_raised = RAISED.iter().any(|word| line.contains(word));
        if is_raised && let Some(stack) = tracebacks.take("", &mut recording, budget)? {
            dumps.open.stack.get_or_insert(stack);
        }
        // Old versions name the request after the dump.
        let is_of_open = dumps.open.is_ended && dumps.open.wanted.is_none();
        let is_next = dumps.open.is_ended && is_start(&line) && exhausted(&line).is_none();
        if ran_out(&line) && !is_of_open || is_next && !ran_out(&line) {
            dumps.finish(&mut recording, budget)?;
        }
        dumps.open.line(&line, &mut recording, budget)?;
        next = lines.next()?;
    }
    dumps.finish(&mut recording, budget)?;
    dumps.into_recording(recording)
}

/// The lines of one dump.
#[derive(Default, Debug)]
struct Dump {
    /// The name of the allocator, such as `GPU_0_bfc`.
    allocator: Option<String>,
    wanted: Option<u64>,
    /// The operation that made the request.
    operation: Option<Id>,
    stack: Option<Id>,
    state: State,
    /// The start and the end of a run of adjacent chunks.
    run: Option<(u64, u64)>,
    has_chunks: bool,
    /// The sum of the regions' sizes.
    regions: u64,
    listed: u64,
    /// The counts and sizes in a summary.
    sizes: Vec<(u64, u64)>,
    in_use: Option<u64>,
    most: Option<u64>,
    limit: Option<u64>,
    /// The free bytes below the allocator's limit.
    available: Option<u64>,
    /// Whether the statistics were read. They are the last lines of a dump.
    is_ended: bool,
}

impl Dump {
    fn line(&mut self, line: &str, recording: &mut Recording, budget: &mut Budget) -> Result<(), Exceeded> {
        if let Some((is_used, address, bytes, rest)) = chunk(line) {
            return self.chunk(is_used, (address, bytes), rest, recording, budget);
        }
        if ran_out(line) {
            self.wanted = number_after(line, "(rounded to ").or_else(|| after(line, OUT_OF_MEMORY));
            self.operation = operation(line, "requested by op ", recording, budget)?;
            self.allocator =
                line.split_once("Allocator (").and_then(|(_, rest)| Some(rest.split_once(')')?.0.to_owned()));
        } else if let Some(bytes) = exhausted(line) {
            self.wanted.get_or_insert(bytes);
        } else if let Some(name) = line.split_once(" by allocator ").map(|(_, name)| name) {
            let end = name.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(name.len());
            self.allocator.get_or_insert(name[..end].to_owned());
        } else if line.contains(REGION) {
            self.end_run(budget)?;
            self.regions = self.regions.saturating_add(number_after(line, REGION).unwrap_or(0));
        } else if let Some((count, rest)) = line.split_once(SUMMARY) {
            let count = count.rsplit([' ', '\t', ']']).next().and_then(grouped);
            let end = rest.find(' ').unwrap_or(rest.len());
            if let (Some(count), Some(bytes)) = (count, grouped(&rest[..end]))
                && self.sizes.len() < MOST_SIZES
            {
                budget.take(3 * size_of::<(u64, u64)>())?;
                self.sizes.push((count, bytes));
            }
        }
        let figure = |name: &str| {
            let rest = line.trim_start().strip_prefix(name)?;
            amount(rest.trim_start_matches([':', ' ', '\t']))
        };
        if let Some(limit) = figure("Limit:") {
            self.limit = Some(limit);
        } else if let Some(bytes) = figure("InUse:") {
            self.in_use = Some(bytes);
        } else if let Some(bytes) = figure("MaxInUse:") {
            self.most = Some(bytes);
        } else if figure("MaxAllocSize:").is_some() {
            self.is_ended = true;
        } else if let Some(bytes) = number_after(line, "available bytes:") {
            self.available = Some(bytes);
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        is_used: bool,
        (address, bytes): (u64, u64),
        rest: &str,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        self.has_chunks = true;
        self.listed = self.listed.saturating_add(bytes);
        let end = address.saturating_add(bytes);
        match &mut self.run {
            Some((_, last)) if *last == address => *last = end,
            _ => {
                self.end_run(budget)?;
                self.run = Some((address, end));
            }
        }
        if is_used {
            let stack = operation(rest, " by op ", recording, budget)?;
            self.state.block(Block { address, bytes, stack, ..Block::default() }, budget)?;
        }
        Ok(())
    }

    fn end_run(&mut self, budget: &mut Budget) -> Result<(), Exceeded> {
        match self.run.take() {
            Some((start, end)) => self.state.segment(start, end - start, budget),
            None => Ok(()),
        }
    }

    fn is_empty(&self) -> bool {
        self.wanted.is_none() && !self.has_chunks && self.sizes.is_empty() && self.in_use.is_none()
    }

    /// Returns the device of the allocator; `None` if the allocator serves host memory.
    fn device(&self) -> Option<u32> {
        let name = self.allocator.as_deref().unwrap_or("GPU_0_bfc").to_ascii_lowercase();
        let is_host = name.contains("host") || name.contains("cpu");
        (!is_host)
            .then(|| number_after(&name, "gpu_").and_then(|number| u32::try_from(number).ok()).unwrap_or(0))
    }

    /// Returns the state that the dump shows: its chunks, or else blocks with the sizes in the summary, or
    /// else one block.
    ///
    /// # Errors
    /// Returns the errors of [`State::place`].
    fn state(mut self, budget: &mut Budget) -> Result<State, Refusal> {
        self.end_run(budget)?;
        let stack = self.stack.or(self.operation);
        let failure = self.wanted.map(|bytes| Failure { bytes, stack, device_free: self.available });
        let mut state = std::mem::take(&mut self.state);
        state.failure(failure);
        if self.has_chunks {
            return Ok(state);
        }
        let chunks = self.sizes.iter().fold(0_u64, |sum, (count, _)| sum.saturating_add(*count));
        let mut add =
            |bytes: u64, budget: &mut Budget| state.place(Block { bytes, ..Block::default() }, budget);
        for (count, bytes) in std::mem::take(&mut self.sizes) {
            match count {
                _ if chunks > MOST_CHUNKS => add(count.saturating_mul(bytes), budget)?,
                count => (0..count).try_for_each(|_| add(bytes, budget))?,
            }
        }
        if chunks == 0
            && let Some(bytes) = self.in_use
        {
            add(bytes, budget)?;
        }
        Ok(state)
    }
}

/// Returns the call stack of an operation whose name follows a marker.
fn operation(
    line: &str,
    marker: &str,
    recording: &mut Recording,
    budget: &mut Budget,
) -> Result<Option<Id>, Exceeded> {
    let Some((_, rest)) = line.split_once(marker) else { return Ok(None) };
    let function = rest.split(' ').next().unwrap_or("");
    if function.is_empty() {
        return Ok(None);
    }
    let frame = recording.add_frame(Frame { function, file: "", line: 0 }, budget)?;
    recording.add_stack(&[frame], budget).map(Some)
}

/// The dumps of a text that were read so far.
#[derive(Default)]
struct Dumps {
    wanted: Option<u32>,
    /// The device of the first dump that was read.
    device: Option<u32>,
    open: Dump,
    states: States,
    has_chunks: bool,
    /// Whether a dump has only the sizes of its chunks.
    has_sizes: bool,
    /// Whether a dump has only the sum of its chunks.
    has_sums: bool,
    host: u64,
    other_devices: u64,
    limit: Option<u64>,
    most: Option<u64>,
    /// The first difference between the chunks and the statistics.
    difference: Option<String>,
}

impl Dumps {
    fn finish(&mut self, recording: &mut Recording, budget: &mut Budget) -> Result<(), Refusal> {
        let dump = std::mem::take(&mut self.open);
        if dump.is_empty() {
            return Ok(());
        }
        let Some(device) = dump.device() else {
            self.host += 1;
            return Ok(());
        };
        let is_wanted = self.wanted.is_none_or(|wanted| wanted == device);
        if !is_wanted || *self.device.get_or_insert(device) != device {
            self.other_devices += 1;
            return Ok(());
        }
        (self.limit, self.most) = (dump.limit.or(self.limit), dump.most.or(self.most));
        let (regions, listed, in_use) = (dump.regions, dump.listed, dump.in_use);
        let has_chunks = dump.has_chunks;
        self.has_chunks |= has_chunks;
        self.has_sizes |= !has_chunks && !dump.sizes.is_empty();
        self.has_sums |= !has_chunks && dump.sizes.is_empty();
        let state = dump.state(budget)?;
        let live = state.live_bytes();
        if regions > listed && has_chunks {
            let text = format!(
                "the chunks have {listed} bytes, but their regions have {regions} bytes, so lines are missing"
            );
            self.difference.get_or_insert(text);
        } else if let Some(in_use) = in_use.filter(|&bytes| bytes != live) {
            let text =
                format!("the chunks in use have {live} bytes, but the allocator counted {in_use} bytes");
            self.difference.get_or_insert(text);
        }
        Ok(self.states.add(recording, state, budget)?)
    }

    /// Returns the recording; `None` if no dump has figures.
    fn into_recording(self, mut recording: Recording) -> Result<Option<Recording>, Refusal> {
        if self.states.count() == 0 {
            let others = self.host + self.other_devices;
            return match others {
                0 => Ok(None),
                _ => Err(Refusal::new(format!(
                    "has no dump of the requested device's memory, only {} of the host's memory and {} of \
                     other devices",
                    number_of(self.host, "dump"),
                    number_of(self.other_devices, "dump")
                ))),
            };
        }
        recording.device = self.device;
        recording.detail("dumps", self.states.count());
        for (name, bytes) in [(Recording::LIMIT_BYTES, self.limit), ("most bytes in use", self.most)] {
            if let Some(bytes) = bytes {
                recording.detail(name, bytes);
            }
        }
        recording.unknown(
            "no_trace",
            "the log shows the memory at one moment, so the events before it are not known",
        );
        recording.unknown("rounded", "the sizes of chunks are as the allocator rounded them");
        if self.has_sizes {
            let text = "the log does not show the chunks of a dump, so blocks have no addresses, and free \
                        memory is not known";
            recording.unknown("no_addresses", text);
        }
        if self.has_sums {
            recording.unknown("sums_only", "the log has only the sum of a dump's chunks");
        }
        if let Some(text) = self.difference {
            recording.unknown("sums_differ", text);
        }
        for (code, count, what) in [
            ("host_memory", self.host, "of the host's memory"),
            ("other_device", self.other_devices, "of other devices"),
        ] {
            if count > 0 {
                recording.unknown(code, left_out(count, "dump", what));
            }
        }
        Ok(Some(recording))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_dump_are_known() {
        let line = "2024-07-12 14:40:46.377450: I tsl/bfc_allocator.cc:1095] InUse at 7f2e72000500 of size \
                    1280 next 2";
        assert_eq!(chunk(line), Some((true, 0x7f2e_7200_0500, 1280, " next 2")));
        assert_eq!(chunk("x] Free  at 0x7f00 of size 256"), Some((false, 0x7f00, 256, "")));
        assert_eq!(chunk("Invalid __global__ read at 0x10 of size 4 bytes"), None);
        for line in [
            "W] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.25GiB (rounded to 2415919104)",
            "W] Ran out of memory trying to allocate 29.91MiB.  See logs for memory state.",
            "I] Bin (256): \tTotal Chunks: 4, Chunks in use: 4. 1.0KiB allocated for chunks.",
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
        ] {
            assert!(is_start(line), "{line}");
        }
        assert!(!is_start("the program ran out of memory") && !is_start("4 Chunks of size"));
        let tried = "W] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.25GiB. The caller \
                     indicates that this is not a failure, but performance may gain from more memory.";
        assert!(!is_start(tried));
    }
}
