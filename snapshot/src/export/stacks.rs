//! The call stacks of live blocks at one moment: as JSON for speedscope, and as folded lines.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use millpond_engine::text::{plain, write_json};
use serde_json::{Value, json};

use crate::frames::{Frame, Part};
use crate::recording::{Id, Recording};

/// The call stack of a block, or the reason why there is none.
type Stack = Result<Id, &'static str>;

/// Returns the requested bytes of each call stack after an event, in the order of the call stacks.
fn held(recording: &Recording, event: usize) -> BTreeMap<Stack, u64> {
    let mut held = BTreeMap::new();
    for block in recording.moment(event).blocks() {
        let stack = block.stack.ok_or_else(|| recording.without_stack(block.event));
        let bytes: &mut u64 = held.entry(stack).or_default();
        *bytes = bytes.saturating_add(block.bytes);
    }
    held
}

/// The different frames in the file for speedscope.
#[derive(Default)]
struct Frames {
    frames: Vec<Value>,
    numbers: HashMap<(String, String, u64), usize>,
}

impl Frames {
    fn number(&mut self, name: &str, file: &str, line: u64) -> usize {
        *self.numbers.entry((name.to_owned(), file.to_owned(), line)).or_insert_with(|| {
            let mut frame = json!({"name": name});
            if !file.is_empty() {
                frame["file"] = file.into();
            }
            if line > 0 {
                frame["line"] = line.into();
            }
            self.frames.push(frame);
            self.frames.len() - 1
        })
    }
}

/// Writes speedscope's JSON: <https://www.speedscope.app/file-format-schema.json>. The first profile has the
/// user's frames, and folds the others. The second profile has all frames.
pub(super) fn speedscope(recording: &Recording, event: usize, out: &mut impl Write) -> io::Result<()> {
    let mut frames = Frames::default();
    let (mut own, mut all, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (stack, bytes) in held(recording, event) {
        weights.push(bytes);
        let stack = match stack {
            Ok(stack) => recording.user_stack(stack),
            Err(reason) => {
                let sample = vec![frames.number(reason, "", 0)];
                own.push(sample.clone());
                all.push(sample);
                continue;
            }
        };
        let mut number = |frame: Frame<'_>| frames.number(frame.function, frame.file, frame.line);
        all.push(stack.frames().iter().rev().map(|(frame, _)| number(*frame)).collect());
        let parts = stack.parts().into_iter();
        let parts = parts.map(|part| match part {
            Part::Frame(at) => number(stack.frames()[at].0),
            Part::Folded(name) => number(Frame { function: &name, file: "", line: 0 }),
        });
        own.push(parts.collect());
    }
    let end = weights.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let profile = |name: &str, samples: Vec<Vec<usize>>| {
        json!({
            "type": "sampled", "name": format!("live after event {}{name}", event + 1), "unit": "bytes",
            "startValue": 0, "endValue": end, "samples": samples, "weights": weights,
        })
    };
    let profiles = [profile("", own), profile(", all frames", all)];
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": recording.file(),
        "exporter": concat!("millpond-replay ", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.frames},
        "profiles": profiles,
    });
    write_json(&mut *out, &file)?;
    writeln!(out)
}

/// Writes a line for each call stack, with all frames, or with the user's frames and the others folded. Equal
/// lines become one line.
pub(super) fn folded(
    recording: &Recording,
    event: usize,
    has_all_frames: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, bytes) in held(recording, event) {
        let line = match stack.map(|stack| recording.user_stack(stack)) {
            Err(reason) => reason.to_owned(),
            Ok(stack) if has_all_frames => {
                let frames = stack.frames().iter().rev();
                let texts = frames
                    .map(|(frame, _)| word(&format!("{} ({}:{})", frame.function, frame.file, frame.line)));
                texts.collect::<Vec<String>>().join(";")
            }
            Ok(stack) => {
                let parts = stack.parts().into_iter();
                let texts = parts.map(|part| match part {
                    Part::Frame(at) => word(&stack.text(at, recording.user_folder())),
                    Part::Folded(name) => word(&name),
                });
                texts.collect::<Vec<String>>().join(";")
            }
        };
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(bytes);
    }
    lines.into_iter().try_for_each(|(line, bytes)| writeln!(out, "{line} {bytes}"))
}

/// Returns a frame without the characters that end a frame or a line.
fn word(frame: &str) -> String {
    plain(frame).replace(';', ",")
}
