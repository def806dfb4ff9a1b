//! Draws the memory of a pool as one line of text, for the out-of-memory report.

use crate::heap::Heap;

/// The cells of the line.
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

/// Adds the range of `bytes` from `at` on to the cells that it covers.
fn spread(cells: &mut [u64], at: u64, bytes: u64, total: u64) {
    let cell = total.div_ceil(cells.len() as u64);
    let (mut at, end) = (at, at + bytes);
    while at < end {
        let index = ((at / cell) as usize).min(cells.len() - 1);
        let upto = ((index as u64 + 1) * cell).min(end).max(at + 1);
        cells[index] += upto - at;
        at = upto;
    }
}
