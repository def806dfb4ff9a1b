//! The call stacks of a recording, as the user wants to see them.

use super::content::Source;
use super::{Id, Recording};
use crate::frames::{Kind, UserStack};

impl Recording {
    /// Returns a call stack with the kinds of its frames.
    pub fn user_stack(&self, stack: Id) -> UserStack<'_> {
        let kinds = self.kinds();
        let frames = self.raw_stack(stack).iter();
        let frames = frames.filter_map(|&id| Some((self.frame(id)?, kinds.of(id)?)));
        UserStack::of(frames.collect())
    }

    /// Returns the folder that contains all Python files of the user, with `/` at its end. Returns an empty
    /// text if there is none.
    pub fn user_folder(&self) -> &str {
        &self.kinds().folder
    }

    /// Returns the reason why the allocation of the event with this number has no call stack, as text.
    pub fn without_stack(&self, event: usize) -> &'static str {
        if self.event(event).is_some_and(|event| event.is_before) {
            return "(from before the recording)";
        }
        // A thread without Python frames has no call stack, unless C++ frames were also recorded.
        let is_python_only = self.stack_counts().0 > 0 && !self.kinds().has(Kind::Recorder);
        if self.source().format == Source::PYTORCH && is_python_only {
            return "(no Python code, as in the backward pass)";
        }
        "(no stack)"
    }
}
