//! PyTorch's out-of-memory message, in the forms of all versions since 1.0.
//!
//! The message describes a state without blocks: how much memory the program used, how much the allocator
//! reserved, how much of the device was free, and the failed request.

use std::collections::BTreeSet;
use std::io::Read;

use super::amounts::{after, before, number_after};
use super::lines::TextLines;
use super::traceback::Tracebacks;
use crate::budget::Budget;
use crate::import::left_out::left_out;
use crate::import::options::Options;
use crate::import::refusal::Refusal;
use crate::import::states::{BASE, Block, Failure, State, States};
use crate::recording::{Id, Recording, Source};

/// The most lines that one message may fill, if a mail or a page broke it.
const MOST_LINES: usize = 16;

/// The most bytes of a message that are read.
const MOST_MESSAGE: usize = 4096;

/// The most other processes that are listed.
const MOST_PROCESSES: usize = 16;

/// The most other devices that a refusal names.
const MOST_DEVICES: usize = 16;

/// The most pieces in which free memory is drawn. Each piece is smaller than the failed request.
const MOST_PIECES: u64 = 1 << 14;

/// PyTorch rounds sizes to multiples of this, in bytes.
const ROUNDED_TO: u64 = 512;

/// Texts that end a message.
const ENDS: [&str; 7] = [
    "PyTorch but unallocated",
    "reserved in total by PyTorch",
    " cached)",
    "user-supplied memory fraction",
    "private pool.",
    "shared pool.",
    "(e.g., CUDA Graphs).",
];

/// The figures of one message, in bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Message {
    /// The kind of the device: `CUDA`, `HIP`, `XPU`, `MPS`, `NPU`; or the allocator `cudaMallocAsync`.
    kind: String,
    /// The versions of PyTorch that write such a message, if its form tells.
    version: Option<&'static str>,
    device: Option<u64>,
    wanted: u64,
    capacity: Option<u64>,
    free: Option<u64>,
    /// The bytes that the program may use, if it set a memory fraction.
    allowed: Option<u64>,
    allocated: Option<u64>,
    /// The bytes in private pools, which are a part of the allocated bytes.
    private: u64,
    reserved: Option<u64>,
    /// The bytes that this process uses, including the CUDA context and libraries.
    process: Option<u64>,
    /// Other processes, each with its number and its bytes.
    others: Vec<(u64, u64)>,
}

/// Returns whether a line may begin a message.
pub(super) fn is_start(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("out of memory") else { return false };
    let rest = rest.trim_start_matches(['.', ')', ' ']);
    // A page may break the message after any word.
    let part = rest.trim_end();
    let is_broken = !part.is_empty() && "Tried to allocate ".starts_with(part);
    rest.starts_with("Tried to allocate ")
        || is_broken
        || is_without_rest(line)
        || line.contains("MPS allocated")
}

/// Returns whether a line ends in the middle of the start of a message.
fn is_without_rest(line: &str) -> bool {
    ["would exceed allowed memory. (out of memory)", "CUDA out of memory.", "HIP out of memory."]
        .iter()
        .any(|end| line.trim_end().ends_with(end))
}

/// Reads all messages of a text, beginning at a given line. If no message has figures, the recording stays
/// empty. If a line for another reader comes before the first figures, reading ends, and that line is
/// returned.
///
/// # Errors
/// No message is about the requested device, or the budget is used up.
pub(super) fn import(
    recording: &mut Recording,
    mut line: String,
    lines: &mut TextLines<impl Read>,
    tracebacks: &mut Tracebacks,
    options: &Options,
    is_other: fn(&str) -> bool,
    budget: &mut Budget,
) -> Result<Option<String>, Refusal> {
    let mut messages = Messages { wanted: options.device.map(u64::from), ..Messages::default() };
    let mut next = Some(line.clone());
    while let Some(current) = next.take() {
        line = current;
        if messages.is_empty() && is_other(&line) {
            return Ok(Some(line));
        }
        tracebacks.line(&line, recording, budget)?;
        if !is_start(&line) {
            next = lines.next()?;
            continue;
        }
        let stack = tracebacks.take(start_of(&line), recording, budget)?;
        let (text, following) = whole(&line, lines, tracebacks, is_other, recording, budget)?;
        next = match following {
            Some(line) => Some(line),
            None => lines.next()?,
        };
        if let Some(message) = Message::read(&text) {
            messages.add(message, stack, recording, budget)?;
        }
    }
    messages.finish(recording, budget)?;
    Ok(None)
}

