//! The stacks that hold memory.

use std::collections::HashMap;

use serde::Serialize;

use crate::frames::{Folded, Key, Kind, UserStack};
use crate::recording::{Id, LiveBlock, Recording};

/// How many stacks are named together.
pub(super) const HOLDERS: usize = 5;

/// How many frames of a stack are in `stack` at most.
const FRAMES: usize = 8;

/// The blocks of one call stack at one moment. Call stacks that differ only in the frames of PyTorch, of
/// libraries and of the interpreter count as one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// The bytes, as the allocator rounded them.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The line that a person should read first. It is the innermost line of the user's code, as in
    /// `train.py:20 in attention`, or else another line or an operator. If there is no call stack, it is the
    /// reason.
    pub lead: String,
    /// The modules whose `forward` functions lead to the blocks, outermost first, as in `GPT.forward >
    /// Block.forward`. If the frames do not show the classes, modules are named by their lines. If there is
    /// no module, the file of the optimizer.
    pub module_path: Option<String>,
    /// Whether the backward pass allocated the blocks.
    pub in_backward: bool,
    /// The number of different call stacks. The fields below describe the call stack with the most bytes.
    pub stacks: u64,
    /// The frames, innermost first, at most eight; empty if the source does not record them.
    pub stack: Vec<String>,
    /// All frames, innermost first.
    pub frames: Vec<HolderFrame>,
    /// The lines of the user, innermost first, the lead included.
    #[serde(skip)]
    pub(super) shown: Vec<String>,
    /// How many frames are not in `shown`.
    #[serde(skip)]
    pub(super) folded: Folded,
}

/// A frame of a holder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct HolderFrame {
    /// The function.
    pub function: String,
    /// The file.
    pub file: String,
    /// The line, counted from 1; 0 if it is not known.
    pub line: u64,
    /// Whose code it is.
    pub kind: Kind,
}

/// The parts that the stacks of a holder have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Common<'a> {
    Key(Key<'a>),
    /// No stack, for this reason.
    Without(&'static str),
}

/// The blocks of the stacks with something in common.
#[derive(Default)]
struct Sum {
    bytes: u64,
    blocks: u64,
    /// The stacks, and the bytes of each.
    stacks: Vec<(Option<Id>, u64)>,
}

/// Returns the stacks that hold the most bytes of these blocks.
pub(super) fn by_stack<'a>(
    recording: &Recording,
    blocks: impl IntoIterator<Item = &'a LiveBlock>,
    count: usize,
) -> Vec<Holder> {
    let mut stacks: HashMap<(Option<Id>, &'static str), (u64, u64)> = HashMap::new();
    for block in blocks {
        let without = if block.stack.is_none() { recording.without_stack(block.event) } else { "" };
        let (bytes, blocks) = stacks.entry((block.stack, without)).or_default();
        *bytes = bytes.saturating_add(block.rounded_bytes);
        *blocks += 1;
    }
    let mut sums: HashMap<Common<'_>, Sum> = HashMap::new();
    for ((stack, without), (bytes, blocks)) in stacks {
        let common = match stack {
            Some(stack) => Common::Key(recording.user_stack(stack).key()),
            None => Common::Without(without),
        };
        let sum = sums.entry(common).or_default();
        sum.bytes = sum.bytes.saturating_add(bytes);
        sum.blocks += blocks;
        sum.stacks.push((stack, bytes));
    }
    let mut sums: Vec<(Common<'_>, Sum)> = sums.into_iter().collect();
    sums.sort_unstable_by(|(a, x), (b, y)| y.bytes.cmp(&x.bytes).then_with(|| a.cmp(b)));
    sums.truncate(count);
    sums.into_iter().map(|(common, sum)| holder(recording, &common, sum)).collect()
}

/// Describes the blocks of stacks with something in common.
fn holder(recording: &Recording, common: &Common<'_>, mut sum: Sum) -> Holder {
    sum.stacks.sort_unstable_by_key(|&(stack, bytes)| (std::cmp::Reverse(bytes), stack));
    let largest = sum.stacks.first().and_then(|&(stack, _)| stack);
    let stack = largest.map_or_else(|| UserStack::new([]), |stack| recording.user_stack(stack));
    let folder = recording.user_folder();
    let lead = match common {
        Common::Key(_) => stack.lead(folder),
        Common::Without(reason) => (*reason).to_owned(),
    };
    let frames = || stack.frames().iter();
    Holder {
        bytes: sum.bytes,
        blocks: sum.blocks,
        lead,
        module_path: stack.module_path(),
        in_backward: stack.is_in_backward(),
        stacks: sum.stacks.len() as u64,
        stack: frames()
            .take(FRAMES)
            .map(|(frame, _)| format!("{} ({}:{})", frame.function, frame.file, frame.line))
            .collect(),
        frames: frames()
            .map(|&(frame, kind)| HolderFrame {
                function: frame.function.to_owned(),
                file: frame.file.to_owned(),
                line: frame.line,
                kind,
            })
            .collect(),
        shown: stack.shown().iter().map(|&at| stack.text(at, folder)).collect(),
        folded: stack.folded(),
    }
}
