//! The last steps of building a stack. They run only if no layer fails.

use std::fmt;

use crate::{AnyResource, Result};

/// Collects work that runs after all layers of a stack have been built, such as opening files.
#[derive(Default)]
pub struct Building {
    at_end: Vec<Box<dyn AtEnd>>,
    when_built: Vec<Box<Tell>>,
}

/// Gets a stack that was built.
type Tell = dyn FnOnce(&AnyResource);

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
        f.debug_struct("Building").field("at_end", &self.at_end.len()).finish_non_exhaustive()
    }
}

impl Building {
    /// Adds work of a layer, which runs after all layers have been built.
    pub fn at_end(&mut self, step: impl AtEnd + 'static) {
        self.at_end.push(Box::new(step));
    }

    /// Adds a function that gets the whole stack after it was built. To keep the stack, keep a
    /// [`Weak`](std::sync::Weak) handle: a layer that owned its own stack would never be dropped.
    pub fn when_built(&mut self, tell: impl FnOnce(&AnyResource) + 'static) {
        self.when_built.push(Box::new(tell));
    }

    pub(super) fn finish(mut self, built: &AnyResource) -> Result<()> {
        self.at_end.iter_mut().try_for_each(|step| step.prepare())?;
        self.at_end.into_iter().try_for_each(|step| step.finish())?;
        self.when_built.into_iter().for_each(|tell| tell(built));
        Ok(())
    }
}
