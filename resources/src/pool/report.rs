use std::fmt::Write as _;

use millpond_core::format_bytes;

use super::heap::Heap;
use super::heaps::Heaps;
use crate::ordered::{ANYONE, Request, Store};

const PICTURE_WIDTH: usize = 80;

/// What an out-of-memory error says: what there is, why it does not fit, and what would help.
pub(super) fn describe(heaps: &Heaps, request: &Request) -> String {
    let totals = heaps.totals();
    let free = totals.bytes_reserved - totals.bytes_in_use;
    let largest = heaps.largest_free_block();
    let mut out = format!(
        "the pool holds {} in {} regions, {} in use in {} blocks, {} free, the largest free block {}",
        format_bytes(totals.bytes_reserved),
        totals.regions,
        format_bytes(totals.bytes_in_use),
        totals.blocks_in_use,
        format_bytes(free),
        format_bytes(largest),
    );
    let maximum = Some(heaps.maximum_bytes).filter(|bytes| *bytes != u64::MAX);
    if let Some(maximum) = maximum {
        let _ = write!(out, "; its maximum is {}", format_bytes(maximum));
    }
    let _ = write!(out, "; {}", advice(heaps, request, free, largest));
    for (owner, blocks, bytes, largest) in heaps.large.heaps().iter().flat_map(Heap::free_by_owner) {
        let name = if owner == ANYONE { "for any stream".to_owned() } else { format!("owner {owner}") };
        write_owner(&mut out, &name, blocks, bytes, largest);
    }
    if totals.bytes_reserved > 0 {
        let _ = write!(
            out,
            "\n  [{}] #: in use, +: partly, .: free",
            picture(heaps.large.heaps(), PICTURE_WIDTH)
        );
    }
    out
}

fn advice(heaps: &Heaps, request: &Request, free: u64, largest: u64) -> String {
    let short = request.bytes.saturating_sub(largest);
    if free >= request.bytes {
        format!(
            "the free memory would be enough but lies in pieces: {} more in one piece would do; \
             a larger initial size keeps blocks together",
            format_bytes(short)
        )
    } else if heaps.large.bytes_reserved().saturating_add(request.bytes) > heaps.maximum_bytes {
        format!("it is {} short; raise the maximum, or free memory", format_bytes(request.bytes - free))
    } else {
        format!("it is {} short, and the device has no more; free memory", format_bytes(request.bytes - free))
    }
}

/// The pool's memory as `width` letters, in address order: `#` in use, `+` partly, `.` free.
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

/// One line per owner for the report.
fn write_owner(out: &mut String, name: &str, blocks: u64, bytes: u64, largest: u64) {
    let _ = write!(
        out,
        "\n  {name}: {} in {blocks} free blocks, the largest {}",
        format_bytes(bytes),
        format_bytes(largest)
    );
}