/// Returns the text before a message.
fn start_of(line: &str) -> &str {
    let at = line.find("out of memory").unwrap_or(0);
    let before = line[..at].trim_end_matches([' ', '(']);
    let words = ["Allocation on device", "MPS backend"];
    let at = words.iter().find_map(|word| before.find(word));
    &before[..at.unwrap_or_else(|| before.rfind(' ').map_or(0, |at| at + 1))]
}

/// Returns a whole message, whose words may be on several lines. Also returns the line after the message, if
/// it was read.
fn whole(
    line: &str,
    lines: &mut TextLines<impl Read>,
    tracebacks: &mut Tracebacks,
    is_other: fn(&str) -> bool,
    recording: &mut Recording,
    budget: &mut Budget,
) -> Result<(String, Option<String>), Refusal> {
    let mut text = String::new();
    let mut push = |line: &str| {
        for word in line.split_whitespace() {
            if text.len() + word.len() < MOST_MESSAGE {
                text.push_str(word);
                text.push(' ');
            }
        }
        // The limit of the fraction comes after its name.
        let has_limit = !text.trim_end().ends_with("fraction)");
        ENDS.iter().any(|end| text.contains(end)) && has_limit
    };
    let mut is_whole = push(line.get(start_of(line).len()..).unwrap_or(line));
    for _ in 1..MOST_LINES {
        if is_whole {
            break;
        }
        let Some(next) = lines.next()? else { break };
        if is_start(&next) || is_other(&next) || next.contains("Traceback (most recent call last)") {
            return Ok((text, Some(next)));
        }
        tracebacks.line(&next, recording, budget)?;
        is_whole = push(&next);
    }
    Ok((text, None))
}

impl Message {
    /// Reads a message whose words are separated by one space each.
    fn read(text: &str) -> Option<Self> {
        let at = text.find("out of memory")?;
        let kind = text[..at].trim_end_matches([' ', '(']).rsplit(' ').next().unwrap_or("");
        let mut message = Self { kind: kind.to_owned(), ..Self::default() };
        if text.contains("would exceed allowed memory") {
            message.kind = Recording::ASYNC.to_owned();
            message.wanted = after(text, "Requested : ")?;
            message.device = number_after(text, "Allocation on device ");
            message.allocated = after(text, "Currently allocated : ");
            message.capacity = after(text, "Device limit : ");
            message.free = after(text, "Free (according to CUDA): ");
            let limit = after(text, "user-supplied memory fraction) : ");
            message.allowed =
                limit.filter(|&limit| message.capacity.is_some_and(|capacity| limit < capacity));
            return Some(message);
        }
        message.wanted = after(text, "Tried to allocate ")?;
        message.private = before(text, " allocated in private pools").unwrap_or(0);
        message.allowed = before(text, " allowed;");
        if text.contains("MPS allocated") {
            message.kind = "MPS".to_owned();
            message.allocated = after(text, "MPS allocated: ");
            message.allowed = after(text, "max allowed: ");
            message.others.extend(after(text, "other allocations: ").map(|bytes| (0, bytes)));
            return Some(message);
        }
        if let Some(capacity) = before(text, " total capacity;") {
            message.capacity = Some(capacity);
            message.device = text.split_once(" (").and_then(|(_, rest)| number_after(rest, " "));
            message.allocated = before(text, " already allocated");
            message.free = before(text, " free;");
            message.version =
                Some(if text.contains(" cached)") { Recording::UP_TO_1_3 } else { Recording::UP_TO_2_0 });
            // Up to PyTorch 1.3, the cached bytes are the bytes that the program does not use.
            let cached = before(text, " cached)").zip(message.allocated);
            let cached = cached.map(|(cached, allocated)| allocated.saturating_add(cached));
            message.reserved = before(text, " reserved in total").or(cached);
            return Some(message);
        }
        // PyTorch 2.1 wrote `capacty`.
        let marker = [" has a total capacity of ", " has a total capacty of "];
        let marker = marker.into_iter().find(|marker| text.contains(marker));
        if let Some(marker) = marker {
            let name = text[..text.find(marker)?].rsplit(' ').next().unwrap_or("");
            message.version = Some(Recording::SINCE_2_1);
            message.device = name.parse().ok();
            message.capacity = after(text, marker);
            message.free = after(text, " of which ");
        }
        message.process = after(text, "this process has ");
        message.allocated = after(text, "Of the allocated memory ");
        let unallocated = before(text, " is reserved by PyTorch but unallocated");
        message.reserved =
            message.allocated.map(|allocated| allocated.saturating_add(unallocated.unwrap_or(0)));
        for part in text.split("Process ").skip(1).take(MOST_PROCESSES) {
            let number = number_after(part, "");
            let bytes = after(part, " has ").filter(|_| part.contains(" memory in use"));
            message.others.extend(number.zip(bytes));
        }
        Some(message)
    }

