//! The workloads and their sizes.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::effort::Effort;
use super::plan::{Fragments, Order, Plan, Random, Shape, Sizes};

/// A workload: a kind of work for an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Workload {
    /// Allocates and frees one block again and again. So there is no fragmentation.
    Pair,
    /// Keeps many blocks of all sizes live. A step replaces one of them at random.
    Churn,
    /// Like [`Churn`](Self::Churn), with large blocks.
    ChurnLarge,
    /// Like [`Churn`](Self::Churn), on several streams, by one thread.
    Streams,
    /// Like [`Churn`](Self::Churn), in a heap that blocks of other sizes fragmented first.
    Fragmented,
    /// Like [`Churn`](Self::Churn), on several threads, each on its own stream.
    ThreadsOwnStream,
    /// Like [`Churn`](Self::Churn), on several threads, all on one stream.
    ThreadsOneStream,
    /// Like [`Churn`](Self::Churn), on several threads. Each block is freed by a thread other than the one
    /// that allocated it.
    CrossThreadFree,
}

const CHURN_SIZES: Sizes = Sizes { smallest: 256, largest: 1 << 20 };
const LARGE_SIZES: Sizes = Sizes { smallest: 1 << 20, largest: 64 << 20 };
/// The number of blocks that one thread keeps live on several streams together.
const THREAD_LIVE: usize = 1000;
/// The number of blocks that several streams keep live together.
const STREAMS_LIVE: usize = 10_000;
/// The number of blocks that fragment a heap: about 2.5 GB, with the sizes of the workload `churn`.
const FRAGMENTS: usize = 20_000;
/// The number of blocks that are then live in the fragmented heap: about 3.8 GB. So the live bytes are
/// highest at the end, whatever the number of freed blocks.
const FRAGMENTED_LIVE: usize = 4000;
const FRAGMENTED_SIZES: Sizes = Sizes { smallest: 64 << 10, largest: 4 << 20 };

