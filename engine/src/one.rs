//! Replays a program on one thread.

use std::sync::Arc;

use super::clock::Stopwatch;
use super::runner::Runner;
use super::work::Work;
use crate::Result;
use crate::program::Op;

/// Runs all operations on the calling thread.
struct One<'a, 'b>(&'a Work<'b>);

impl Runner for One<'_, '_> {
    fn run(&mut self, block: &Arc<[Op]>) -> Result<u64> {
        let watch = Stopwatch::start();
        block.iter().for_each(|op| self.0.execute(op));
        Ok(watch.nanoseconds())
    }
}

pub(super) fn with_runner<T>(work: &Work<'_>, body: impl FnOnce(&mut dyn Runner) -> Result<T>) -> Result<T> {
    body(&mut One(work))
}
