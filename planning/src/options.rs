//! Limits and settings of the planner's search.

use std::time::Duration;

/// Limits and settings of the planner's search.
///
/// ```
/// use std::time::Duration;
/// use millpond_planning::Options;
///
/// let options = Options { time: Duration::from_secs(5), ..Options::default() };
/// assert_eq!(options.threads, 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time after which the search stops with its best placement. The first placement always finishes.
    pub time: Duration,
    /// The most rounds of search, after the first placements, for one piece of the problem. If the time
    /// suffices for them, the result depends on the seed alone.
    pub rounds: u32,
    /// The seed of the search's random choices.
    pub seed: u64,
    /// The number of threads; 0 means one for each core. It does not change the result, if the time suffices.
    pub threads: usize,
}

impl Default for Options {
    /// Returns 30 seconds, 200 rounds, all cores.
    fn default() -> Self {
        Self { time: Duration::from_secs(30), rounds: 200, seed: 0, threads: 0 }
    }
}
