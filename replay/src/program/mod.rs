//! Turns a log into a program of operations that replays fast.
//!
//! Reading a row costs more than an allocation from a good pool, so a log is read once and kept as
//! [`Op`]s of 24 bytes, addresses replaced by small slot numbers. That is done in one streaming pass that
//! holds the blocks live at one time, not the rows: up to [`Limits::ops_in_memory`] operations (48 MiB)
//! stay in memory, longer programs go to an unnamed temporary file, from which the replay takes one
//! block after the other outside the time that it measures.
//!
//! Rows that cannot be replayed as they are, are counted in the [`LogSummary`] and dealt with so:
//!
//! | in the log | in the program |
//! |---|---|
//! | `allocate failure` | no operation; a replay that is told to asks for it there and gives it back |
//! | `free` of an address that no earlier row allocated | left out |
//! | `allocate` at an address that is still live | a new block; the old one is a leak |
//! | a block that is never freed | a leak: freed on its stream after the pass |
//! | `free` with another size than the allocation | freed with the size of the allocation |
//! | `free` on another stream than the allocation | as logged |
//! | requests for zero bytes at `(nil)` and their frees | as logged |

mod builder;
mod failed;
mod lanes;
mod op;
mod rows;
mod store;
mod summary;

use std::path::Path;
use std::sync::Arc;

pub use builder::ProgramBuilder;
pub use lanes::Lane;
pub use op::{Op, OpKind};
pub use summary::LogSummary;

use crate::log::{LogError, LogReader};
use crate::{Error, Result};
use store::OpStore;

/// How a log is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So many operations are kept in memory; a longer program goes to a temporary file.
    pub ops_in_memory: usize,
    /// Count bad rows and go on, instead of ending with the first one. Of a log that is cut off, what there
    /// is is read.
    pub skip_bad_rows: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { ops_in_memory: 2 << 20, skip_bad_rows: false }
    }
}

/// A log, ready to be replayed any number of times.
///
/// ```
/// use millpond_replay::{log::LogReader, program::{Limits, Program}};
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
    ops: OpStore,
    lanes: Vec<Lane>,
    slots: u32,
    leaks: Vec<Op>,
    summary: LogSummary,
    /// Whether each failed request is a retry, by number.
    retries: Vec<bool>,
}

impl Program {
    /// Reads the log at `path`.
    ///
    /// # Errors
    /// As [`read`](Self::read); and the file cannot be opened.
    pub fn open(path: &Path, limits: Limits) -> Result<Self> {
        Self::read(LogReader::open(path)?, limits)
    }

    /// Reads a log.
    ///
    /// # Errors
    /// A row is bad (and bad rows are not to be skipped), the log has no row, or the temporary file cannot be
    /// written.
    pub fn read(mut reader: LogReader<'_>, limits: Limits) -> Result<Self> {
        let mut builder = ProgramBuilder::new(limits);
        let mut cut_off = None;
        rows::each(&mut reader, |row, is_cut_off| {
            match row {
                Ok(event) => builder.push(&event)?,
                Err(error) if limits.skip_bad_rows && is_cut_off => cut_off = Some(error),
                Err(error) if limits.skip_bad_rows => builder.skip(&error),
                Err(error) => return Err(with_advice(error, is_cut_off).into()),
            }
            Ok(())
        })?;
        let mut program = builder.finish()?;
        program.summary.file = reader.file().to_owned();
        program.summary.rest_missing = cut_off.as_ref().map(LogError::to_string);
        if program.summary.events == 0 {
            if let Some(error) = cut_off {
                return Err(error.into());
            }
            let reason = match program.summary.skipped_rows {
                0 => "has a header and no rows: nothing to replay".to_owned(),
                1 => "has no row that can be read (1 bad row was skipped)".to_owned(),
                bad => format!("has no row that can be read ({bad} bad rows were skipped)"),
            };
            return Err(LogError { file: program.summary.file, line: 0, column: None, reason }.into());
        }
        Ok(program)
    }

    /// Whether a request that failed when the log was written was one before: it failed, failed again, and
    /// was served in the end. Always false for operations of other kinds than [`OpKind::AskAgain`].
    pub fn is_retry(&self, op: &Op) -> bool {
        op.kind == OpKind::AskAgain && self.retries.get(op.slot as usize).copied().unwrap_or(false)
    }

    /// What the log holds.
    pub fn summary(&self) -> &LogSummary {
        &self.summary
    }

    /// The pairs of thread and stream that occur; [`Op::lane`] is an index into them.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// How many slots for blocks the operations use.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The frees that give back what the log leaked.
    pub fn leaks(&self) -> &[Op] {
        &self.leaks
    }

    /// In how many blocks the operations are kept.
    pub fn block_count(&self) -> usize {
        self.ops.block_count()
    }

    /// One block of operations.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    ///
    /// # Panics
    /// If `index` is not below [`block_count`](Self::block_count).
    pub fn block(&self, index: usize) -> Result<Arc<[Op]>> {
        self.ops.block(index).map_err(Error::io("reading the temporary file of the replay"))
    }

    /// Whether the operations are in a temporary file rather than in memory.
    pub fn is_spooled(&self) -> bool {
        self.ops.is_spooled()
    }
}

/// The rest of a log need not be lost with a row.
#[cold]
fn with_advice(error: LogError, is_cut_off: bool) -> LogError {
    let advice = if is_cut_off { "replays what there is" } else { "leaves such rows out" };
    LogError { reason: format!("{}; --skip-bad-rows {advice}", error.reason), ..error }
}
