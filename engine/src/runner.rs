//! The interface of the three orders of a replay.

use std::sync::Arc;

use crate::Result;
use crate::program::Op;

/// Runs blocks of operations in one of the orders.
pub(super) trait Runner {
    /// Runs one block and returns the measured nanoseconds.
    fn run(&mut self, block: &Arc<[Op]>) -> Result<u64>;
}
