use std::fmt;
use std::str::FromStr;

use super::Effort;
use super::plan::{Order, Plan, Random, Shape, Sizes};

/// A kind of work for an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Workload {
    /// One size, allocated and freed, over and over: what a program without fragmentation sees.
    Pair,
    /// Many live blocks of all sizes; a step replaces one at random.
    Churn,
    /// The same with large blocks.
    ChurnLarge,
    /// Churn on several threads, each on a stream of its own.
    ThreadsOwnStream,
    /// Churn on several threads, all on one stream.
    ThreadsOneStream,
    /// Churn on several threads, in which each block is freed by another thread than allocated it.
    CrossThreadFree,
}

const CHURN_SIZES: Sizes = Sizes { smallest: 256, largest: 1 << 20 };
const LARGE_SIZES: Sizes = Sizes { smallest: 1 << 20, largest: 64 << 20 };
/// How many blocks each of several threads keeps live.
const THREAD_LIVE: usize = 1000;

impl Workload {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 6] = [
        Self::Pair,
        Self::Churn,
        Self::ChurnLarge,
        Self::ThreadsOwnStream,
        Self::ThreadsOneStream,
        Self::CrossThreadFree,
    ];

    /// As `--workload` and reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Churn => "churn",
            Self::ChurnLarge => "churn_large",
            Self::ThreadsOwnStream => "threads_own_stream",
            Self::ThreadsOneStream => "threads_one_stream",
            Self::CrossThreadFree => "cross_thread_free",
        }
    }

    /// Its sizes and numbers of live blocks or of threads.
    pub(super) fn cases(self, threads: &[usize]) -> Vec<Case> {
        let case = |threads, live, sizes| Case { workload: self, threads, live, sizes };
        match self {
            Self::Pair => [256, 4 << 10, 64 << 10, 1 << 20, 64 << 20]
                .map(|bytes| case(1, 1, Sizes::only(bytes)))
                .to_vec(),
            Self::Churn => [1000, 10_000, 100_000, 1_000_000].map(|live| case(1, live, CHURN_SIZES)).to_vec(),
            Self::ChurnLarge => vec![case(1, 2000, LARGE_SIZES)],
            Self::ThreadsOwnStream | Self::ThreadsOneStream => {
                threads.iter().map(|&threads| case(threads, THREAD_LIVE, CHURN_SIZES)).collect()
            }
            // It takes two.
            Self::CrossThreadFree => {
                let mut threads: Vec<usize> = threads.iter().map(|&threads| threads.max(2)).collect();
                threads.dedup();
                threads.into_iter().map(|threads| case(threads, THREAD_LIVE, CHURN_SIZES)).collect()
            }
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|workload| workload.name() == text).ok_or_else(|| {
            format!("`{text}` is not a workload; there are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// A workload at one size, with so many live blocks on so many threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) threads: usize,
    /// Blocks that each thread keeps live.
    pub(super) live: usize,
    pub(super) sizes: Sizes,
}

impl Case {
    /// The plan of each thread; none for pairs, which need none.
    pub(super) fn plans(&self, seed: u64, effort: &Effort) -> Vec<Plan> {
        let sweeps = self.workload == Workload::CrossThreadFree;
        let shape = Shape {
            live: self.live,
            sizes: self.sizes,
            warm_up: self.live.saturating_mul(2).min(effort.warm_up),
            steps: if self.workload == Workload::ChurnLarge { effort.steps / 4 } else { effort.steps },
            order: if sweeps { Order::Sweeps } else { Order::Random },
        };
        let lane = |thread: usize| (self.live as u64) << 16 | thread as u64;
        match self.workload {
            Workload::Pair => Vec::new(),
            _ => (0..self.threads).map(|me| Plan::new(Random::new(seed, lane(me)), shape)).collect(),
        }
    }

    /// The most bytes live at one time: as the plans of the threads add up.
    pub(super) fn bytes(&self, plans: &[Plan]) -> u64 {
        if plans.is_empty() { self.sizes.largest } else { plans.iter().map(|plan| plan.peak_bytes).sum() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read() {
        for workload in Workload::ALL {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        assert!("pairs".parse::<Workload>().unwrap_err().contains("cross_thread_free"));
    }

    #[test]
    fn threads_multiply_only_the_workloads_of_threads() {
        let counts = |threads: &[usize]| Workload::ALL.map(|workload| workload.cases(threads).len());
        assert_eq!(counts(&[1, 2, 16]), [5, 4, 1, 3, 3, 2]);
        assert_eq!(counts(&[4]), [5, 4, 1, 1, 1, 1]);
        assert_eq!(Workload::CrossThreadFree.cases(&[1])[0].threads, 2);
    }

    #[test]
    fn every_thread_has_a_plan_of_its_own() {
        let effort = Effort { steps: 2000, ..Effort::QUICK };
        for workload in Workload::ALL {
            for case in workload.cases(&[3]).into_iter().filter(|case| case.live <= 10_000) {
                let plans = case.plans(1, &effort);
                assert_eq!(plans.len(), if workload == Workload::Pair { 0 } else { case.threads });
                assert!(plans.iter().all(|plan| plan.fill.len() == case.live && plan.steps() >= 500));
                assert!(plans.windows(2).all(|pair| pair[0] != pair[1]));
                let sum: u64 = plans.iter().map(|plan| plan.peak_bytes).sum();
                let expected = if plans.is_empty() { case.sizes.largest } else { sum };
                assert_eq!(case.bytes(&plans), expected);
            }
        }
    }
}
