//! Tells whose code a frame is, and which line of a stack is the user's.
//!
//! PyTorch's stacks begin with its recorder, its allocator and its dispatcher, and end with the interpreter.
//! [`classify`] sorts frames into [`Kind`]s by a table of rules. [`UserStack`] has the frames that a person
//! looks for: the innermost line of the user's own code leads.

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