    /// Returns the state that the message describes. The message has only sums. So the blocks are drawn as
    /// one block, and the free memory as one piece. If one piece would have served the request, the free
    /// memory is drawn as pieces smaller than the request.
    fn state(
        &self,
        stack: Option<Id>,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<State, Refusal> {
        let mut state = State::at(Some(Failure { bytes: self.wanted, stack, device_free: self.free }));
        let Some(allocated) = self.allocated else { return Ok(state) };
        let private = self.private.min(allocated);
        let (plain, free) =
            (allocated - private, self.reserved.unwrap_or(allocated).saturating_sub(allocated));
        let tag = Some(recording.add_tag("allocated by PyTorch", budget)?);
        let piece = (self.wanted.saturating_sub(1) / ROUNDED_TO * ROUNDED_TO).max(ROUNDED_TO);
        let pieces = match free {
            _ if free < self.wanted => 1,
            free => free.div_ceil(piece).clamp(1, MOST_PIECES.min((plain / ROUNDED_TO).max(1))),
        };
        let mut at = BASE;
        for number in 0..pieces {
            let share = |bytes: u64| bytes / pieces + u64::from(number < bytes % pieces);
            let bytes = share(plain);
            if bytes > 0 {
                state.block(Block { address: at, bytes, tag, ..Block::default() }, budget)?;
            }
            at += bytes + share(free);
        }
        if self.reserved.is_some() && at > BASE {
            state.segment(BASE, at - BASE, budget)?;
        }
        if private > 0 {
            let tag = Some(recording.add_tag("allocated in private pools", budget)?);
            let pool = Some((0, 1));
            state.block(Block { address: at, bytes: private, pool, tag, ..Block::default() }, budget)?;
            if self.reserved.is_some() {
                state.segment(at, private, budget)?;
            }
        }
        Ok(state)
    }
}

/// The messages of a text that were read so far.
#[derive(Default)]
struct Messages {
    /// The requested device.
    wanted: Option<u64>,
    /// The device of the first message.
    device: Option<Option<u64>>,
    /// The last message, which may be repeated, with its call stack.
    last: Option<(Message, Option<Id>)>,
    states: States,
    repeated: u64,
    /// The number of messages about other devices.
    left_out: u64,
    /// The lowest numbers of other devices.
    others: BTreeSet<u64>,
}

impl Messages {
    fn is_empty(&self) -> bool {
        self.last.is_none() && self.left_out == 0
    }

    /// Adds a message, unless it is about another device or repeats the last one. Programs log an exception,
    /// and then print it again.
    fn add(
        &mut self,
        message: Message,
        stack: Option<Id>,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        let is_wanted = self.wanted.is_none_or(|wanted| message.device == Some(wanted));
        if !is_wanted || *self.device.get_or_insert(message.device) != message.device {
            self.left_out += 1;
            if self.others.len() < MOST_DEVICES {
                self.others.extend(message.device);
            }
            return Ok(());
        }
        if let Some((last, last_stack)) = &mut self.last
            && *last == message
            && (last_stack.is_none() || stack.is_none() || *last_stack == stack)
        {
            *last_stack = last_stack.or(stack);
            self.repeated += 1;
            return Ok(());
        }
        self.flush(recording, budget)?;
        self.last = Some((message, stack));
        Ok(())
    }

