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
    /// The time after which the search stops and returns its best placement. Three steps always finish:
    /// sorting the blocks, a best fit, and the first skyline of at most 16,384 blocks.
    pub time: Duration,
    /// The most rounds of search for one piece of the problem, after the first placements. If there is time
    /// for all rounds, the result depends only on the seed.
    pub rounds: u32,
    /// The seed of the search's random choices.
    pub seed: u64,
    /// The number of threads; 0 means one thread for each core. If there is time for all rounds, the number
    /// does not change the result.
    pub threads: usize,
}

impl Options {
    /// Sets the time limit.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// Sets the most rounds of search for one piece of the problem.
    #[must_use]
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds;
        self
    }

    /// Sets the seed of the random choices.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of threads; 0 means one thread for each core.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
}

impl Default for Options {
    /// Returns the default options: 30 seconds, 200 rounds, one thread for each core.
    fn default() -> Self {
        Self { time: Duration::from_secs(30), rounds: 200, seed: 0, threads: 0 }
    }
}
