use crate::heap::Heap;

const WIDTH: usize = 80;

/// Memory as letters, in address order: `#` in use, `+` partly, `.` free; `None` where there is none.
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

/// Adds `bytes` from place `at` on to the cells that they fall into.
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
