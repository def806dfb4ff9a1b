//! Adds up small blocks between marks, which are chosen events. At each mark, the sums are exact.

use rustc_hash::FxHashMap;

use super::census::Sum;

/// The number of equal parts into which marks divide the events at first.
const PARTS: usize = 2048;
/// With fewer parts than this, the sums would show nothing.
const FEWEST: usize = 32;
/// The most sums that are kept.
const LIMIT: usize = 600_000;

/// The blocks of one origin that began between the same two marks, and ended between the same two marks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Band {
    pub(super) origin: u32,
    /// The first mark after which the blocks were live.
    pub(super) from: u16,
    /// The first later mark after which the blocks were no longer live. If there is none, this is the number
    /// of marks.
    pub(super) to: u16,
}

/// Sums of small blocks, exact at marks.
#[derive(Debug)]
pub(super) struct Bands {
    /// The events of the marks, in order, and whether the mark must stay.
    marks: Vec<(u32, bool)>,
    events: usize,
    limit: usize,
    sums: FxHashMap<Band, Sum>,
}

impl Bands {
    /// Returns an empty list of sums. It has marks at the given events, at equal distances, and at the last
    /// event.
    pub(super) fn new(events: usize, fixed: impl Iterator<Item = usize>) -> Self {
        let last = events.saturating_sub(1);
        let mut marks: Vec<(u32, bool)> =
            (1..PARTS).map(|part| ((part * events / PARTS) as u32, false)).collect();
        marks.extend(fixed.chain([last]).map(|event| (event.min(last) as u32, true)));
        // If two marks are at the same event, the mark that must stay comes first.
        marks.sort_unstable_by_key(|&(event, is_fixed)| (event, !is_fixed));
        marks.dedup_by_key(|&mut (event, _)| event);
        Self { marks, events, limit: LIMIT, sums: FxHashMap::default() }
    }

    /// Adds a block. If the block is live at no mark, no sum changes.
    pub(super) fn add(&mut self, origin: u32, start: usize, end: usize, bytes: u64) {
        let (from, to) = (self.first_from(start), self.first_from(end));
        if from == to {
            return;
        }
        self.sums.entry(Band { origin, from, to }).or_default().add(bytes);
        if self.sums.len() > self.limit {
            self.halve();
        }
    }

    /// Returns the first mark at or after an event. A block that ends exactly at a mark is not live after the
    /// mark.
    fn first_from(&self, event: usize) -> u16 {
        if event >= self.events {
            return self.marks.len() as u16;
        }
        self.marks.partition_point(|&(mark, _)| (mark as usize) < event) as u16
    }

    /// Removes every second mark that may be removed.
    fn halve(&mut self) {
        let before = std::mem::take(&mut self.marks);
        let mut keeps = false;
        self.marks = before.clone();
        self.marks.retain(|&(_, is_fixed)| {
            keeps = if is_fixed { keeps } else { !keeps };
            is_fixed || keeps
        });
        if self.marks.len() < FEWEST || self.marks.len() == before.len() {
            self.limit = usize::MAX;
        }
        let sums = std::mem::take(&mut self.sums);
        let place = |at: u16| match before.get(usize::from(at)) {
            Some(&(event, _)) => self.first_from(event as usize),
            None => self.marks.len() as u16,
        };
        let mut fewer: FxHashMap<Band, Sum> = FxHashMap::default();
        for (band, sum) in sums {
            let (from, to) = (place(band.from), place(band.to));
            if from < to {
                let all = fewer.entry(Band { from, to, ..band }).or_default();
                all.blocks += sum.blocks;
                all.bytes = all.bytes.saturating_add(sum.bytes);
            }
        }
        self.sums = fewer;
    }

    /// Returns the events of the marks.
    pub(super) fn marks(&self) -> impl Iterator<Item = u64> {
        self.marks.iter().map(|&(event, _)| u64::from(event))
    }

    /// Returns the sums in order.
    pub(super) fn sums(&self) -> Vec<(Band, Sum)> {
        let mut sums: Vec<(Band, Sum)> = self.sums.iter().map(|(band, sum)| (*band, *sum)).collect();
        sums.sort_unstable_by_key(|(band, _)| *band);
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that are live after a mark.
    fn live(bands: &Bands, mark: usize) -> u64 {
        let is_live = |band: &Band| usize::from(band.from) <= mark && mark < usize::from(band.to);
        bands.sums().iter().filter(|(band, _)| is_live(band)).map(|(_, sum)| sum.bytes).sum()
    }

    #[test]
    fn sums_are_exact_at_each_mark_however_many_marks_stay() {
        let events = 100_000;
        let mut random = 7_usize;
        let mut step = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        let blocks: Vec<(usize, usize, u64)> = (0..20_000)
            .map(|_| {
                let start = step(events - 1);
                let end = (start + 1 + step(30_000)).min(events);
                (start, end, step(5000) as u64)
            })
            .collect();
        let mut bands = Bands::new(events, [12_345, 77_777].into_iter());
        bands.limit = 3000;
        for &(start, end, bytes) in &blocks {
            bands.add(0, start, end, bytes);
        }
        let marks: Vec<u64> = bands.marks().collect();
        assert!(marks.len() < PARTS && marks.contains(&12_345) && marks.contains(&77_777), "{}", marks.len());
        assert_eq!(marks.last(), Some(&99_999));
        assert!(bands.sums().len() <= 3000, "{}", bands.sums().len());
        for (at, &mark) in marks.iter().enumerate() {
            let is_live =
                |&&(start, end, _): &&(usize, usize, u64)| start as u64 <= mark && mark < end as u64;
            let exact: u64 = blocks.iter().filter(is_live).map(|(_, _, bytes)| bytes).sum();
            assert_eq!(live(&bands, at), exact, "after event {mark}");
        }
    }
}
