//! JAX's device memory profile (`jax.profiler.save_device_memory_profile`). It contains the live buffers at
//! one moment, and the code of executables, each with its call stack.
//!
//! The file is a pprof profile, which is a protocol buffer
//! ([profile.proto](https://github.com/google/pprof/blob/main/proto/profile.proto)). It has no addresses.

mod wire;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;

use super::left_out;
use super::options::Options;
use super::refusal::Refusal;
use super::states::{Block, MOST_BYTES, State, States};
use crate::budget::{Budget, Exceeded};
use crate::recording::{Frame, Id, Recording};

use wire::Fields;

/// The bytes of a map entry, including the entry's share of the map's free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// The most frames of a call stack.
const MOST_FRAMES: usize = 2048;

/// The most devices that the reader distinguishes.
const MOST_DEVICES: usize = 1024;

/// The most equal buffers that become separate blocks. If there are more, they become one block.
const MOST_BUFFERS: u64 = 1 << 16;

const NEGATIVE: &str = "is a profile (pprof) with negative sizes, which is damaged or the difference of two \
                        profiles; save one with jax.profiler.save_device_memory_profile(\"memory.prof\")";

/// The numbers of the fields in profile.proto.
mod field {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRINGS: u64 = 6;
    pub(super) const TIME_NANOS: u64 = 9;
}

/// Returns whether a file starts like a profile: with the type of a sample, which is two small numbers.
pub(super) fn is_start(head: &[u8]) -> bool {
    let Some([0x0a, length @ 2..=6]) = head.get(..2) else { return false };
    let Some(kind) = head.get(2..2 + usize::from(*length)) else { return false };
    let mut fields = Fields::new(kind);
    let are_numbers =
        fields.by_ref().all(|(number, value)| (1..=2).contains(&number) && value.bytes().is_empty());
    let next = head.get(2 + usize::from(*length)).copied();
    are_numbers && !fields.is_broken() && matches!(next, None | Some(0x0a | 0x12))
}

/// The tables of a profile. The numbers of strings count from 0.
#[derive(Default)]
struct Profile<'a> {
    types: Vec<[u64; 2]>,
    samples: Vec<&'a [u8]>,
    /// The lines of a location, as pairs of a function and a line. The innermost line comes first.
    locations: HashMap<u64, &'a [u8]>,
    /// The name and the file of a function.
    functions: HashMap<u64, [u64; 2]>,
    strings: Vec<&'a str>,
    time: u64,
}

/// One sample: live buffers with the same size, device and call stack.
struct Sample<'a> {
    count: u64,
    bytes: u64,
    kind: &'a str,
    device: Option<u32>,
    stack: Option<Id>,
}

/// The frames that samples have named so far.
#[derive(Default)]
struct Known {
    /// The frames by function and line.
    frames: HashMap<(u64, u64), Id>,
    /// The frames of each location, the innermost first.
    locations: HashMap<u64, Vec<Id>>,
}

