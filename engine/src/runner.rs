//! The interface that the three orders of a replay share.

use std::sync::Arc;

use crate::Result;
use crate::program::Op;

/// Runs blocks of operations in one of the three orders.
pub(super) trait Runner {
    /// Runs one block of operations, and returns the measured nanoseconds.
    fn run(&mut self, block: &Arc<[Op]>) -> Result<u64>;
}
