//! Reads the notes in a log that was written from a recording.

use std::collections::HashMap;

use millpond_engine::log::StreamKey;
use millpond_engine::log::notes::{text, word};

use crate::budget::Budget;
use crate::import::refusal::Refusal;
use crate::recording::{Event, EventKind, Frame, Id, Lane, Recording, StateCheck, cut};

/// The bytes of an entry in the map from the file's numbers to this recording's numbers, including the
/// entry's share of the map's free space.
const MAP_ENTRY_BYTES: usize = 32;

/// The frames, call stacks and tags that the file has defined so far, by the file's own numbers.
#[derive(Default, Debug)]
pub(super) struct Notes {
    frames: HashMap<u64, Id>,
    stacks: HashMap<u64, Id>,
    tags: HashMap<u64, Id>,
}

impl Notes {
    /// Returns the call stack that the file defined with this number.
    pub(super) fn stack(&self, id: u64) -> Option<Id> {
        self.stacks.get(&id).copied()
    }

    /// Reads the notes of one row.
    ///
    /// # Errors
    /// The note is not one that a recording writes, or the budget is used up.
    pub(super) fn read(
        &mut self,
        notes: &str,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        for note in notes.split(';') {
            if self.note(note, recording, budget)?.is_none() {
                let shown: String = note.chars().take(60).flat_map(char::escape_debug).collect();
                return Err(Refusal::new(format!("column Notes: `{shown}` is not a note of a recording")));
            }
        }
        Ok(())
    }

    fn note(
        &mut self,
        note: &str,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Option<()>, Refusal> {
        let (kind, rest) = note.split_once(' ').unwrap_or((note, ""));
        if let Some(kind) = EventKind::from_name(kind) {
            let Some(event) = self.event(kind, rest, recording, budget)? else { return Ok(None) };
            recording.push(event, budget)?;
            return Ok(Some(()));
        }
        budget.take(2 * note.len())?; // most of the note is kept
        let words: Option<Vec<String>> = rest.split(' ').map(text).collect();
        let Some(words) = words else { return Ok(None) };
        Ok(match (kind, words.as_slice()) {
            (word::SOURCE, [format]) => {
                recording.source.format = cut(format).to_owned();
                Some(())
            }
            (word::DETAIL, [name, value]) => {
                recording.detail(name, value);
                Some(())
            }
            (word::DEVICE, [device]) => {
                let number = device.strip_prefix("sim:");
                recording.is_simulated = number.is_some();
                number.unwrap_or(device).parse().ok().map(|number| recording.device = Some(number))
            }
            (word::SETTING, [name, value]) => {
                recording.setting(name, value);
                Some(())
            }
            (word::UNKNOWN, [code, text]) => {
                recording.unknown(code, text.as_str());
                Some(())
            }
            (word::CHECK, words) => check(words).map(|check| recording.check = Some(check)),
            (word::FRAME, [id, line, function, file]) => match (id.parse(), line.parse()) {
                (Ok(id), Ok(line)) => {
                    let frame = recording.add_frame(Frame { function, file, line }, budget)?;
                    define(&mut self.frames, id, frame, budget)?
                }
                _ => None,
            },
            (word::STACK, [id, list]) => {
                let frames: Option<Vec<Id>> = match list.as_str() {
                    "" => Some(Vec::new()),
                    list => list.split('.').map(|id| self.frames.get(&id.parse().ok()?).copied()).collect(),
                };
                match (id.parse(), frames) {
                    (Ok(id), Some(frames)) => {
                        let stack = recording.add_stack(&frames, budget)?;
                        define(&mut self.stacks, id, stack, budget)?
                    }
                    _ => None,
                }
            }
            (word::DEVICE_FREE, [_, bytes, ..]) => device_free(bytes, recording, budget)?,
            (word::TAG, [id, text]) => match id.parse() {
                Ok(id) => {
                    let tag = recording.add_tag(text, budget)?;
                    define(&mut self.tags, id, tag, budget)?
                }
                Err(_) => None,
            },
            _ => None,
        })
    }

    /// Reads the fields of an event: address, bytes, stream, thread, time, stack, pool, before, tag.
    fn event(
        &self,
        kind: EventKind,
        words: &str,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Option<Event>, Refusal> {
        let words: Vec<&str> = words.split(' ').collect();
        let Ok([address, bytes, stream, thread, time, stack, pool, before, tag]) =
            <[&str; 9]>::try_from(words)
        else {
            return Ok(None);
        };
        let parsed = || {
            let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
            let stream: StreamKey = stream.parse().ok()?;
            let time = optional(time, |time| time.parse().ok())?.unwrap_or(Event::NO_TIME);
            let stack = optional(stack, |stack| self.stacks.get(&stack.parse().ok()?).copied())?;
            let tag = optional(tag, |tag| self.tags.get(&tag.parse().ok()?).copied())?;
            let pair = optional(pool, self::pool)?;
            let is_before = match before {
                "0" => false,
                "1" => true,
                _ => return None,
            };
            let (bytes, thread) = (bytes.parse().ok()?, thread.parse().ok()?);
            let event = Event { address, bytes, raw_time: time, stack, tag, is_before, ..Event::new(kind) };
            Some((event, thread, stream, pair))
        };
        let Some((event, thread, stream, pair)) = parsed() else { return Ok(None) };
        let lane = recording.add_lane(Lane { thread, stream, pool: pair }, budget)?;
        Ok(Some(Event { lane, ..event }))
    }
}

/// Reads the free bytes of the device, which belong to the failed request before this note.
fn device_free(bytes: &str, recording: &mut Recording, budget: &mut Budget) -> Result<Option<()>, Refusal> {
    let Ok(bytes) = bytes.parse() else { return Ok(None) };
    Ok(recording.set_device_free(bytes, budget)?.then_some(()))
}

/// Parses a pool: two numbers with a colon between them.
pub(super) fn pool(text: &str) -> Option<(u64, u64)> {
    let (first, second) = text.split_once(':')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// Parses a value. The text `-` means that there is no value.
fn optional<T>(word: &str, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if word == "-" { Some(None) } else { read(word).map(Some) }
}

fn define(map: &mut HashMap<u64, Id>, id: u64, ours: Id, budget: &mut Budget) -> Result<Option<()>, Refusal> {
    budget.take(MAP_ENTRY_BYTES)?;
    map.insert(id, ours);
    Ok(Some(()))
}

fn check(words: &[String]) -> Option<StateCheck> {
    let (counts, first) = words.split_at_checked(10)?;
    let counts: Option<Vec<u64>> = counts.iter().map(|count| count.parse().ok()).collect();
    let counts = <[u64; 10]>::try_from(counts?).ok()?;
    match first {
        [] => Some(StateCheck::from_counts(counts, None)),
        [first] => Some(StateCheck::from_counts(counts, Some(cut(first).to_owned()))),
        _ => None,
    }
}
