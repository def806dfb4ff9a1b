//! The stacks that hold memory.

use std::collections::HashMap;

use serde::Serialize;

use crate::recording::{Id, LiveBlock, Recording};

/// How many stacks are named together.
pub(super) const HOLDERS: usize = 5;

/// How many frames of a stack are shown at most.
const FRAMES: usize = 8;

/// The blocks of one stack at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    /// The bytes, as the allocator rounded them.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The frames, innermost first, at most eight; empty if the source does not record them.
    pub stack: Vec<String>,
}

/// Returns the stacks that hold the most bytes of these blocks.
pub(super) fn by_stack<'a>(
    recording: &Recording,
    blocks: impl IntoIterator<Item = &'a LiveBlock>,
    count: usize,
) -> Vec<Holder> {
    let mut sums: HashMap<Option<Id>, (u64, u64)> = HashMap::new();
    for block in blocks {
        let (bytes, blocks) = sums.entry(block.stack).or_default();
        *bytes = bytes.saturating_add(block.rounded_bytes);
        *blocks += 1;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|&(stack, (bytes, _))| (std::cmp::Reverse(bytes), stack));
    let holders = sums.into_iter().take(count);
    holders
        .map(|(stack, (bytes, blocks))| Holder { bytes, blocks, stack: frames(recording, stack) })
        .collect()
}

/// Returns the frames of a stack in readable form.
fn frames(recording: &Recording, stack: Option<Id>) -> Vec<String> {
    let frames = stack.into_iter().flat_map(|stack| recording.stack(stack));
    frames.take(FRAMES).map(|frame| format!("{} ({}:{})", frame.function, frame.file, frame.line)).collect()
}
