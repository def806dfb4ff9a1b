//! A program: the operations of a log.

use std::sync::Arc;

use super::store::OpStore;
use super::{Lane, LogSummary, Op, OpKind};
use crate::{Error, Result};

/// A log in a form that can be replayed any number of times.
///
/// ```
/// use millpond_engine::{log::LogReader, program::{Limits, Program}};
/// let text = "Thread,Time,Action,Pointer,Size,Stream\n\
///             7,05:01:18.946606,allocate,0x7f00,1000,0\n\
///             7,05:01:18.946609,free,0x7f00,1000,0\n";
/// let reader = LogReader::from_reader("example", text.as_bytes()).unwrap();
/// let program = Program::read(reader, Limits::default()).unwrap();
/// assert_eq!(program.summary().operations, 2);
/// assert_eq!(program.summary().peak_live_bytes, 1000);
/// ```
#[derive(Debug)]
pub struct Program {
    /// The allocations of blocks that are older than the log. They form blocks of operations that run before
    /// the others.
    pub(super) early: Vec<Arc<[Op]>>,
    pub(super) ops: OpStore,
    pub(super) lanes: Vec<Lane>,
    pub(super) slots: u32,
    pub(super) leaks: Vec<Op>,
    pub(super) summary: LogSummary,
    /// For each failed request, by number, whether it is a retry.
    pub(super) retries: Vec<bool>,
}

impl Program {
    /// Returns whether a request that failed when the log was written was a retry: an earlier failure has the
    /// same size, thread and stream, and a later request of this kind was served. Always `false` for
    /// operations other than [`OpKind::AskAgain`].
    pub fn is_retry(&self, op: &Op) -> bool {
        op.kind == OpKind::AskAgain && self.retries.get(op.slot as usize).copied().unwrap_or(false)
    }

    /// Returns the summary of the log.
    pub fn summary(&self) -> &LogSummary {
        &self.summary
    }

    /// Returns the same program with another [summary](Self::summary): the summary also names the imported
    /// file, its format, and the data that the file lacks.
    pub fn imported(mut self, file: &str, format: &str, not_known: Vec<String>) -> Self {
        file.clone_into(&mut self.summary.file);
        self.summary.imported_from = Some(format.to_owned());
        self.summary.not_known = not_known;
        self
    }

    /// Returns the same program with another [summary](Self::summary): the summary also has the stack that
    /// models the allocator of the recorded program, if there is a model.
    pub fn recorded_with(mut self, stack: Option<String>) -> Self {
        self.summary.recorded_with = stack;
        self
    }

    /// Returns the same program with another [summary](Self::summary): the summary also has the number of
    /// private memory pools of the recorded program.
    pub fn private_pools(mut self, pools: usize) -> Self {
        self.summary.private_pools = pools;
        self
    }

    /// Returns the same program with another [summary](Self::summary): the summary also has the bytes that
    /// the allocator of the recorded program could have on its device.
    pub fn available_bytes(mut self, bytes: Option<u64>) -> Self {
        self.summary.available_bytes = bytes;
        self
    }

    /// Returns the different pairs of thread and stream. [`Op::lane`] is an index into these pairs.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Returns the number of slots that the operations use for blocks.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the frees of the blocks that the log leaked.
    pub fn leaks(&self) -> &[Op] {
        &self.leaks
    }

    /// Returns the number of blocks of operations.
    pub fn block_count(&self) -> usize {
        self.early.len() + self.ops.block_count()
    }

    /// Returns one block of operations.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    ///
    /// # Panics
    /// `index` is not below [`block_count`](Self::block_count).
    pub fn block(&self, index: usize) -> Result<Arc<[Op]>> {
        let Some(index) = index.checked_sub(self.early.len()) else { return Ok(self.early[index].clone()) };
        self.ops.block(index).map_err(Error::io("cannot read the replay's temporary file"))
    }

    /// Returns whether the operations are in a temporary file instead of memory.
    pub fn is_spooled(&self) -> bool {
        self.ops.is_spooled()
    }
}
