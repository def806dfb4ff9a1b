//! Selects the frames of a call stack that the user looks for.

use super::called::called;
use super::name::{has_file, is_native, node, operator, qualified};
use super::path::short;
use super::{Frame, Kind};

/// The name for blocks whose call stack is not known.
const NO_STACK: &str = "(no stack)";

/// The most parts of a module path that are named.
const MAX_MODULES: usize = 6;

/// The entry of a call stack that a person should read first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Lead {
    /// The frame with this index.
    Frame(usize),
    /// An operator of PyTorch, as in `aten::mm in MmBackward0`. It is used if no frame has a code line.
    Operator(String),
    /// The call stack has no frames.
    None,
}

/// An entry of a call stack in a flame graph.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Part {
    /// The frame with this index.
    Frame(usize),
    /// Frames that are folded into one name.
    Folded(String),
}

/// How many frames of a call stack are not shown, by the owner of their code.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Folded {
    /// Frames of PyTorch, including frames of its allocator.
    pub pytorch: usize,
    /// Frames of other allocators.
    pub allocator: usize,
    /// Frames of libraries.
    pub libraries: usize,
    /// Frames of the interpreter, and of code that starts programs and threads.
    pub interpreter: usize,
}

/// A call stack, and which of its frames a person looks for.
///
/// ```
/// use millpond_snapshot::frames::{Frame, UserStack};
/// let frame = |function, file, line| Frame { function, file, line };
/// let stack = UserStack::new([
///     frame("torch::unwind::unwind()", "??", 0),
///     frame("at::_ops::empty_memory_format::call(long)", "??", 0),
///     frame("attention", "/data/me/train.py", 20),
///     frame("main", "/data/me/train.py", 99),
/// ]);
/// assert_eq!(stack.lead("/data/me/"), "train.py:20 in attention");
/// assert_eq!((stack.shown().len(), stack.folded().pytorch), (2, 2));
/// ```
#[derive(Clone, Debug)]
pub struct UserStack<'a> {
    frames: Vec<(Frame<'a>, Kind)>,
    /// The indices of the frames to show, the innermost first.
    shown: Vec<usize>,
    lead: Lead,
    in_backward: bool,
}

/// If two call stacks have the same key, they differ in folded frames only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key<'a> {
    frames: Vec<Frame<'a>>,
    operator: Option<String>,
    /// The file of the optimizer.
    optimizer: Option<&'a str>,
    in_backward: bool,
}

impl<'a> UserStack<'a> {
    /// Classifies the frames of a call stack, given with the innermost first.
    pub fn new(frames: impl IntoIterator<Item = Frame<'a>>) -> Self {
        Self::of(frames.into_iter().map(|frame| (frame, super::classify(frame))).collect())
    }

