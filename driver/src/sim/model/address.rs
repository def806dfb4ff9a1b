//! Hands out ranges of an address space.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

/// Hands out ranges of an address space. It takes the smallest free range that fits, the lowest of equal
/// ones, and cuts from its lower or upper end. The same calls give the same addresses, and freed ranges are
/// reused.
///
/// Sizes and alignments are multiples of the space's `unit`.
#[derive(Debug, Default)]
pub(crate) struct AddressSpace {
    unit: u64,
    /// Free ranges do not cross multiples of this; `u64::MAX` means no limit.
    page: u64,
    from_above: bool,
    /// The size of each free range by its start, and its start by its end, to find the neighbours of a freed
    /// range.
    sizes: FxHashMap<u64, u64>,
    starts: FxHashMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl AddressSpace {
    pub(crate) fn new(start: u64, end: u64, unit: u64, from_above: bool) -> Self {
        debug_assert!(start.is_multiple_of(unit) && end.is_multiple_of(unit) && start < end);
        let mut space = Self { unit, page: u64::MAX, from_above, ..Self::default() };
        space.insert(start, end - start);
        space
    }

    /// A space without free ranges, whose ranges never cross a multiple of `page`.
    pub(crate) fn in_pages(page: u64, unit: u64, from_above: bool) -> Self {
        Self { unit, page, from_above, ..Self::default() }
    }

    /// Removes a range if it is exactly one free range.
    pub(crate) fn take(&mut self, start: u64, bytes: u64) -> bool {
        let is_free = self.sizes.get(&start) == Some(&bytes);
        if is_free {
            self.remove(start, bytes);
        }
        is_free
    }

    /// Takes a range of `bytes` rounded up to the unit, at a multiple of the alignment; `None` if none is
    /// free.
    pub(crate) fn allocate(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let bytes = self.rounded(bytes)?;
        let alignment = alignment.max(self.unit);
        let (size, start, aligned) = self.by_size.range((bytes, 0)..).find_map(|&(size, start)| {
            let last = start + size - bytes;
            let aligned = if self.from_above {
                last - last % alignment
            } else {
                start.checked_next_multiple_of(alignment)?
            };
            (start <= aligned && aligned <= last).then_some((size, start, aligned))
        })?;
        self.remove(start, size);
        self.insert(start, aligned - start);
        self.insert(aligned + bytes, start + size - aligned - bytes);
        Some(aligned)
    }

    /// Frees a range that [`allocate`](Self::allocate) returned for `bytes`.
    pub(crate) fn free(&mut self, start: u64, bytes: u64) {
        let (mut start, mut size) = (start, bytes.next_multiple_of(self.unit).max(self.unit));
        debug_assert!(!self.sizes.contains_key(&start), "freed twice");
        let after = start + size;
        if !start.is_multiple_of(self.page)
            && let Some(&before) = self.starts.get(&start)
        {
            self.remove(before, start - before);
            (start, size) = (before, after - before);
        }
        if !after.is_multiple_of(self.page)
            && let Some(&length) = self.sizes.get(&after)
        {
            self.remove(after, length);
            size += length;
        }
        self.insert(start, size);
    }

    fn rounded(&self, bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(self.unit)
    }

    fn insert(&mut self, start: u64, size: u64) {
        if size > 0 {
            self.sizes.insert(start, size);
            self.starts.insert(start + size, start);
            self.by_size.insert((size, start));
        }
    }

    fn remove(&mut self, start: u64, size: u64) {
        self.sizes.remove(&start);
        self.starts.remove(&(start + size));
        self.by_size.remove(&(size, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::model::rng::Rng;

    /// The naive model: one flag for each unit.
    #[test]
    fn agrees_with_a_map_of_units() {
        const UNITS: usize = 256;
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let from_above = seed % 2 == 1;
            let mut space = AddressSpace::new(1024, 1024 + UNITS as u64 * 16, 16, from_above);
            let mut taken = [false; UNITS];
            let mut live: Vec<(usize, usize)> = Vec::new();
            for _ in 0..2000 {
                if rng.below(2) == 0 || live.is_empty() {
                    let (units, align) = (1 + rng.below(20) as usize, 1 << rng.below(4));
                    let bytes = units as u64 * 16 - rng.below(16);
                    let expected = best_fit(&taken, units, align, from_above);
                    let got = space.allocate(bytes, align as u64 * 16).map(|at| (at as usize - 1024) / 16);
                    assert_eq!(got, expected, "seed {seed}");
                    if let Some(at) = got {
                        taken[at..at + units].fill(true);
                        live.push((at, units));
                    }
                } else {
                    let (at, units) = live.swap_remove(rng.below(live.len() as u64) as usize);
                    space.free(1024 + at as u64 * 16, units as u64 * 16);
                    taken[at..at + units].fill(false);
                }
            }
            for (at, units) in live {
                space.free(1024 + at as u64 * 16, units as u64 * 16);
            }
            assert_eq!(space.sizes.len(), 1);
            assert_eq!(space.by_size.iter().copied().collect::<Vec<_>>(), [(UNITS as u64 * 16, 1024)]);
        }
    }

    fn best_fit(taken: &[bool], units: usize, align: usize, from_above: bool) -> Option<usize> {
        let mut best: Option<(usize, usize, usize)> = None;
        let mut start = 0;
        while start < taken.len() {
            if taken[start] {
                start += 1;
                continue;
            }
            let length = taken[start..].iter().take_while(|t| !**t).count();
            let base = 64; // the space starts at unit 64
            let lowest = (base + start).next_multiple_of(align) - base;
            let highest = (base + start + length).saturating_sub(units) / align * align;
            let aligned = if from_above { highest.saturating_sub(base) } else { lowest };
            if aligned >= start
                && aligned + units <= start + length
                && best.is_none_or(|(l, s, _)| (length, start) < (l, s))
            {
                best = Some((length, start, aligned));
            }
            start += length;
        }
        best.map(|(_, _, aligned)| aligned)
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let mut space = AddressSpace::new(0, 4096, 512, false);
        assert_eq!(space.allocate(u64::MAX, 512), None);
        assert_eq!(space.allocate(4097, 512), None);
        assert_eq!(space.allocate(4096, 512), Some(0));
        assert_eq!(space.allocate(1, 512), None);
    }
}
