//! The last steps of building a stack. They run only if no layer fails.

use std::fmt;

use crate::Result;

/// Collects work that runs after all layers of a stack have been built, such as opening files.
#[derive(Default)]
pub struct Building {
    at_end: Vec<Box<dyn AtEnd>>,
}

/// Work that a layer does at the end of building its stack. The work runs only if all layers of the stack
/// could be built.
pub trait AtEnd {
    /// Does the work that can fail and can be undone. For example, opens a file. Dropping `self` undoes this
    /// work.
    ///
    /// # Errors
    /// The reason why the layer cannot be used. Then the stack is not built.
    fn prepare(&mut self) -> Result<()>;

    /// Does the work that cannot be undone. For example, empties a file. This method is called after
    /// [`prepare`](Self::prepare) has succeeded for all layers.
    ///
    /// # Errors
    /// The reason why the layer cannot be used. Then the stack is not built.
    fn finish(self: Box<Self>) -> Result<()>;
}

impl fmt::Debug for Building {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Building").field("at_end", &self.at_end.len()).finish()
    }
}

impl Building {
    /// Adds work of a layer, which runs after all layers have been built.
    pub fn at_end(&mut self, step: impl AtEnd + 'static) {
        self.at_end.push(Box::new(step));
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.at_end.iter_mut().try_for_each(|step| step.prepare())?;
        self.at_end.into_iter().try_for_each(|step| step.finish())
    }
}
