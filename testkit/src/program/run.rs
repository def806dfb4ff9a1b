//! Runs one program, generated or given.

use super::execute;
use super::source::Source;
use super::{Build, Config, Failure, Op, Summary};

/// Generates the program of a seed, and runs it on a fresh device.
///
/// # Errors
/// Returns the first broken rule, and the operations up to it; see [`shrink`](super::shrink).
pub fn run(seed: u64, config: &Config, build: &Build<'_>) -> Result<Summary, Box<Failure>> {
    let mut source = Source::new(seed, config);
    execute::guarded(seed, config, build, |session| {
        for _ in 0..config.operations {
            let op = source.next(session)?;
            session.step(op)?;
        }
        Ok(())
    })
}

/// Runs these operations on a fresh device whose schedule has this seed. Skips operations that would be
/// illegal for the caller.
///
/// # Errors
/// Returns the first broken rule.
pub fn replay(
    schedule: u64,
    operations: &[Op],
    config: &Config,
    build: &Build<'_>,
) -> Result<Summary, Box<Failure>> {
    execute::guarded(schedule, config, build, |session| {
        operations.iter().try_for_each(|&op| session.step(op))
    })
}
