//! Drives an allocator with random programs, and with threads that race.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_core::DriverHandle;
use millpond_testkit::conformance::Subject;
use millpond_testkit::program::{self, Case, Config, Failure, Summary, Sweep};
use millpond_testkit::race::Race;

use crate::foreign::{Allocator, Foreign};

/// The number of operations of each thread in a race.
const STEPS: u64 = 400;

/// How long and with which programs allocators are driven.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Judge {
    /// The number of operations after which the programs end.
    pub operations: u64,
    /// The seeds of the programs.
    pub seeds: Range<u64>,
    /// The number of programs that run at the same time.
    pub workers: usize,
    /// The number of races, which follow the programs.
    pub races: u64,
    /// Whether programs destroy streams before their end.
    pub destroys: bool,
    /// Whether some programs use the default streams of several threads.
    pub threads: bool,
    /// Whether programs capture graphs, if the allocator works in captures.
    pub captures: bool,
    /// How many times the usual size devices and the largest requests have. Allocators that take much memory
    /// at once need it.
    pub scale: u64,
}

impl Judge {
    millpond_core::setters! {
        operations: u64,
        seeds: Range<u64>,
        workers: usize,
        races: u64,
        destroys: bool,
        threads: bool,
        captures: bool,
        scale: u64,
    }

    /// Returns a judge that stops after this many operations and four races.
    pub fn new(operations: u64) -> Self {
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            operations,
            seeds: 0..u64::MAX,
            workers,
            races: 4,
            destroys: true,
            threads: true,
            captures: true,
            scale: 1,
        }
    }

    /// Drives an allocator until a rule is broken, or all programs and races have passed. A program that
    /// breaks a rule is shrunk; a race is not, because it runs differently each time.
    pub fn judge(&self, allocator: &Arc<Allocator>) -> Verdict {
        let start = Instant::now();
        let result = self.run_programs(allocator).and_then(|total| self.run_races(allocator, total));
        Verdict { allocator: allocator.name().to_owned(), result, time: start.elapsed() }
    }

    fn run_programs(&self, allocator: &Arc<Allocator>) -> Result<Summary, Finding> {
        let build = |driver: &DriverHandle| allocator.build(driver);
        let case = |seed| Some(Case { config: self.config(allocator, seed), build: &build });
        let sweep = Sweep::operations(self.operations).seeds(self.seeds.clone()).threads(self.workers);
        program::sweep_cases(&sweep, &case).map_err(Finding::Program)
    }

    fn run_races(&self, allocator: &Arc<Allocator>, mut total: Summary) -> Result<Summary, Finding> {
        let built = Arc::clone(allocator);
        let subject = Subject::new(allocator.name(), move |driver| built.build(driver));
        for seed in 0..self.races {
            let mut race = Race::new(seed, STEPS).pauses(true).habits(allocator.habits());
            race.capacity_bytes *= self.scale;
            total += race.run(&subject).map_err(|message| Finding::Race { seed, message })?;
        }
        Ok(total)
    }

    /// The shape of a seed's program.
    fn config(&self, allocator: &Allocator, seed: u64) -> Config {
        let has_scopes = self.captures && allocator.has_scopes();
        let usual = Config::new(allocator.name())
            .command(format!("millpond-judge {}.so", allocator.name()))
            .habits(allocator.habits())
            // An allocator may refuse a request although it could serve it after the host has waited.
            .verify_out_of_memory(false)
            .destroys(self.destroys)
            .faults(allocator.survives_faults() && seed.is_multiple_of(2))
            .new_scope(has_scopes.then_some(Foreign::new_scope))
            .on_capture(has_scopes.then_some(Foreign::tell_of_capture))
            .direct_scopes(has_scopes)
            .captures(self.captures && allocator.works_in_captures() && matches!(seed % 4, 1 | 2));
        let mut shape = match seed % 8 {
            // Each thread has its own default stream.
            5 if self.threads => usual.threads(3),
            // Room for many blocks.
            6 => usual.operations(1024).capacity_bytes(256 << 20).streams(24).most_live(160),
            // Memory is short.
            7 => usual.capacity_bytes(8 << 20).largest_bytes(3 << 20),
            _ => usual,
        };
        shape.capacity_bytes *= self.scale;
        shape.largest_bytes *= self.scale;
        shape
    }
}

/// A broken rule.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// A program breaks the rule each time it runs.
    Program(Box<Failure>),
    /// A race broke the rule.
    Race {
        /// The seed of the threads' choices.
        seed: u64,
        /// The rule, and where it was broken.
        message: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(failure) => failure.fmt(f),
            Self::Race { seed, message } => write!(f, "race {seed} of eight threads: {message}"),
        }
    }
}

/// The judge's verdict on an allocator.
#[derive(Debug)]
#[non_exhaustive]
pub struct Verdict {
    /// The allocator's name.
    pub allocator: String,
    /// The work that passed, or the broken rule.
    pub result: Result<Summary, Finding>,
    /// How long it took, the shrinking included.
    pub time: Duration,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allocator, result, time } = self;
        let seconds = time.as_secs_f64();
        match result {
            Ok(summary) => write!(f, "{allocator}: passed in {seconds:.1} s: {summary}"),
            Err(finding) => write!(f, "{allocator}: a rule is broken, found in {seconds:.1} s:\n{finding}"),
        }
    }
}
