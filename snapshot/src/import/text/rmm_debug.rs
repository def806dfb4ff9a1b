//! RMM's log of its own decisions (`RMM_DEBUG_LOG_FILE`, `rmm_log.txt`, or the standard error).
//!
//! Release builds log only failed requests. A build with the level `TRACE` logs all allocations and frees of
//! the pool. A line is `[thread][time][level] message`, or has these parts in another order.

use std::io::Read;

use millpond_engine::log::StreamKey;

use super::amounts::{after, grouped, hexadecimal};
use super::lines::TextLines;
use crate::budget::{Budget, Exceeded};
use crate::import::no_stacks::no_stacks;
use crate::import::refusal::Refusal;
use crate::recording::{Clock, Event, EventKind, Lane, Recording, Source};

const DAY_NS: u64 = 86_400_000_000_000;

/// Returns whether a line belongs to such a log.
pub(super) fn is_start(line: &str) -> bool {
    line.contains("RMM LOG BEGIN") || message(line).is_some()
}

/// The content of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// A request that is not served yet.
    Asked(u64),
    /// The address and the bytes of a new block.
    Allocated(u64, u64),
    /// The address and the bytes of a freed block.
    Freed(u64, u64),
    Failed(u64),
    /// Any other content.
    Other,
}

/// Returns the stream and the message in a line, and the text before the message.
fn message(line: &str) -> Option<(&str, StreamKey, Message)> {
    let at = line.find("[A][").or_else(|| line.find("[D]["))?;
    let is_free = line[at..].starts_with("[D]");
    let mut parts = line[at + 4..].split("][").map(|part| part.trim_end().trim_end_matches(']'));
    let stream = parts.next()?;
    let stream = stream.strip_prefix("stream ").or_else(|| stream.strip_prefix("Stream "))?;
    let stream = stream.parse().unwrap_or(StreamKey::Legacy);
    let size = parts.next()?;
    let is_upstream = size.starts_with("Upstream ");
    let size = size.trim_start_matches("Upstream ").strip_suffix('B').and_then(grouped)?;
    let last = parts.next();
    let message = match last {
        None if !is_free => Message::Asked(size),
        Some(text) if text.starts_with("FAILURE") => Message::Failed(size),
        Some(text) => match hexadecimal(text).filter(|_| text.starts_with("0x") && !is_upstream) {
            Some(address) if is_free => Message::Freed(address, size),
            Some(address) => Message::Allocated(address, size),
            None => Message::Other,
        },
        None => Message::Other,
    };
    Some((&line[..at], stream, message))
}

/// Returns the thread and the time of day from the bracketed words before a message. The time is in
/// nanoseconds.
fn thread_and_time(before: &str) -> (u64, Option<u64>) {
    let words = before.split(['[', ']', ' ']).filter(|word| !word.is_empty());
    let (mut thread, mut time) = (0, None);
    for word in words {
        if let Ok(number) = word.parse() {
            thread = number;
        }
        time = time.or_else(|| time_of_day(word));
    }
    (thread, time)
}

/// Reads a time such as `08:24:53:517285`, or with a point before the microseconds.
fn time_of_day(word: &str) -> Option<u64> {
    let parts: Option<Vec<u64>> = word.split([':', '.']).map(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds, micros] = <[u64; 4]>::try_from(parts?).ok()?;
    let is_time = hours < 24 && minutes < 60 && seconds < 61 && micros < 1_000_000;
    is_time.then(|| ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + micros * 1000)
}

/// Returns the bytes of the pool, and the most bytes that it may have, from the text of a failed request.
pub(super) fn pool_of(text: &str) -> Option<(u64, u64)> {
    let (_, sizes) = text.split_once("current/max/try size = ")?;
    let mut sizes = sizes.split(", ");
    let (now, most) = (sizes.next()?, sizes.next()?);
    Some((after(now, "")?, after(most, "")?))
}

/// Returns the cause that the text of a failed request names, as the value of a detail.
pub(super) fn cause_of(text: &str) -> Option<&'static str> {
    let has = |words: &str| text.to_ascii_lowercase().contains(words);
    match has("maximum pool size exceeded") {
        true => Some(Recording::POOL_LIMIT),
        false => has("cudaerrormemoryallocation").then_some(Recording::DEVICE_FULL),
    }
}

/// Reads a log, beginning at a given line.
///
/// # Errors
/// The budget is used up, or the log shows no request.
pub(super) fn import(
    mut recording: Recording,
    line: String,
    lines: &mut TextLines<impl Read>,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    Source::RMM_DEBUG.clone_into(&mut recording.source.format);
    recording.clock = Clock::Monotonic;
    let mut log = Log::default();
    let mut next = Some(line);
    while let Some(line) = next {
        log.line(&line, &mut recording, budget)?;
        next = lines.next()?;
    }
    log.finish(recording)
}

