//! The stacks that hold memory.

use std::collections::HashMap;

use serde::Serialize;

use crate::recording::{Id, LiveBlock, Recording};

/// The stacks that are named together.
pub(super) const HOLDERS: usize = 5;

/// The most frames of a stack that are shown.
const FRAMES: usize = 8;

/// The blocks of one stack at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    /// Their bytes, as the allocator rounded them.
    pub bytes: u64,
    /// Their number.
    pub blocks: u64,
    /// The frames, innermost first, eight at most; empty if the source does not say.
    pub stack: Vec<String>,
}

/// The stacks that hold the most of some blocks.
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

/// The frames of a stack as people read them.
fn frames(recording: &Recording, stack: Option<Id>) -> Vec<String> {
    let frames = stack.into_iter().flat_map(|stack| recording.stack(stack));
    frames.take(FRAMES).map(|frame| format!("{} ({}:{})", frame.function, frame.file, frame.line)).collect()
}