    /// Returns the call stack of frames whose kinds are known, given with the innermost first.
    pub(crate) fn of(frames: Vec<(Frame<'a>, Kind)>) -> Self {
        let in_backward = is_in_backward(&frames);
        let (shown, lead) = shown(&frames);
        Self { frames, shown, lead, in_backward }
    }

    /// Returns all frames and their kinds, the innermost first.
    pub fn frames(&self) -> &[(Frame<'a>, Kind)] {
        &self.frames
    }

    /// Returns the indices of the frames to show, the innermost first. These are the user's frames. If there
    /// are none, they are frames of libraries, or else frames of PyTorch's Python code. The first frame is
    /// the [lead](Self::first), unless the lead is an operator.
    pub fn shown(&self) -> &[usize] {
        &self.shown
    }

    /// Returns the entry of the call stack that a person should read first.
    pub fn first(&self) -> &Lead {
        &self.lead
    }

    /// Returns whether the backward pass called the code.
    pub fn is_in_backward(&self) -> bool {
        self.in_backward
    }

    /// Returns the entry that a person should read first as text, as in `train.py:20 in attention`. The paths
    /// of the user's files are relative to `folder`.
    pub fn lead(&self, folder: &str) -> String {
        match &self.lead {
            Lead::Frame(at) => self.text(*at, folder),
            Lead::Operator(name) => name.clone(),
            Lead::None => NO_STACK.to_owned(),
        }
    }

    /// Returns the function of a framework or a library that the first frame calls, as in `torch.cat`,
    /// `aten::mm` or `torch.optim.adam.step`. Returns `None` if the call stack does not tell the function.
    pub fn called(&self) -> Option<String> {
        let Lead::Frame(at) = self.lead else { return None };
        called(self.frames[..at].iter().rev())
    }

    /// Returns the entry that a person should read first, with the function that it [calls](Self::called), as
    /// in `train.py:31 in step (torch.cat)`.
    pub fn lead_and_called(&self, folder: &str) -> String {
        let called = self.called().map_or(String::new(), |name| format!(" ({name})"));
        format!("{}{called}", self.lead(folder))
    }

    /// Returns a frame as text. The paths of the user's files are relative to `folder`.
    pub fn text(&self, at: usize, folder: &str) -> String {
        let Some(&(frame, _)) = self.frames.get(at) else { return String::new() };
        let name = if is_native(frame) { qualified(frame.function) } else { frame.function.to_owned() };
        let name = if name.is_empty() { frame.function.to_owned() } else { name };
        match (has_file(frame), frame.line) {
            (false, _) => name,
            (true, 0) => format!("{} in {name}", short(frame.file, folder)),
            (true, line) => format!("{}:{line} in {name}", short(frame.file, folder)),
        }
    }

    /// Returns the modules whose `forward` functions lead to the block, the outermost first, as in
    /// `GPT.forward > Block.forward`. If the frames do not show the classes, the modules are named by their
    /// code lines, as in `forward: model.py:40 > :22`. If there are no modules, the result is the optimizer's
    /// file, as in `torch/optim/adamw.py`. If the result would say no more than the lead, it is `None`.
    pub fn module_path(&self) -> Option<String> {
        let modules = self.modules();
        let is_lead = |frame| matches!(self.lead, Lead::Frame(at) if self.frames[at].0 == frame);
        if modules.is_empty() {
            return self
                .optimizer()
                .filter(|frame| {
                    !is_lead(*frame) && !self.called().is_some_and(|name| name.starts_with("torch.optim."))
                })
                .map(|frame| short(frame.file, "").into());
        }
        if modules.len() == 1 && is_lead(modules[0]) {
            return None;
        }
        let has_classes = modules.iter().all(|frame| class(frame.function).is_some());
        let left_out = modules.len().saturating_sub(MAX_MODULES);
        let mut names: Vec<String> = Vec::new();
        let mut last = "";
        for frame in &modules[left_out..] {
            let file = frame.file.rsplit(['/', '\\']).next().unwrap_or("");
            names.push(match class(frame.function) {
                Some(class) => class.to_owned(),
                None if file == last => format!(":{}", frame.line),
                None => format!("{file}:{}", frame.line),
            });
            last = file;
        }
        if left_out > 0 {
            names.insert(0, "…".to_owned());
        }
        let head = if has_classes { "" } else { "forward: " };
        Some(format!("{head}{}", names.join(" > ")))
    }

    /// Returns the innermost frame that belongs to an optimizer of PyTorch.
    fn optimizer(&self) -> Option<Frame<'a>> {
        let is_optimizer = |frame: &Frame<'_>, kind| {
            kind == Kind::Torch && short(frame.file, "").starts_with("torch/optim/")
        };
        self.frames.iter().find(|(frame, kind)| is_optimizer(frame, *kind)).map(|(frame, _)| *frame)
    }

    /// Returns the `forward` frames of the user and of libraries, the outermost first.
    fn modules(&self) -> Vec<Frame<'a>> {
        let is_module = |frame: &Frame<'_>, kind: Kind| {
            let name = frame.function.rsplit('.').next();
            matches!(kind, Kind::User | Kind::Library) && !is_native(*frame) && name == Some("forward")
        };
        let frames = self.frames.iter().rev();
        frames.filter(|(frame, kind)| is_module(frame, *kind)).map(|(frame, _)| *frame).collect()
    }

    /// Returns how many frames are folded: frames that are not shown, and are not the user's.
    pub fn folded(&self) -> Folded {
        let mut folded = Folded::default();
        let has_pytorch = self.has_pytorch();
        for (at, (_, kind)) in self.frames.iter().enumerate() {
            if self.shown.contains(&at) {
                continue;
            }
            match kind {
                Kind::Allocator if !has_pytorch => folded.allocator += 1,
                Kind::Torch | Kind::Dispatch | Kind::Autograd | Kind::Allocator | Kind::Recorder => {
                    folded.pytorch += 1;
                }
                Kind::Library | Kind::User => folded.libraries += 1,
                Kind::Interpreter => folded.interpreter += 1,
            }
        }
        folded
    }

    /// Returns the call stack for a flame graph, the outermost entry first: the frames to show, and the
    /// modules. If further frames lie inside the innermost of these entries, they become one entry for each
    /// owner of code.
    pub fn parts(&self) -> Vec<Part> {
        let modules = self.modules();
        let is_kept = |at: usize| self.shown.contains(&at) || modules.contains(&self.frames[at].0);
        let mut parts: Vec<Part> =
            (0..self.frames.len()).rev().filter(|&at| is_kept(at)).map(Part::Frame).collect();
        if parts.is_empty() {
            if self.in_backward {
                parts.push(Part::Folded("(backward pass)".to_owned()));
            }
            parts.push(match &self.lead {
                Lead::Frame(at) => Part::Frame(*at),
                _ => Part::Folded(self.lead("")),
            });
            return parts;
        }
        let inside = self.frames.iter().enumerate().take_while(|(at, _)| !is_kept(*at));
        let has_pytorch = self.has_pytorch();
        let mut owners: Vec<&str> = Vec::new();
        for (_, (_, kind)) in inside {
            let owner = match kind {
                Kind::Interpreter => continue,
                Kind::Library | Kind::User => "(libraries)",
                Kind::Allocator if !has_pytorch => "(the allocator)",
                _ => "(PyTorch)",
            };
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        parts.extend(owners.into_iter().rev().map(|owner| Part::Folded(owner.to_owned())));
        parts
    }

    fn has_pytorch(&self) -> bool {
        self.frames.iter().any(|(_, kind)| kind.is_of_pytorch())
    }

    /// Returns the key by which call stacks are grouped.
    pub(crate) fn key(&self) -> Key<'a> {
        let mut frames: Vec<Frame<'a>> = self.shown.iter().map(|&at| self.frames[at].0).collect();
        frames.extend(self.modules());
        let operator = match &self.lead {
            Lead::Operator(name) => Some(name.clone()),
            Lead::Frame(at) if self.shown.is_empty() => Some(self.text(*at, "")),
            _ => None,
        };
        let optimizer = self.optimizer().map(|frame| frame.file);
        Key { frames, operator, optimizer, in_backward: self.in_backward }
    }
}

