//! Draws the memory of a pool as one line of text, for the out-of-memory report.

use crate::heap::Heap;

/// The number of cells in the line.
const WIDTH: usize = 80;

/// Returns the memory in address order, each cell as `#` (in use), `+` (partly in use) or `.` (free); `None`
/// if the pool holds no memory.
pub(super) fn map(heaps: &[Heap]) -> Option<String> {
    heaps.iter().any(|heap| heap.bytes_reserved > 0).then(|| picture(heaps, WIDTH))
}

fn picture(heaps: &[Heap], width: usize) -> String {
    let total = heaps.iter().map(|heap| heap.bytes_reserved).sum::<u64>().max(1);
    let mut used = vec![0u64; width];
    let mut at = 0u64;
    let chunks = |heap| Heap::regions(heap).iter().flat_map(|region| Heap::region_chunks(heap, region));
    for chunk in heaps.iter().flat_map(chunks) {
        if chunk.is_in_use() {
            spread(&mut used, at, chunk.bytes, total);
        }
        at += chunk.bytes;
    }
    let cell = total.div_ceil(width as u64);
    let letter = |bytes: &u64| match *bytes {
        0 => '.',
        most if most * 10 >= cell * 9 => '#',
        _ => '+',
    };
    used.iter().map(letter).collect()
}

/// Adds a range, `bytes` from `at` on, to the cells that it covers.
fn spread(cells: &mut [u64], at: u64, bytes: u64, total: u64) {
    let (cell, end) = (total.div_ceil(cells.len() as u64), at + bytes);
    for index in at / cell..end.div_ceil(cell) {
        let start = index * cell;
        cells[index as usize] += end.min(start + cell) - at.max(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream_order::ANY_STREAM;

    #[test]
    fn only_a_pool_that_holds_memory_has_a_map() {
        let mut heap = Heap::new(1);
        assert_eq!(map(std::slice::from_ref(&heap)), None);
        heap.add_region(1 << 40, 2500 << 8, ANY_STREAM, 0);
        assert_eq!(map(&[Heap::new(1), heap]), Some(".".repeat(WIDTH)));
    }

    #[test]
    fn each_cell_shows_how_much_of_it_is_in_use() {
        let mut heap = Heap::new(1);
        let mut chunk = heap.add_region(1 << 40, 2500 << 8, ANY_STREAM, 0);
        assert_eq!(picture(std::slice::from_ref(&heap), 10), "..........");
        // Of cells of 250 units each: 240 to 250, 500 to 1120, 1374 to 1375, and 1500 to 1725.
        for (from, to) in [(240, 250), (500, 1120), (1374, 1375), (1500, 1725)] {
            let found = heap.chunk_from(chunk, (1 << 40) + (from << 8));
            chunk = heap.take_at(found, (1 << 40) + (from << 8), (to - from) << 8);
        }
        assert_eq!(picture(&[heap], 10), "+.##++#...");
    }
}
