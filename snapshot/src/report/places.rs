//! Maps addresses to drawing positions. Addresses that were never used get no position.

/// The number of ranges that wait before they are merged.
const WAITING: usize = 1 << 16;

/// The used ranges of addresses.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Disjoint ranges in order, each with its start and its end.
    merged: Vec<(u64, u64)>,
    waiting: Vec<(u64, u64)>,
    /// The number of bytes in all earlier ranges, for each range.
    below: Vec<u64>,
}

impl Places {
    /// Adds a used range.
    pub(super) fn add(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let at = self.merged.partition_point(|&(from, _)| from <= address).checked_sub(1);
        if at.is_some_and(|at| end <= self.merged[at].1) {
            return;
        }
        self.waiting.push((address, end));
        if self.waiting.len() >= WAITING {
            self.merge();
        }
    }

    fn merge(&mut self) {
        let mut all = std::mem::take(&mut self.merged);
        all.append(&mut self.waiting);
        all.sort_unstable();
        for (from, to) in all {
            match self.merged.last_mut() {
                Some((_, end)) if from <= *end => *end = to.max(*end),
                _ => self.merged.push((from, to)),
            }
        }
    }

    /// Ends the adding of ranges. Returns the bytes in all ranges.
    pub(super) fn finish(&mut self) -> u64 {
        self.merge();
        let mut height = 0_u64;
        for &(from, to) in &self.merged {
            self.below.push(height);
            height = height.saturating_add(to - from);
        }
        height
    }

    /// Returns the drawing position of an address.
    pub(super) fn of_address(&self, address: u64) -> u64 {
        let at = self.merged.partition_point(|&(from, _)| from <= address).checked_sub(1);
        at.map_or(0, |at| self.below[at].saturating_add(address - self.merged[at].0))
    }

    /// Returns the start of each range, and its drawing position.
    pub(super) fn ranges(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.merged.iter().zip(&self.below).map(|(&(from, _), &below)| (from, below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_gaps_are_left_out() {
        let mut places = Places::default();
        for round in 0..WAITING as u64 {
            places.add(1000 + round % 100, 10);
            places.add(5000, 20);
            places.add(u64::MAX - 5, 10);
        }
        assert_eq!(places.finish(), 109 + 20 + 5);
        assert_eq!([1000, 1050, 5000, 5010].map(|address| places.of_address(address)), [0, 50, 109, 119]);
        assert_eq!(places.ranges().collect::<Vec<_>>(), [(1000, 0), (5000, 109), (u64::MAX - 5, 129)]);
    }
}
