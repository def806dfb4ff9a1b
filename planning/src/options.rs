//! How long and with what the planner searches.

use std::time::Duration;

/// How long and with what the planner searches.
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
    /// The time after which the search stops with its best placement. The first placement is always finished.
    pub time: Duration,
    /// The rounds of search, after the first placements, that one piece of the problem takes at most. If the
    /// time suffices for them, the result depends on the seed alone.
    pub rounds: u32,
    /// The seed of what is tried.
    pub seed: u64,
    /// The number of threads; 0 for one on each core. It does not change the result, if time suffices.
    pub threads: usize,
}

impl Default for Options {
    /// 30 seconds, 200 rounds, all cores.
    fn default() -> Self {
        Self { time: Duration::from_secs(30), rounds: 200, seed: 0, threads: 0 }
    }
}
