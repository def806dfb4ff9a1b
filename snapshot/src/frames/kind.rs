//! The kinds of stack frames, by whose code they run.

use serde::Serialize;

/// Whose code a stack frame runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// The user's own code.
    User,
    /// Code of a library that is not part of PyTorch: Lightning, transformers, cuBLAS.
    Library,
    /// Python code of PyTorch that does work of its own, such as an optimizer or a layer.
    Torch,
    /// Code between a call and its kernel: PyTorch's operators, wrappers and compiler.
    Dispatch,
    /// Code of the backward pass.
    Autograd,
    /// Code of an allocator.
    Allocator,
    /// The code that recorded the call stack.
    Recorder,
    /// Code of the interpreter and its standard library, and code that starts programs and threads.
    Interpreter,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::User,
        Self::Library,
        Self::Torch,
        Self::Dispatch,
        Self::Autograd,
        Self::Allocator,
        Self::Recorder,
        Self::Interpreter,
    ];

    /// Returns the name of the kind, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Library => "library",
            Self::Torch => "torch",
            Self::Dispatch => "dispatch",
            Self::Autograd => "autograd",
            Self::Allocator => "allocator",
            Self::Recorder => "recorder",
            Self::Interpreter => "interpreter",
        }
    }

    /// Returns whether only PyTorch has frames of this kind.
    pub(super) fn is_of_pytorch(self) -> bool {
        matches!(self, Self::Torch | Self::Dispatch | Self::Autograd | Self::Recorder)
    }
}
