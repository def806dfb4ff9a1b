//! What prints comparisons.

use std::io;

use crate::compare::Comparison;

/// Prints one comparison after the other.
pub trait Reporter {
    /// Prints one.
    ///
    /// # Errors
    /// What writing reports.
    fn report(&mut self, comparison: &Comparison) -> io::Result<()>;
}