#[derive(Default)]
struct Log {
    /// The thread and the bytes of the last request that has no block yet.
    asked: Option<(u64, u64)>,
    blocks: u64,
    failures: u64,
    /// The time of midnight before the last line.
    midnight: u64,
    last: u64,
    /// The bytes of the pool at a failed request, and the most bytes that the pool may have.
    pool: Option<(u64, u64)>,
    /// The cause that the text of the last failed request names.
    cause: Option<&'static str>,
}

impl Log {
    fn line(&mut self, line: &str, recording: &mut Recording, budget: &mut Budget) -> Result<(), Exceeded> {
        let Some((before, stream, message)) = message(line) else { return Ok(()) };
        let (thread, time) = thread_and_time(before);
        let raw_time = time.map_or(Event::NO_TIME, |time| self.time(time));
        let (kind, address, bytes) = match message {
            // No block is at address 0.
            Message::Other | Message::Allocated(0, _) | Message::Freed(0, _) => return Ok(()),
            Message::Asked(bytes) => {
                self.asked = Some((thread, bytes));
                return Ok(());
            }
            Message::Allocated(address, bytes) => (EventKind::Allocate, address, bytes),
            Message::Freed(address, bytes) => (EventKind::Free, address, bytes),
            Message::Failed(bytes) => (EventKind::AllocateFailure, 0, bytes),
        };
        let mut bytes = bytes;
        if kind == EventKind::Allocate {
            // The block's size is rounded up. The request before it has the exact size.
            let asked = self.asked.take().filter(|(by, asked)| *by == thread && *asked <= bytes);
            recording.set_rounded_bytes(recording.len(), bytes, budget)?;
            bytes = asked.map_or(bytes, |(_, asked)| asked);
            self.blocks += 1;
        } else if kind == EventKind::AllocateFailure {
            self.failures += 1;
            self.pool = pool_of(line).or(self.pool);
            self.cause = cause_of(line);
        }
        let lane = recording.add_lane(Lane { thread, stream, pool: None }, budget)?;
        recording.push(Event { address, bytes, lane, raw_time, ..Event::new(kind) }, budget)
    }

    /// Converts a time of day to a time since the first midnight. If the days exceed 64 bits, returns
    /// `NO_TIME`.
    fn time(&mut self, time: u64) -> u64 {
        if time + DAY_NS / 2 < self.last {
            self.midnight = self.midnight.saturating_add(DAY_NS);
        }
        self.last = time;
        self.midnight.saturating_add(time)
    }

    fn finish(self, mut recording: Recording) -> Result<Recording, Refusal> {
        if recording.is_empty() {
            return Err(Refusal::new(
                "is RMM's debug log, but shows no failed request and no block; record the blocks with \
                 rmm.reinitialize(logging=True, log_file_name=\"rmm.csv\")",
            ));
        }
        if let Some((now, most)) = self.pool {
            recording.detail(Recording::POOL_BYTES, now);
            recording.detail(Recording::LIMIT_BYTES, most);
        }
        self.cause.into_iter().for_each(|cause| recording.detail(Recording::CAUSE, cause));
        if self.blocks == 0 {
            let text = "the log shows only failed requests, so the live blocks are not known";
            recording.unknown("no_blocks", text);
            recording.unknown(
                "no_trace",
                "the log does not show earlier events: record the blocks with rmm.reinitialize(logging=True)",
            );
        }
        recording.unknown("stacks", no_stacks(Source::RMM));
        recording.unknown(
            "other_allocators",
            "the log does not show memory that was allocated outside of RMM's pool",
        );
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_in_the_forms_of_all_versions() {
        let (before, stream, failed) = message(
            "[104507][08:24:53:517285][error ] [A][Stream 0x7f00c8008210][Upstream 2139648B][FAILURE \
                     maximum pool size exceeded]",
        )
        .unwrap();
        assert_eq!((stream, failed), (StreamKey::Handle(0x7f00_c800_8210), Message::Failed(2_139_648)));
        assert_eq!(thread_and_time(before), (104_507, Some(30_293_517_285_000)));
        let (before, _, message_) =
            message("[trace][7][08:24:53:517285] [D][stream 0x2][1024B][0x7f0000000100]").unwrap();
        assert_eq!((thread_and_time(before).0, message_), (7, Message::Freed(0x7f00_0000_0100, 1024)));
        let of = |text| message(text).map(|(_, _, message)| message);
        assert_eq!(of("[A][stream 0x0][1000B]"), Some(Message::Asked(1000)));
        assert_eq!(of("[A][stream 0x0][1024B][0x7f00]"), Some(Message::Allocated(0x7f00, 1024)));
        assert_eq!(of("[A][Stream 0x0][1024B][Taken from stream 0x2]"), Some(Message::Other));
        assert_eq!((of("[A][x"), of("[A][Stream 0x1][é]"), of("")), (None, None, None));
    }

    #[test]
    fn a_log_of_more_days_than_64_bits_hold_has_no_times_at_its_end() {
        let mut log = Log { midnight: DAY_NS * (u64::MAX / DAY_NS), last: DAY_NS - 1, ..Log::default() };
        assert_eq!(log.time(0), Event::NO_TIME);
        log.last = DAY_NS - 1;
        assert_eq!(log.time(5), Event::NO_TIME);
    }
}