    /// Adds the state of the last message.
    fn flush(&mut self, recording: &mut Recording, budget: &mut Budget) -> Result<Option<Message>, Refusal> {
        let Some((message, stack)) = self.last.take() else { return Ok(None) };
        let state = message.state(stack, recording, budget)?;
        self.states.add(recording, state, budget)?;
        Ok(Some(message))
    }

    /// Makes the error that no message is about the requested device.
    fn refusal(&self, wanted: u64) -> Refusal {
        let others: Vec<String> = self.others.iter().map(u64::to_string).collect();
        Refusal::new(if others.is_empty() {
            format!(
                "has no message about device {wanted}: its messages do not name a device; import it without \
                 --device"
            )
        } else {
            format!(
                "has no message about device {wanted}, only about device {}; choose another device with \
                 --device",
                others.join(", ")
            )
        })
    }

    /// If a message has figures, adds the last message and the details.
    fn finish(mut self, recording: &mut Recording, budget: &mut Budget) -> Result<(), Refusal> {
        let Some(message) = self.flush(recording, budget)? else {
            let wanted = self.wanted.filter(|_| self.left_out > 0);
            return wanted.map_or(Ok(()), |wanted| Err(self.refusal(wanted)));
        };
        Source::PYTORCH_MESSAGE.clone_into(&mut recording.source.format);
        recording.device = message.device.and_then(|device| u32::try_from(device).ok());
        recording.detail("messages", self.states.count());
        recording.detail(Recording::ALLOCATOR, format!("{} of PyTorch", message.kind));
        // Other devices have their own allocators, with other versions.
        if let Some(version) = message.version.filter(|_| ["CUDA", "HIP"].contains(&message.kind.as_str())) {
            recording.detail(Recording::VERSION, version);
        }
        let sizes = [
            (Recording::DEVICE_BYTES, message.capacity),
            (Recording::LIMIT_BYTES, message.allowed),
            (Recording::OWN_BYTES, message.process),
        ];
        for (name, bytes) in sizes {
            if let Some(bytes) = bytes {
                recording.detail(name, bytes);
            }
        }
        for (number, bytes) in &message.others {
            let name = if *number == 0 {
                "other bytes".to_owned()
            } else {
                format!("{}{number}", Recording::PROCESS)
            };
            recording.detail(&name, bytes);
        }
        self.unknowns(recording, &message);
        Ok(())
    }

