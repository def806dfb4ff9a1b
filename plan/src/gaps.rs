//! The unused bytes of a lane, by address and by size.
//!
//! A lane has no such table while the program follows its plan. It gets a table when it serves a request that
//! the plan does not know, because upstream would have to grow for the request.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of a lane. No two ranges are adjacent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    /// The end of each range by its start, in bytes from the start of the lane.
    ends: BTreeMap<u64, u64>,
    /// The length and the start of each range.
    by_length: BTreeSet<(u64, u64)>,
}

impl Gaps {
    /// Returns the gaps between used ranges, which are sorted and disjoint, in a lane of `bytes` bytes.
    pub(crate) fn between(used: impl IntoIterator<Item = (u64, u64)>, bytes: u64) -> Self {
        let mut gaps = Self::default();
        let mut free_from = 0;
        for (start, end) in used {
            gaps.insert(free_from, start);
            free_from = end;
        }
        gaps.insert(free_from, bytes);
        gaps
    }

    fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            self.ends.insert(start, end);
            self.by_length.insert((end - start, start));
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.ends.remove(&start);
        self.by_length.remove(&(end - start, start));
    }

    /// Takes a part of the smallest gap that has room. Returns the start of the part.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(length, start) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(start, start + length);
        self.insert(start + bytes, start + length);
        Some(start)
    }

    /// Takes these bytes, if all of them are free.
    pub(crate) fn take_at(&mut self, start: u64, bytes: u64) -> bool {
        let Some((&from, &to)) = self.ends.range(..=start).next_back() else { return false };
        if to < start + bytes {
            return false;
        }
        self.remove(from, to);
        self.insert(from, start);
        self.insert(start + bytes, to);
        true
    }

    /// Returns whether all of these bytes are free.
    pub(crate) fn has(&self, start: u64, bytes: u64) -> bool {
        self.ends.range(..=start).next_back().is_some_and(|(_, &to)| to >= start + bytes)
    }

    /// Makes taken bytes free again.
    pub(crate) fn give(&mut self, start: u64, bytes: u64) {
        let (mut from, mut to) = (start, start + bytes);
        if let Some((&before, &end)) = self.ends.range(..start).next_back()
            && end == start
        {
            self.remove(before, end);
            from = before;
        }
        if let Some(&end) = self.ends.get(&to) {
            self.remove(to, end);
            to = end;
        }
        self.insert(from, to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNITS: usize = 64;

    fn check(gaps: &Gaps, used: &[bool]) {
        let mut before = None;
        for (&start, &end) in &gaps.ends {
            assert!(start < end && before.is_none_or(|before| before < start), "ranges touch: {gaps:?}");
            assert!(gaps.by_length.contains(&(end - start, start)));
            before = Some(end);
        }
        assert_eq!(gaps.ends.len(), gaps.by_length.len());
        let is_free = |at: u64| gaps.ends.range(..=at).next_back().is_some_and(|(_, &end)| end > at);
        assert!(used.iter().enumerate().all(|(at, used)| is_free(at as u64) != *used), "{gaps:?} {used:?}");
    }

    proptest! {
        #[test]
        fn gaps_are_a_plain_maps(steps in prop::collection::vec((0..3u8, 0..UNITS, 1..9usize), 1..80)) {
            let mut gaps = Gaps::between([], UNITS as u64);
            let mut used = [false; UNITS];
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (kind, at, length) in steps {
                let is_free = |used: &[bool], at: usize| {
                    at + length <= UNITS && !used[at..at + length].contains(&true)
                };
                let taken = match kind {
                    0 => {
                        let found = gaps.take(length as u64).map(|at| at as usize);
                        prop_assert_eq!(found.is_some(), (0..UNITS).any(|at| is_free(&used, at)));
                        found
                    }
                    1 => {
                        prop_assert_eq!(gaps.has(at as u64, length as u64), is_free(&used, at));
                        let is_taken = gaps.take_at(at as u64, length as u64);
                        prop_assert_eq!(is_taken, is_free(&used, at));
                        is_taken.then_some(at)
                    }
                    _ if held.is_empty() => None,
                    _ => {
                        let (at, length) = held.swap_remove(at % held.len());
                        gaps.give(at as u64, length as u64);
                        used[at..at + length].fill(false);
                        None
                    }
                };
                if let Some(at) = taken {
                    prop_assert!(is_free(&used, at));
                    used[at..at + length].fill(true);
                    held.push((at, length));
                }
                check(&gaps, &used);
            }
        }
    }

    #[test]
    fn gaps_lie_between_what_is_used() {
        let gaps = Gaps::between([(0, 2), (2, 5), (9, 10)], 12);
        assert_eq!(gaps.ends.into_iter().collect::<Vec<_>>(), [(5, 9), (10, 12)]);
    }
}