impl Workload {
    /// All workloads, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Pair,
        Self::Churn,
        Self::ChurnLarge,
        Self::Streams,
        Self::Fragmented,
        Self::ThreadsOwnStream,
        Self::ThreadsOneStream,
        Self::CrossThreadFree,
    ];

    /// Returns the name of the workload in `--workload` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Churn => "churn",
            Self::ChurnLarge => "churn_large",
            Self::Streams => "streams",
            Self::Fragmented => "fragmented",
            Self::ThreadsOwnStream => "threads_own_stream",
            Self::ThreadsOneStream => "threads_one_stream",
            Self::CrossThreadFree => "cross_thread_free",
        }
    }

    /// Returns the cases of the workload: the sizes, and the numbers of live blocks, streams or threads.
    pub(super) fn cases(self, threads: &[usize]) -> Vec<Case> {
        let case =
            |live, sizes| Case { workload: self, threads: 1, streams: 1, live, sizes, freed_percent: 0 };
        let threaded = |threads, streams| Case { threads, streams, ..case(THREAD_LIVE, CHURN_SIZES) };
        match self {
            Self::Pair => {
                [256, 4 << 10, 64 << 10, 1 << 20, 64 << 20].map(|bytes| case(1, Sizes::only(bytes))).to_vec()
            }
            Self::Churn => {
                [100, 1000, 10_000, 100_000, 1_000_000].map(|live| case(live, CHURN_SIZES)).to_vec()
            }
            Self::ChurnLarge => vec![case(2000, LARGE_SIZES)],
            Self::Streams => [1, 4, 16, 64, 256]
                .map(|streams| Case { streams, ..case(STREAMS_LIVE, CHURN_SIZES) })
                .to_vec(),
            Self::Fragmented => [0, 25, 50, 75, 90]
                .map(|freed_percent| Case { freed_percent, ..case(FRAGMENTED_LIVE, FRAGMENTED_SIZES) })
                .to_vec(),
            Self::ThreadsOwnStream => threads.iter().map(|&threads| threaded(threads, threads)).collect(),
            Self::ThreadsOneStream => threads.iter().map(|&threads| threaded(threads, 1)).collect(),
            // This workload needs two threads.
            Self::CrossThreadFree => {
                let mut threads: Vec<usize> = threads.iter().map(|&threads| threads.max(2)).collect();
                threads.dedup();
                threads.into_iter().map(|threads| threaded(threads, threads)).collect()
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
            format!("`{text}` is not a workload; the workloads are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// One case of a workload: a size, and the numbers of live blocks and threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) threads: usize,
    /// The number of streams of all threads together.
    pub(super) streams: usize,
    /// The number of blocks that each thread keeps live.
    pub(super) live: usize,
    pub(super) sizes: Sizes,
    /// The percentage of the fragmenting blocks that are freed before the first step.
    pub(super) freed_percent: u32,
}

impl Case {
    /// Returns the plan of each thread. The result is empty for the workload `pair`, which needs no plan.
    pub(super) fn plans(&self, seed: u64, effort: &Effort) -> Vec<Plan> {
        let sweeps = self.workload == Workload::CrossThreadFree;
        let shape = |thread| Shape {
            fragments: self.fragments(),
            live: self.live,
            sizes: self.sizes,
            streams: self.streams_of(thread),
            warm_up: self.live.saturating_mul(Effort::REPLACEMENTS).min(effort.warm_up),
            steps: if self.workload == Workload::ChurnLarge { effort.steps / 4 } else { effort.steps },
            order: if sweeps { Order::Sweeps } else { Order::Random },
        };
        let lane = |thread: usize| (self.live as u64) << 16 | thread as u64;
        match self.workload {
            Workload::Pair => Vec::new(),
            _ => (0..self.threads).map(|me| Plan::new(Random::new(seed, lane(me)), shape(me))).collect(),
        }
    }

    fn fragments(&self) -> Fragments {
        match self.workload {
            Workload::Fragmented => {
                Fragments { count: FRAGMENTS, sizes: CHURN_SIZES, freed_percent: self.freed_percent }
            }
            _ => Fragments::NONE,
        }
    }

    /// Returns the streams that a thread allocates on: its own stream, the shared stream, or all streams if
    /// there is a single thread.
    fn streams_of(&self, thread: usize) -> Range<u32> {
        let (streams, thread) = (self.streams as u32, thread as u32);
        match self.threads {
            1 => 0..streams,
            _ if streams == 1 => 0..1,
            _ => thread..thread + 1,
        }
    }

    /// Describes the sizes of the blocks, and how many blocks were freed first, as text for people.
    pub(super) fn about(&self) -> String {
        match self.workload {
            Workload::Fragmented => format!("{}, {} % freed", self.sizes, self.freed_percent),
            _ => self.sizes.to_string(),
        }
    }

    /// Returns the most bytes that are live at one time. It is a sum over the plans of the threads.
    pub(super) fn bytes(&self, plans: &[Plan]) -> u64 {
        let of_pair = u64::from(self.sizes.largest);
        if plans.is_empty() { of_pair } else { plans.iter().map(|plan| plan.peak_bytes).sum() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        assert_eq!(counts(&[1, 2, 16]), [5, 5, 1, 5, 5, 3, 3, 2]);
        assert_eq!(counts(&[4]), [5, 5, 1, 5, 5, 1, 1, 1]);
        assert_eq!(Workload::CrossThreadFree.cases(&[1])[0].threads, 2);
    }

    #[test]
    fn every_stream_is_used_and_by_the_threads_that_should() {
        let effort = Effort { steps: 20_000, ..Effort::QUICK };
        let used = |case: Case| -> Vec<BTreeSet<u32>> {
            let plans = case.plans(1, &effort);
            let streams = |plan: &Plan| plan.rounds.iter().flatten().map(|step| step.by.stream).collect();
            plans.iter().map(streams).collect()
        };
        for case in Workload::Streams.cases(&[]) {
            assert_eq!(used(case), [(0..case.streams as u32).collect()]);
        }
        assert_eq!(used(Workload::ThreadsOneStream.cases(&[2])[0]), [[0].into(), [0].into()]);
        for workload in [Workload::ThreadsOwnStream, Workload::CrossThreadFree] {
            assert_eq!(used(workload.cases(&[2])[0]), [[0].into(), [1].into()]);
        }
    }

    #[test]
    fn the_most_is_live_after_fragments_were_freed() {
        for case in Workload::Fragmented.cases(&[]) {
            let plan = &case.plans(1, &Effort::QUICK)[0];
            let fragments: u64 = plan.fragments.iter().map(|request| u64::from(request.bytes)).sum();
            assert!(plan.peak_bytes > fragments, "{case:?}");
        }
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
                let expected = if plans.is_empty() { case.sizes.largest.into() } else { sum };
                assert_eq!(case.bytes(&plans), expected);
            }
        }
    }
}