    fn unknowns(&self, recording: &mut Recording, message: &Message) {
        recording.unknown(
            "sums_only",
            "the message shows only sums: live blocks are drawn as one block, and free memory as one piece, \
             or as pieces smaller than the request. Which code holds the blocks is not known",
        );
        recording.unknown(
            "rounded",
            "the message rounds each size to two decimals of its unit, so sizes are up to 5 MiB off",
        );
        if recording.detail_of(Recording::VERSION).is_some() {
            recording.unknown(
                "requested_size",
                "the message does not show the size of the request, but the size that PyTorch asked the \
                 driver for: 2 MiB for requests up to 1 MiB, 20 MiB for other requests below 10 MiB",
            );
        }
        recording.unknown(
            "no_trace",
            "the message shows the memory at one moment, so the events before it are not known",
        );
        if message.allocated.is_none() {
            recording.unknown("no_sums", "the message does not show how much memory PyTorch used");
        } else if message.reserved.is_none() {
            recording.unknown("segments", "the message does not show how much memory the allocator reserved");
        }
        if message.process.is_none() && message.others.len() == 1 {
            let text = "the message counts one process, and does not show whether it is this process, as in \
                        a container";
            recording.unknown("processes", text);
        }
        if self.repeated > 0 {
            let text = left_out(self.repeated, "repetition", "of a message with the same figures");
            recording.unknown("repeated", text);
        }
        if self.left_out > 0 {
            let others: Vec<String> = self.others.iter().map(u64::to_string).collect();
            let which = match others.is_empty() {
                true => "about other devices".to_owned(),
                false => format!("about other devices ({})", others.join(", ")),
            };
            let text = left_out(self.left_out, "message", &which);
            recording.unknown("other_device", format!("{text}; `explain --device N` shows another device"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_form_of_the_message_is_read() {
        let new = "CUDA out of memory. Tried to allocate 768.00 MiB. GPU 3 has a total capacity of 80.00 GiB \
                   of which 140.50 MiB is free. Process 52 has 1.50 GiB memory in use. Including non-PyTorch \
                   memory, this process has 23.00 GiB memory in use. 40.00 GiB allowed; Of the allocated \
                   memory 22.00 GiB is allocated by PyTorch, with 104.00 MiB allocated in private pools \
                   (e.g., CUDA Graphs), and 512.00 MiB is reserved by PyTorch but unallocated. ";
        let message = Message::read(new).unwrap();
        let expected = Message {
            kind: "CUDA".to_owned(),
            version: Some(Recording::SINCE_2_1),
            device: Some(3),
            wanted: 768 * MIB,
            capacity: Some(80 << 30),
            free: Some(140 * MIB + MIB / 2),
            allowed: Some(40 << 30),
            allocated: Some(22 << 30),
            private: 104 * MIB,
            reserved: Some((22 << 30) + 512 * MIB),
            process: Some(23 << 30),
            others: vec![(52, 3 << 29)],
        };
        assert_eq!(message, expected);
        let old = "HIP out of memory. Tried to allocate 256.00 MiB (GPU 1; 16.00 GiB total capacity; 14.00 \
                   GiB already allocated; 25.00 MiB free; 8.00 GiB allowed; 14.50 GiB reserved in total by \
                   PyTorch) ";
        let message = Message::read(old).unwrap();
        assert_eq!((message.kind.as_str(), message.device, message.wanted), ("HIP", Some(1), 256 * MIB));
        assert_eq!(message.version, Some(Recording::UP_TO_2_0));
        assert_eq!((message.capacity, message.free), (Some(16 << 30), Some(25 * MIB)));
        assert_eq!((message.allowed, message.reserved), (Some(8 << 30), Some(29 << 29)));
        let oldest = "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 8.00 GiB total capacity; 7.00 \
                      GiB already allocated; 1.00 MiB free; 5.00 MiB cached) ";
        let oldest = Message::read(oldest).unwrap();
        assert_eq!(
            (oldest.reserved, oldest.version),
            (Some((7 << 30) + 5 * MIB), Some(Recording::UP_TO_1_3))
        );
        let typo = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacty of 8.00 GiB of \
                    which 1.00 MiB is free. ";
        assert_eq!(Message::read(typo).unwrap().capacity, Some(8 << 30));
        assert_eq!(Message::read("CUDA out of memory. Try again "), None);
    }

    #[test]
    fn other_allocators_of_pytorch_have_their_own_forms() {
        let text = "Allocation on device 2 would exceed allowed memory. (out of memory) Currently allocated \
                    : 9.50 GiB Requested : 640.00 MiB Device limit : 12.00 GiB Free (according to CUDA): \
                    7.00 MiB PyTorch limit (set by user-supplied memory fraction) : 17179869184.00 GiB ";
        let message = Message::read(text).unwrap();
        assert_eq!((message.device, message.wanted, message.allocated), (Some(2), 640 * MIB, Some(19 << 29)));
        assert_eq!((message.free, message.allowed, message.reserved), (Some(7 * MIB), None, None));
        let text = "MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 1.00 MB, max \
                    allowed: 18.00 GB). Tried to allocate 600.00 MB on private pool. ";
        let message = Message::read(text).unwrap();
        assert_eq!((message.kind.as_str(), message.wanted), ("MPS", 600 * MIB));
        assert_eq!((message.allocated, message.allowed), (Some(17 << 30), Some(18 << 30)));
    }

    #[test]
    fn lines_that_begin_a_message_are_told_from_others() {
        for line in
            ["RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB", "x out of memory. Tried to"]
        {
            assert!(is_start(line), "{line}");
        }
        for line in
            ["CUDA error: out of memory", "if it runs out of memory, try less", "out of memory.\t", ""]
        {
            assert!(!is_start(line), "{line}");
        }
        assert_eq!(
            start_of("[rank1]: torch.OutOfMemoryError: CUDA out of memory."),
            "[rank1]: torch.OutOfMemoryError: "
        );
        assert_eq!(start_of("E: Allocation on device 0 would exceed allowed memory. (out of memory)"), "E: ");
    }
}
