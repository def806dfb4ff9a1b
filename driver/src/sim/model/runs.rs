//! A map from disjoint ranges of addresses to values.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// A map from disjoint ranges of addresses to values.
#[derive(Debug)]
pub(crate) struct RunMap<V> {
    runs: BTreeMap<u64, Run<V>>,
}

#[derive(Debug)]
struct Run<V> {
    end: u64,
    value: V,
}

impl<V> Default for RunMap<V> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<V: Clone> RunMap<V> {
    /// The run that holds all of `range`, if there is one.
    pub(crate) fn containing(&mut self, range: &Range<u64>) -> Option<&mut V> {
        let (_, run) = self.runs.range_mut(..=range.start).next_back()?;
        (run.end >= range.end).then_some(&mut run.value)
    }

    /// The runs that overlap `range`, in order, unclipped.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        // Most often one run holds the range from its start, and one search finds it.
        let whole = self.runs.get(&range.start).filter(|run| !range.is_empty() && run.end >= range.end);
        let several = whole.is_none().then(|| {
            let before = self.runs.range(..range.start).next_back();
            let before = before.filter(|(_, run)| run.end > range.start);
            before.into_iter().chain(self.runs.range(range.clone()))
        });
        let several = several.into_iter().flatten().map(|(&start, run)| (start, run));
        whole
            .map(|run| (range.start, run))
            .into_iter()
            .chain(several)
            .map(|(start, run)| (start..run.end, &run.value))
    }

    /// All runs, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.runs.values().map(|run| &run.value)
    }

    /// Sets the value of `range`. An empty range changes nothing.
    pub(crate) fn replace(&mut self, range: Range<u64>, value: V) {
        if range.is_empty() {
            return;
        }
        match self.runs.range_mut(..range.end).next_back() {
            Some((&start, run)) if start == range.start && run.end == range.end => {
                run.value = value;
                return;
            }
            Some((_, run)) if run.end > range.start => self.remove(range.clone()),
            _ => {}
        }
        self.runs.insert(range.start, Run { end: range.end, value });
    }

    /// Removes the values of `range`.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        // Most often the range is one run.
        if let Entry::Occupied(run) = self.runs.entry(range.start)
            && run.get().end == range.end
        {
            run.remove();
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((&start, _)) = self.runs.range(range.clone()).next() {
            self.runs.remove(&start);
        }
    }

    /// Calls `change` on the value of every part of `range`; parts without a value start from `fresh`.
    pub(crate) fn update(
        &mut self,
        range: Range<u64>,
        fresh: &V,
        mut change: impl FnMut(Range<u64>, &mut V),
    ) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let mut at = range.start;
        while at < range.end {
            let run = match self.runs.range_mut(at..range.end).next() {
                Some((&start, run)) if start == at => run,
                next => {
                    let end = next.map_or(range.end, |(&start, _)| start);
                    self.runs.entry(at).or_insert_with(|| Run { end, value: fresh.clone() })
                }
            };
            change(at..run.end, &mut run.value);
            at = run.end;
        }
    }

    /// Cuts the run that crosses `at`, if there is one.
    fn split(&mut self, at: u64) {
        if let Some((_, run)) = self.runs.range_mut(..at).next_back()
            && run.end > at
        {
            let rest = Run { end: std::mem::replace(&mut run.end, at), value: run.value.clone() };
            self.runs.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::model::rng::Rng;

    const LENGTH: u64 = 64;

    /// The naive model: one optional value for each address.
    #[test]
    fn agrees_with_a_plain_array() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut runs = RunMap::default();
            let mut model = [None; LENGTH as usize];
            for step in 0..500_u64 {
                let a = rng.below(LENGTH);
                let b = a + rng.below(LENGTH - a + 1);
                let part = &mut model[a as usize..b as usize];
                match rng.below(4) {
                    0 => {
                        runs.replace(a..b, step);
                        part.fill(Some(step));
                    }
                    1 => {
                        runs.remove(a..b);
                        part.fill(None);
                    }
                    2 => {
                        let mut seen = a;
                        runs.update(a..b, &0, |range, value| {
                            assert!(range.start == seen && range.end <= b && !range.is_empty());
                            seen = range.end;
                            *value += 1000;
                        });
                        assert_eq!(seen, b);
                        part.iter_mut().for_each(|value| *value = Some(value.unwrap_or(0) + 1000));
                    }
                    _ => {
                        let whole = runs.containing(&(a..b)).copied();
                        if a < b {
                            let same = part.iter().all(|value| *value == part[0]);
                            assert!(whole.is_none() || (same && whole == part[0]), "seed {seed} step {step}");
                        }
                    }
                }
                check(&runs, &model, a, b);
            }
        }
    }

    fn check(runs: &RunMap<u64>, model: &[Option<u64>], a: u64, b: u64) {
        let mut seen = vec![None; model.len()];
        for (range, value) in runs.overlapping(a..b) {
            assert!(range.end > a && range.start < b);
            for at in range {
                assert_eq!(seen[at as usize].replace(*value), None, "runs are disjoint");
            }
        }
        assert_eq!(seen[a as usize..b as usize], model[a as usize..b as usize]);
        let covered: u64 = runs.overlapping(0..LENGTH).map(|(range, _)| range.end - range.start).sum();
        assert_eq!(covered as usize, model.iter().flatten().count());
    }
}
