//! Runs one program, generated or given.

use std::thread;

use super::broken::Checks;
use super::execute;
use super::session::Session;
use super::source::Source;
use super::{Build, Config, Failure, Op, Summary};

/// Generates the program of a seed, and runs it on a fresh device.
///
/// # Errors
/// Returns the first broken rule, and the operations up to it; see [`shrink`](super::shrink).
pub fn run(seed: u64, config: &Config, build: &Build<'_>) -> Result<Summary, Box<Failure>> {
    let mut source = Source::new(seed, config);
    on_its_thread(seed, config, build, |session| {
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
    on_its_thread(schedule, config, build, |session| operations.iter().try_for_each(|&op| session.step(op)))
}

/// Runs a program on a new thread if the allocator keeps events for each thread: the events belong to the
/// program's device.
fn on_its_thread(
    seed: u64,
    config: &Config,
    build: &Build<'_>,
    body: impl FnOnce(&mut Session) -> Checks + Send,
) -> Result<Summary, Box<Failure>> {
    let program = || execute::guarded(seed, config, build, body);
    if !config.habits.keeps_events {
        return program();
    }
    let ended = thread::scope(|scope| scope.spawn(program).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
