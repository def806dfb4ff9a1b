//! Counts the blocks of a log that overlap another live block.
//!
//! An ordered map of the live blocks would be searched three times for each block. Instead, rows wait until
//! there are many of them. Then one sort numbers their addresses, and a set of small numbers finds a block's
//! neighbours.

use millpond_engine::text::number_of;

use super::numbers::Numbers;
use crate::budget::{Budget, Exceeded};

/// The fewest rows that are counted together.
const FEWEST: usize = 1 << 14;

/// The most bytes in use for each waiting row and each live block, also while the rows are counted.
const ROW_BYTES: usize = 128;

/// A row that waits.
#[derive(Clone, Copy, Debug)]
struct Row {
    address: u64,
    /// The size of the allocated block; `None` if the row frees a block.
    bytes: Option<u64>,
    line: u64,
}

/// Counts blocks that overlapped a live block at another address when they were allocated.
#[derive(Default)]
pub(super) struct Overlaps {
    /// The live blocks before the first waiting row: addresses and sizes, in the order of the addresses.
    live: Vec<(u64, u64)>,
    waiting: Vec<Row>,
    /// The number of rows and blocks whose memory was taken from the budget.
    places: usize,
    count: u64,
    /// The line of the first block that overlaps another one.
    line: u64,
}

impl Overlaps {
    /// Adds the row of an allocation. If a live block has the same address, the new block replaces it.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn allocate(
        &mut self,
        address: u64,
        bytes: u64,
        line: u64,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        self.add(Row { address, bytes: Some(bytes), line }, budget)
    }

    /// Adds the row of a free.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn free(&mut self, address: u64, line: u64, budget: &mut Budget) -> Result<(), Exceeded> {
        self.add(Row { address, bytes: None, line }, budget)
    }

    fn add(&mut self, row: Row, budget: &mut Budget) -> Result<(), Exceeded> {
        // As many rows as live blocks are counted together, so that each row pays for one live block.
        if self.waiting.len() >= self.live.len().max(FEWEST) {
            self.count_waiting();
        }
        let places = self.live.len() + self.waiting.len() + 1;
        if places > self.places {
            budget.take((places - self.places) * ROW_BYTES)?;
            self.places = places;
        }
        self.waiting.push(row);
        Ok(())
    }

    /// Counts the overlaps of the waiting rows.
    fn count_waiting(&mut self) {
        let rows = std::mem::take(&mut self.waiting);
        let (addresses, numbers) = numbered(&self.live, &rows);
        let mut sizes = vec![0; addresses.len()];
        let mut live = Numbers::up_to(addresses.len());
        for (&(_, bytes), number) in self.live.iter().zip(&numbers) {
            sizes[*number as usize] = bytes;
            live.insert(*number as usize);
        }
        for (row, number) in rows.iter().zip(&numbers[self.live.len()..]) {
            let number = *number as usize;
            let Some(bytes) = row.bytes else {
                live.remove(number);
                continue;
            };
            let end = row.address.saturating_add(bytes);
            let reaches = |below: usize| addresses[below].saturating_add(sizes[below]) > row.address;
            if bytes > 0
                && (live.above(number).is_some_and(|above| addresses[above] < end)
                    || live.below(number).is_some_and(reaches))
            {
                if self.count == 0 {
                    self.line = row.line;
                }
                self.count += 1;
            }
            sizes[number] = bytes;
            live.insert(number);
        }
        self.live.clear();
        self.live.extend(live.iter().map(|number| (addresses[number], sizes[number])));
        self.waiting = rows;
        self.waiting.clear();
    }

    /// Ends all live blocks, because another log begins.
    pub(super) fn end_log(&mut self) {
        self.count_waiting();
        self.live.clear();
    }

    /// Returns a sentence about the overlaps and the figures, if there are any.
    pub(super) fn sentence(mut self) -> Option<String> {
        self.count_waiting();
        let blocks = match self.count {
            0 => return None,
            1 => "1 block overlaps a live block".to_owned(),
            count => format!("{} overlap live blocks", number_of(count, "block")),
        };
        Some(format!(
            "{blocks}, the first at line {}: the file's pointers are not the starts of its blocks, or frees \
             were logged late; all figures come from the sizes, not from the addresses",
            self.line
        ))
    }
}

/// Returns the different addresses in order, and the number of each block's and each row's address.
fn numbered(live: &[(u64, u64)], rows: &[Row]) -> (Vec<u64>, Vec<u32>) {
    let all = live.iter().map(|block| block.0).chain(rows.iter().map(|row| row.address));
    let mut order: Vec<(u64, u32)> = all.zip(0..).collect();
    order.sort_unstable();
    let mut addresses: Vec<u64> = Vec::with_capacity(order.len());
    let mut numbers = vec![0; order.len()];
    for (address, at) in order {
        if addresses.last() != Some(&address) {
            addresses.push(address);
        }
        numbers[at as usize] = addresses.len() as u32 - 1;
    }
    (addresses, numbers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Counts as [`Overlaps`] does, but compares each block with all live blocks. Returns the count and the
    /// first line.
    fn counted(rows: &[Row]) -> (u64, u64) {
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut count, mut first) = (0, 0);
        for row in rows {
            let Some(bytes) = row.bytes else {
                live.remove(&row.address);
                continue;
            };
            let others = live.iter().filter(|(start, _)| **start != row.address);
            // Of several blocks that begin before the end, only the last one counts.
            let last = others.filter(|(start, _)| **start < row.address.saturating_add(bytes)).max();
            if bytes > 0 && last.is_some_and(|(start, bytes)| start.saturating_add(*bytes) > row.address) {
                count += 1;
                first = if first == 0 { row.line } else { first };
            }
            live.insert(row.address, bytes);
        }
        (count, first)
    }

    fn rows() -> impl Strategy<Value = Vec<(bool, u64, u64)>> {
        // Addresses near 0 and near the last one, so that ends are beyond it.
        let address = prop_oneof![1_u64..40, (u64::MAX - 20)..=u64::MAX];
        let bytes = prop_oneof![8 => 0_u64..6, 1 => Just(u64::MAX)];
        prop::collection::vec((any::<bool>(), address, bytes), 0..300)
    }

    proptest! {
        #[test]
        fn as_many_overlap_as_a_comparison_with_all_blocks_finds(rows in rows(), each in 1_usize..50) {
            let rows = rows.iter().zip(2..).map(|(&(is_free, address, bytes), line)| Row {
                address,
                bytes: (!is_free).then_some(bytes),
                line,
            });
            let rows: Vec<Row> = rows.collect();
            let (mut overlaps, mut budget) = (Overlaps::default(), Budget::new(1 << 20));
            for (row, at) in rows.iter().zip(1..) {
                overlaps.add(*row, &mut budget).unwrap();
                if at % each == 0 {
                    overlaps.count_waiting();
                }
            }
            overlaps.count_waiting();
            prop_assert_eq!((overlaps.count, overlaps.line), counted(&rows));
        }
    }

    #[test]
    fn rows_wait_in_memory_of_the_budget() {
        let (mut overlaps, mut budget) =
            (Overlaps::default(), Budget::new(((FEWEST + 1) * ROW_BYTES) as u64));
        for number in 0..3 * FEWEST as u64 {
            overlaps.allocate(1, 1, number, &mut budget).unwrap_or_else(|error| panic!("{number}: {error}"));
            overlaps.free(1, number, &mut budget).unwrap();
        }
        let error =
            (1..=FEWEST as u64 * 2).find_map(|address| overlaps.allocate(address, 1, 1, &mut budget).err());
        assert!(error.is_some());
    }
}