impl Folded {
    /// Returns the counts as text, as in `9 frames of PyTorch, 2 of libraries`; `None` if no frame is folded.
    pub fn text(&self) -> Option<String> {
        let owners = [
            (self.pytorch, "PyTorch"),
            (self.allocator, "the allocator"),
            (self.libraries, "libraries"),
            (self.interpreter, "the interpreter"),
        ];
        let mut text = String::new();
        for (count, owner) in owners.into_iter().filter(|(count, _)| *count > 0) {
            let noun = if count == 1 { "frame" } else { "frames" };
            let part = format!("{count} {noun} of {owner}");
            text = if text.is_empty() { part } else { format!("{text}, {count} of {owner}") };
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Returns the class and the method in a name such as `GPT.__init__.<locals>.Block.forward`.
fn class(function: &str) -> Option<&str> {
    let name = function.rsplit("<locals>.").next().unwrap_or(function);
    name.contains('.').then_some(name)
}

/// Returns the indices of the frames to show, and the lead.
fn shown(frames: &[(Frame<'_>, Kind)]) -> (Vec<usize>, Lead) {
    let of = |wanted: Kind, native: bool| -> Vec<usize> {
        let all = frames.iter().enumerate();
        let is_wanted = |(frame, kind): &(Frame<'_>, Kind)| *kind == wanted && is_native(*frame) == native;
        all.filter(|(_, frame)| is_wanted(frame)).map(|(at, _)| at).collect()
    };
    // Native code may belong to a library that has the names of its source files, so the user's Python code
    // comes first.
    let candidates = [(Kind::User, false), (Kind::User, true), (Kind::Library, false), (Kind::Torch, false)];
    for (kind, native) in candidates {
        let found = of(kind, native);
        if let Some(&first) = found.first() {
            return (found, Lead::Frame(first));
        }
    }
    let names: Vec<String> = frames.iter().map(|(frame, _)| qualified(frame.function)).collect();
    let node = names.iter().find_map(|name| node(name));
    // The outermost operator is the one that was called. The operators inside it do its work.
    let called = names.iter().rev().find_map(|name| operator(name));
    match (called, node) {
        (Some(called), Some(node)) => return (Vec::new(), Lead::Operator(format!("{called} in {node}"))),
        (Some(called), None) => return (Vec::new(), Lead::Operator(called)),
        (None, Some(node)) => return (Vec::new(), Lead::Operator(node.to_owned())),
        (None, None) => {}
    }
    let order =
        [Kind::Library, Kind::Autograd, Kind::Dispatch, Kind::Interpreter, Kind::Allocator, Kind::Recorder];
    let first = order.iter().find_map(|wanted| frames.iter().position(|(_, kind)| kind == wanted));
    (Vec::new(), first.map_or(Lead::None, Lead::Frame))
}

/// Returns whether the backward pass called the code of a stack.
fn is_in_backward(frames: &[(Frame<'_>, Kind)]) -> bool {
    // The engine's threads have no Python frames below a backward function that is written in Python.
    let is_function = |(frame, _): &(Frame<'_>, Kind)| {
        matches!(short(frame.file, ""), file if file == "torch/autograd/function.py")
            && frame.function.rsplit('.').next() == Some("apply")
    };
    frames.last().is_some_and(is_function) || frames.iter().any(|(_, kind)| *kind == Kind::Autograd)
}
