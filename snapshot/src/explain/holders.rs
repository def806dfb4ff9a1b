//! The call stacks that hold memory.

use std::collections::HashMap;

use serde::Serialize;

use crate::frames::{Folded, Key, Kind, UserStack};
use crate::recording::{Id, LiveBlock, Recording};

/// The most call stacks that are named together.
pub(super) const HOLDERS: usize = 5;

/// The most frames that the field `stack` has.
const FRAMES: usize = 8;

/// The blocks of one call stack at one moment. If call stacks differ only in the frames of PyTorch, of
/// libraries or of the interpreter, they count as one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// The size of the blocks in bytes, as the allocator rounded it.
    pub bytes: u64,
    /// The size of the blocks in bytes, as the program requested it. If the source does not record the
    /// requested sizes, it is the same number.
    pub requested_bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The code line that a person should read first. It is the innermost line of the user's code, as in
    /// `train.py:20 in attention`. If the user's code has no line, it is another line or an operator. If
    /// there is no call stack, it is the reason why.
    pub lead: String,
    /// The function of a framework or a library that the lead calls, as in `torch.cat`, if the call stack
    /// tells it.
    pub called: Option<String>,
    /// The modules whose `forward` functions lead to the blocks, the outermost first, as in `GPT.forward >
    /// Block.forward`. If the frames do not show the classes, the modules are named by their code lines. If
    /// there is no module, this is the file of the optimizer.
    pub module_path: Option<String>,
    /// Whether the backward pass allocated the blocks.
    pub in_backward: bool,
    /// The number of different call stacks. The fields below describe the call stack with the most bytes.
    pub stacks: u64,
    /// At most eight frames, the innermost first; empty if the source does not record them.
    pub stack: Vec<String>,
    /// All frames, the innermost first.
    pub frames: Vec<HolderFrame>,
    /// The code lines of the user, the innermost first. The lead is one of them.
    #[serde(skip)]
    pub(super) shown: Vec<String>,
    /// How many frames are not in `shown`.
    #[serde(skip)]
    pub(super) folded: Folded,
}

/// A frame in the call stack of a holder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct HolderFrame {
    /// The name of the function.
    pub function: String,
    /// The path of the file.
    pub file: String,
    /// The number of the line, counted from 1; 0 if the line is not known.
    pub line: u64,
    /// Whose code the frame runs.
    pub kind: Kind,
}

/// The part that all call stacks of a holder have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Common<'a> {
    Key(Key<'a>),
    /// There is no call stack, for this reason.
    Without(&'static str),
}

/// The blocks whose call stacks have a part in common.
#[derive(Default)]
struct Sum {
    bytes: u64,
    requested_bytes: u64,
    blocks: u64,
    /// The call stacks, and the bytes of each one.
    stacks: Vec<(Option<Id>, u64)>,
}

impl Sum {
    /// Adds blocks. The sizes are rounded and requested bytes.
    fn add(&mut self, bytes: u64, requested_bytes: u64, blocks: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.requested_bytes = self.requested_bytes.saturating_add(requested_bytes);
        self.blocks += blocks;
    }
}

/// Returns the call stacks that hold the most bytes of these blocks.
pub(super) fn by_stack<'a>(
    recording: &Recording,
    blocks: impl IntoIterator<Item = &'a LiveBlock>,
    count: usize,
) -> Vec<Holder> {
    let mut stacks: HashMap<(Option<Id>, &'static str), Sum> = HashMap::new();
    for block in blocks {
        let without = if block.stack.is_none() { recording.without_stack(block.event) } else { "" };
        stacks.entry((block.stack, without)).or_default().add(block.rounded_bytes, block.bytes, 1);
    }
    let mut sums: HashMap<Common<'_>, Sum> = HashMap::new();
    for ((stack, without), Sum { bytes, requested_bytes, blocks, .. }) in stacks {
        let common = match stack {
            Some(stack) => Common::Key(recording.user_stack(stack).key()),
            None => Common::Without(without),
        };
        let sum = sums.entry(common).or_default();
        sum.add(bytes, requested_bytes, blocks);
        sum.stacks.push((stack, bytes));
    }
    let mut sums: Vec<(Common<'_>, Sum)> = sums.into_iter().collect();
    sums.sort_unstable_by(|(a, x), (b, y)| y.bytes.cmp(&x.bytes).then_with(|| a.cmp(b)));
    sums.truncate(count);
    sums.into_iter().map(|(common, sum)| holder(recording, &common, sum)).collect()
}

/// Describes blocks whose call stacks have a part in common.
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
        requested_bytes: sum.requested_bytes,
        blocks: sum.blocks,
        lead,
        called: stack.called(),
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
