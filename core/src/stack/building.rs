//! The last steps of building a stack. They run only if no layer fails.

use std::fmt;

use crate::Result;

/// The steps that run once all layers of a stack exist.
#[derive(Default)]
pub struct Building {
    at_end: Vec<Box<dyn AtEnd>>,
}

/// The last step of building a layer. It runs only if no other layer fails.
pub trait AtEnd {
    /// Does the work that can fail and can be undone, for example opens a file. Drop undoes it.
    ///
    /// # Errors
    /// The reason why the layer cannot be used. The stack is not built then.
    fn prepare(&mut self) -> Result<()>;

    /// Does the work that cannot be undone, for example empties a file. [`prepare`](Self::prepare) of all
    /// layers has succeeded before.
    ///
    /// # Errors
    /// The reason why the layer cannot be used. The stack is not built then.
    fn finish(self: Box<Self>) -> Result<()>;
}

impl fmt::Debug for Building {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Building").field("at_end", &self.at_end.len()).finish()
    }
}

impl Building {
    /// Adds a last step, which runs when the whole stack is built.
    pub fn at_end(&mut self, step: impl AtEnd + 'static) {
        self.at_end.push(Box::new(step));
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.at_end.iter_mut().try_for_each(|step| step.prepare())?;
        self.at_end.into_iter().try_for_each(|step| step.finish())
    }
}
