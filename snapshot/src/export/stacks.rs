//! The stacks at an instant: speedscope's JSON, and folded lines.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde_json::json;

use crate::recording::{Id, Recording};

/// The name for blocks without a known stack.
const NO_STACK: &str = "(no stack)";

/// Returns the requested bytes of each stack after an event, in the order of the stacks.
fn held(recording: &Recording, event: usize) -> BTreeMap<Option<Id>, u64> {
    let mut held = BTreeMap::new();
    for block in recording.moment(event).blocks() {
        let bytes: &mut u64 = held.entry(block.stack).or_default();
        *bytes = bytes.saturating_add(block.bytes);
    }
    held
}

/// Writes speedscope's JSON: <https://www.speedscope.app/file-format-schema.json>.
pub(super) fn speedscope(recording: &Recording, event: usize, out: &mut impl Write) -> io::Result<()> {
    let mut frames = Vec::new();
    let mut numbers: HashMap<(String, String, u64), usize> = HashMap::new();
    let mut number = |function: &str, file: &str, line: u64| {
        *numbers.entry((function.to_owned(), file.to_owned(), line)).or_insert_with(|| {
            let mut frame = json!({"name": function});
            if !file.is_empty() {
                frame["file"] = file.into();
            }
            if line > 0 {
                frame["line"] = line.into();
            }
            frames.push(frame);
            frames.len() - 1
        })
    };
    let (mut samples, mut weights) = (Vec::new(), Vec::new());
    for (stack, bytes) in held(recording, event) {
        let stack = stack.into_iter().flat_map(|stack| recording.stack(stack));
        let mut sample: Vec<usize> =
            stack.map(|frame| number(frame.function, frame.file, frame.line)).collect();
        if sample.is_empty() {
            sample.push(number(NO_STACK, "", 0));
        }
        sample.reverse();
        samples.push(sample);
        weights.push(bytes);
    }
    let end = weights.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let name = format!("live after event {}", event + 1);
    let profile = json!({
        "type": "sampled", "name": name, "unit": "bytes", "startValue": 0, "endValue": end,
        "samples": samples, "weights": weights,
    });
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": recording.file(),
        "exporter": concat!("millpond-replay ", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": [profile],
    });
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)
}

/// Writes a line for each stack.
pub(super) fn folded(recording: &Recording, event: usize, out: &mut impl Write) -> io::Result<()> {
    for (stack, bytes) in held(recording, event) {
        let stack = stack.into_iter().flat_map(|stack| recording.stack(stack));
        let mut frames: Vec<String> =
            stack.map(|frame| word(&format!("{} ({}:{})", frame.function, frame.file, frame.line))).collect();
        if frames.is_empty() {
            frames.push(NO_STACK.to_owned());
        }
        frames.reverse();
        writeln!(out, "{} {bytes}", frames.join(";"))?;
    }
    Ok(())
}

/// Returns a frame without the characters that end a frame or a line.
fn word(frame: &str) -> String {
    frame
        .chars()
        .map(|char| {
            if char == ';' {
                ','
            } else if char.is_control() {
                ' '
            } else {
                char
            }
        })
        .collect()
}