/// Reads a profile.
///
/// # Errors
/// The file is damaged, is a profile of another program, has no memory of the requested device, or needs too
/// much memory.
pub(super) fn import(
    name: &str,
    mut source: impl Read,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let mut bytes = Vec::new();
    loop {
        budget.take(2 << 16)?; // a vector may grow to twice its size
        let read = (&mut source).take(1 << 16).read_to_end(&mut bytes)?;
        if read < 1 << 16 {
            break;
        }
    }
    let profile = Profile::read(&bytes, budget)?;
    profile.check()?;
    let mut recording = Recording::new(name, "JAX device memory profile");
    let mut known = Known::default();
    let mut samples = Vec::new();
    for sample in &profile.samples {
        budget.take(3 * size_of::<Sample<'_>>())?;
        samples.push(profile.sample(sample, &mut known, &mut recording, budget)?);
    }
    if samples.is_empty() {
        return Err(Refusal::new(
            "is a device memory profile without live buffers; save it while the program runs",
        ));
    }
    let left_out = choose(&mut recording, &mut samples, options.device)?;
    let state = state(&samples, &mut recording, budget)?;
    States::default().add(&mut recording, state, budget)?;
    describe(&mut recording, &samples, left_out, profile.time);
    Ok(recording)
}

impl<'a> Profile<'a> {
    fn read(bytes: &'a [u8], budget: &mut Budget) -> Result<Self, Refusal> {
        let mut profile = Self::default();
        let mut fields = Fields::new(bytes);
        for (number, value) in fields.by_ref() {
            budget.take(MAP_ENTRY_BYTES)?;
            match number {
                field::SAMPLE_TYPE => profile.types.push(pair(value.bytes(), [1, 2])),
                field::SAMPLE => profile.samples.push(value.bytes()),
                field::LOCATION => {
                    let id = Fields::new(value.bytes()).find(|(number, _)| *number == 1);
                    profile.locations.insert(id.map_or(0, |(_, id)| id.number()), value.bytes());
                }
                field::FUNCTION => {
                    let [id, name] = pair(value.bytes(), [1, 2]);
                    profile.functions.insert(id, [name, pair(value.bytes(), [4, 4])[0]]);
                }
                field::STRINGS => profile.strings.push(std::str::from_utf8(value.bytes()).unwrap_or("")),
                field::TIME_NANOS => profile.time = value.number(),
                _ => {}
            }
        }
        if fields.is_broken() {
            return Err(Refusal::new("is a profile (pprof) that is damaged or truncated; save it again"));
        }
        Ok(profile)
    }

    fn string(&self, number: u64) -> &'a str {
        usize::try_from(number).ok().and_then(|number| self.strings.get(number)).copied().unwrap_or("")
    }

    /// Checks that the samples count device memory.
    fn check(&self) -> Result<(), Refusal> {
        let types: Vec<&str> = self.types.iter().map(|&[kind, _]| self.string(kind)).collect();
        if types == ["allocations", "space"] {
            return Ok(());
        }
        let types: Vec<String> = types
            .iter()
            .take(4)
            .map(|kind| kind.chars().take(30).flat_map(char::escape_debug).collect())
            .collect();
        Err(Refusal::new(format!(
            "is a profile (pprof) of {}, but not of device memory; save one with \
             jax.profiler.save_device_memory_profile(\"memory.prof\")",
            types.join(", ")
        )))
    }

    fn sample(
        &self,
        bytes: &[u8],
        known: &mut Known,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Sample<'a>, Refusal> {
        let mut sample = Sample { count: 0, bytes: 0, kind: "", device: None, stack: None };
        let (mut values, mut stack) = (0, Vec::new());
        for (number, value) in Fields::new(bytes) {
            match number {
                1 => {
                    for location in value.numbers() {
                        let room = MOST_FRAMES - stack.len();
                        if room == 0 {
                            break;
                        }
                        let frames = self.location(location, known, recording, budget)?;
                        stack.extend_from_slice(&frames[..frames.len().min(room)]);
                    }
                }
                2 => {
                    for number in value.numbers() {
                        if number > i64::MAX as u64 {
                            return Err(Refusal::new(NEGATIVE));
                        }
                        match values {
                            0 => sample.count = number,
                            1 => sample.bytes = number.min(MOST_BYTES),
                            _ => {}
                        }
                        values += 1;
                    }
                }
                3 => {
                    let [key, text] = pair(value.bytes(), [1, 2]).map(|number| self.string(number));
                    match key {
                        "kind" => sample.kind = text,
                        "device" => sample.device = ordinal(text),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        sample.stack = if stack.is_empty() { None } else { Some(recording.add_stack(&stack, budget)?) };
        Ok(sample)
    }

    /// Returns the frames of a location. The bytes of the location are read only once, even if many samples
    /// name it.
    fn location<'f>(
        &self,
        location: u64,
        known: &'f mut Known,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<&'f [Id], Exceeded> {
        let Known { frames, locations } = known;
        let place = match locations.entry(location) {
            Entry::Occupied(place) => return Ok(place.into_mut()),
            Entry::Vacant(place) => place,
        };
        budget.take(MAP_ENTRY_BYTES)?;
        let lines = self.locations.get(&location).copied().unwrap_or_default();
        let lines = Fields::new(lines).filter(|(number, _)| *number == 4).take(MOST_FRAMES);
        let mut ids = Vec::new();
        for (_, line) in lines {
            budget.take(3 * size_of::<Id>())?;
            let [function, line] = pair(line.bytes(), [1, 2]);
            ids.push(match frames.entry((function, line)) {
                Entry::Occupied(id) => *id.get(),
                Entry::Vacant(id) => {
                    let [name, file] = self.functions.get(&function).copied().unwrap_or([0, 0]);
                    let frame = Frame { function: self.string(name), file: self.string(file), line };
                    budget.take(MAP_ENTRY_BYTES)?;
                    *id.insert(recording.add_frame(frame, budget)?)
                }
            });
        }
        Ok(place.insert(ids))
    }
}

/// Returns the numbers in two fields of a message. If the message lacks a field, its number is 0.
fn pair(message: &[u8], numbers: [u64; 2]) -> [u64; 2] {
    let mut pair = [0; 2];
    for (number, value) in Fields::new(message) {
        for (at, wanted) in numbers.iter().enumerate() {
            if number == *wanted {
                pair[at] = value.number();
            }
        }
    }
    pair
}

/// Returns the number in a device's name: `cuda:1`, `GPU_1`, `TFRT_CPU_0`, `StreamExecutorGpuDevice(id=1)`.
fn ordinal(device: &str) -> Option<u32> {
    let end = device.trim_end_matches(|char: char| !char.is_ascii_digit());
    let start = end.trim_end_matches(|char: char| char.is_ascii_digit()).len();
    end[start..].parse().ok()
}

/// Keeps the buffers of one device. Also keeps the executables, which belong to all devices. Returns the
/// bytes of the other buffers.
fn choose(
    recording: &mut Recording,
    samples: &mut Vec<Sample<'_>>,
    wanted: Option<u32>,
) -> Result<u64, Refusal> {
    let mut devices: HashMap<u32, u64> = HashMap::new();
    for sample in samples.iter() {
        if let Some(device) = sample.device
            && (devices.len() < MOST_DEVICES || devices.contains_key(&device))
        {
            let sum = devices.entry(device).or_default();
            *sum = sum.saturating_add(sample.bytes);
        }
    }
    let most = devices.iter().max_by_key(|&(device, bytes)| (*bytes, std::cmp::Reverse(*device)));
    let device = wanted.or_else(|| most.map(|(device, _)| *device));
    if let Some(wanted) = wanted.filter(|wanted| !devices.contains_key(wanted)) {
        if devices.is_empty() {
            return Err(Refusal::new(format!(
                "has no memory of device {wanted}: its buffers do not name a device; import it without \
                 --device"
            )));
        }
        let mut others: Vec<u32> = devices.into_keys().collect();
        others.sort_unstable();
        let others: Vec<String> = others.iter().take(16).map(u32::to_string).collect();
        return Err(Refusal::new(format!(
            "has no memory of device {wanted}, only of device {}; choose another device with --device",
            others.join(", ")
        )));
    }
    let all = samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(sample.bytes));
    samples.retain(|sample| sample.device.is_none() || sample.device == device);
    recording.device = device;
    Ok(all.saturating_sub(samples.iter().fold(0, |sum, sample| sum.saturating_add(sample.bytes))))
}

/// Returns the buffers as blocks, at consecutive addresses.
fn state(samples: &[Sample<'_>], recording: &mut Recording, budget: &mut Budget) -> Result<State, Refusal> {
    let mut state = State::default();
    for sample in samples {
        let Sample { count, bytes, kind, stack, .. } = *sample;
        let tag = if kind.is_empty() { None } else { Some(recording.add_tag(kind, budget)?) };
        let is_even = (1..=MOST_BUFFERS).contains(&count) && bytes % count == 0;
        let (count, bytes) = if is_even { (count, bytes / count) } else { (1, bytes) };
        for _ in 0..count {
            state.place(Block { bytes, stack, tag, ..Block::default() }, budget)?;
        }
    }
    Ok(state)
}

fn describe(recording: &mut Recording, samples: &[Sample<'_>], left_out: u64, time: u64) {
    recording.detail("samples", samples.len());
    if time > 0 {
        recording.detail("time in ns since 1970", time);
    }
    recording
        .unknown("no_trace", "the profile shows no events: the peak, and the order of calls, are not known");
    recording.unknown("addresses", "the profile shows no addresses: each buffer gets its own address");
    recording.unknown(
        "pools",
        "the profile shows live buffers and executables, but no temporary memory of executables and no free \
         memory",
    );
    if samples.iter().any(|sample| sample.device.is_none()) {
        let text =
            "the profile does not record which device an executable is on, so it counts on each device";
        recording.unknown("executables", text);
    }
    if left_out > 0 {
        let text = left_out::left_out(left_out, "byte", "of other devices");
        recording.unknown("other_device", format!("{text}; `explain --device N` shows a device"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_known_by_its_start() {
        assert!(is_start(b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04\x12"));
        for other in [&b"\n\nhello"[..], b"\n\x04abcd", b"\x0a\x04\x08\x01\x10", b"", b"\x0a", b"\n<html>"] {
            assert!(!is_start(other), "{}", other.escape_ascii());
        }
        for (name, expected) in
            [("cuda:1", Some(1)), ("StreamExecutorGpuDevice(id=12)", Some(12)), ("x", None)]
        {
            assert_eq!(ordinal(name), expected);
        }
    }
}
