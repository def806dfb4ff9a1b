//! Limits and settings of the planner's search.

use std::time::Duration;

/// Limits and settings of the planner's search.
///
/// ```
/// use std::time::Duration;
/// use millpond_planning::Options;
///
/// let options = Options::default().time(Duration::from_secs(5));
/// assert_eq!(options.threads, 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The time after which the search stops with its best placement. Sorting the blocks and a best fit
    /// always finish, and so does the first skyline of at most 16,384 blocks.
    pub time: Duration,
    /// The most rounds of search, after the first placements, for one piece of the problem. If there is time
    /// for all rounds, the result depends on the seed alone.
    pub rounds: u32,
    /// The seed of the search's random choices.
    pub seed: u64,
    /// The number of threads; 0 means one for each core. It does not change the result if there is time for
    /// all rounds.
    pub threads: usize,
}

impl Options {
    /// Sets the time limit.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// Sets the most rounds for one piece of the problem.
    #[must_use]
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of threads; 0 means one for each core.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
}

impl Default for Options {
    /// Returns 30 seconds, 200 rounds, all cores.
    fn default() -> Self {
        Self { time: Duration::from_secs(30), rounds: 200, seed: 0, threads: 0 }
    }
}
