//! A set of small numbers that finds the neighbours of a number.

/// A set of numbers below a limit. A bit of the first level is a number. A bit of each further level is a
/// word of the level before it that is not 0.
pub(super) struct Numbers {
    levels: Vec<Vec<u64>>,
}

impl Numbers {
    /// Returns an empty set of numbers below `limit`.
    pub(super) fn up_to(limit: usize) -> Self {
        let mut levels = vec![vec![0; limit.div_ceil(64)]];
        while let Some(last) = levels.last().filter(|level| level.len() > 1) {
            levels.push(vec![0; last.len().div_ceil(64)]);
        }
        Self { levels }
    }

    pub(super) fn insert(&mut self, mut number: usize) {
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            let was_empty = *word == 0;
            *word |= 1 << (number % 64);
            if !was_empty {
                return;
            }
            number /= 64;
        }
    }

    pub(super) fn remove(&mut self, mut number: usize) {
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            *word &= !(1 << (number % 64));
            if *word != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// Returns the largest number of the set below this one.
    pub(super) fn below(&self, number: usize) -> Option<usize> {
        let last = |word: u64| 63 - word.leading_zeros() as usize;
        self.nearest(number, |bit| (1 << bit) - 1, last)
    }

    /// Returns the smallest number of the set above this one.
    pub(super) fn above(&self, number: usize) -> Option<usize> {
        self.nearest(number, |bit| !1 << bit, |word| word.trailing_zeros() as usize)
    }

    /// Returns the number of the set that is nearest on one side. `side` returns the bits of a word on that
    /// side of a bit, and `next` returns the nearest of them.
    fn nearest(
        &self,
        mut number: usize,
        side: impl Fn(usize) -> u64,
        next: impl Fn(u64) -> usize,
    ) -> Option<usize> {
        for (height, level) in self.levels.iter().enumerate() {
            let word = level[number / 64] & side(number % 64);
            if word != 0 {
                let found = number / 64 * 64 + next(word);
                let lower = self.levels[..height].iter().rev();
                return Some(lower.fold(found, |found, level| found * 64 + next(level[found])));
            }
            number /= 64;
        }
        None
    }

    /// Returns the numbers of the set in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let first = self.levels[0].iter().position(|word| *word != 0);
        let first = first.map(|at| at * 64 + self.levels[0][at].trailing_zeros() as usize);
        std::iter::successors(first, |number| self.above(*number))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn neighbours_are_those_of_an_ordered_set(
            limit in prop_oneof![1_usize..130, 4000_usize..5000, Just(300_000)],
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..100),
        ) {
            let (mut numbers, mut model) = (Numbers::up_to(limit), BTreeSet::new());
            for (is_new, number) in steps {
                let number = number.index(limit);
                if is_new {
                    numbers.insert(number);
                    model.insert(number);
                } else {
                    numbers.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(numbers.below(number), model.range(..number).next_back().copied());
                prop_assert_eq!(numbers.above(number), model.range(number + 1..).next().copied());
                prop_assert!(numbers.iter().eq(model.iter().copied()));
            }
        }
    }
}
