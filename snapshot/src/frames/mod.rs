//! Finds out whose code each frame of a call stack runs, and which code line is the user's.
//!
//! The call stacks in PyTorch's snapshots begin with the frames of PyTorch's recorder, allocator and
//! dispatcher, and end with the interpreter. [`classify`] finds the [`Kind`] of a frame with a table of
//! rules. [`UserStack`] selects the frames that a person looks for. The first of these frames is the
//! innermost line of the user's own code.

mod called;
mod frame;
mod glob;
mod kind;
mod name;
mod path;
mod rules;
mod stack;

pub use frame::Frame;
pub use kind::Kind;
pub use rules::classify;
pub use stack::{Folded, Lead, Part, UserStack};

pub(crate) use name::is_native;
pub(crate) use path::common_folder;
pub(crate) use stack::Key;
