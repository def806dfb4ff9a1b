//! The interface of the printers of comparisons.

use std::io;

use crate::compare::Comparison;

/// Prints one comparison after the other.
pub trait Reporter {
    /// Prints one.
    ///
    /// # Errors
    /// Those of writing.
    fn report(&mut self, comparison: &Comparison) -> io::Result<()>;
}
