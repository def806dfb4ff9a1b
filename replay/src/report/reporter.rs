//! The interface of the reports.

use std::io;

use crate::compare::Comparison;

/// Prints one comparison after another.
pub trait Reporter {
    /// Prints one comparison.
    ///
    /// # Errors
    /// The report cannot be written.
    fn report(&mut self, comparison: &Comparison) -> io::Result<()>;
}
