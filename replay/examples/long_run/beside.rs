//! Compares the memory and the time of a stack with the first stack, on the same copies and passes.

use serde::Serialize;

use super::run::Pass;

/// One log in one stack compared with the first stack, or all logs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Beside {
    /// `all` for all logs.
    pub(crate) log: String,
    pub(crate) stack: String,
    /// The bytes taken after the last pass divided by the first stack's bytes: the geometric mean of all
    /// copies.
    pub(crate) taken_over_first: f64,
    /// The same for the copy with the highest value.
    pub(crate) most_taken_over_first: f64,
    /// The stack's own nanoseconds per operation in all passes, minus the first stack's: the mean.
    pub(crate) own_ns_over_first: f64,
    /// The same with the driver's virtual time.
    pub(crate) ns_over_first: f64,
    /// Driver calls per 1000 operations in all passes, minus the first stack's: the mean.
    pub(crate) calls_per_1000_over_first: f64,
}

impl Beside {
    /// Returns a row for each log, and one for all logs. `runs` and `first` are indexed by log and copy.
    pub(crate) fn rows(
        names: &[String],
        stack: &str,
        runs: &[Vec<Vec<Pass>>],
        first: &[Vec<Vec<Pass>>],
    ) -> Vec<Self> {
        let pairs = |log: usize| runs[log].iter().zip(&first[log]);
        let rows = names.iter().enumerate().map(|(log, name)| Self::of(name, stack, pairs(log).collect()));
        let mut rows: Vec<Self> = rows.collect();
        if names.len() > 1 {
            rows.push(Self::of("all", stack, (0..names.len()).flat_map(pairs).collect()));
        }
        rows
    }

    fn of(log: &str, stack: &str, pairs: Vec<(&Vec<Pass>, &Vec<Pass>)>) -> Self {
        let count = pairs.len().max(1) as f64;
        let ratio = |(run, first): &(&Vec<Pass>, &Vec<Pass>)| {
            let taken = |run: &[Pass]| run.last().map_or(0, |pass| pass.peak_taken).max(1) as f64;
            taken(run) / taken(first)
        };
        let difference = |of: &dyn Fn(&Pass) -> u64| {
            let each = |run: &[Pass]| {
                let operations: u64 = run.iter().map(|pass| pass.operations).sum();
                run.iter().map(of).sum::<u64>() as f64 / operations.max(1) as f64
            };
            pairs.iter().map(|(run, first)| each(run) - each(first)).sum::<f64>() / count
        };
        Self {
            log: log.to_owned(),
            stack: stack.to_owned(),
            taken_over_first: (pairs.iter().map(|pair| ratio(pair).ln()).sum::<f64>() / count).exp(),
            most_taken_over_first: pairs.iter().map(ratio).fold(0.0, f64::max),
            own_ns_over_first: difference(&|pass| pass.own_ns),
            ns_over_first: difference(&|pass| pass.ns),
            calls_per_1000_over_first: difference(&|pass| pass.calls) * 1000.0,
        }
    }
}
