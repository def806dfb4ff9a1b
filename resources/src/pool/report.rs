use std::fmt::Write as _;

use millpond_core::format_bytes;

use super::heap::{Heap, write_owner};
use crate::ordered::{ANYONE, Request, Store};

const PICTURE_WIDTH: usize = 80;

/// What an out-of-memory error says: what there is, why it does not fit, and what would help.
pub(super) fn describe(heap: &Heap, request: &Request) -> String {
    let totals = heap.totals();
    let free = totals.bytes_reserved - totals.bytes_in_use;
    let largest = heap.largest_free_block();
    let mut out = format!(
        "the pool holds {} in {} regions, {} in use in {} blocks, {} free, the largest free block {}",
        format_bytes(totals.bytes_reserved),
        totals.regions,
        format_bytes(totals.bytes_in_use),
        totals.blocks_in_use,
        format_bytes(free),
        format_bytes(largest),
    );
    if let Some(maximum) = heap.maximum_bytes() {
        let _ = write!(out, "; its maximum is {}", format_bytes(maximum));
    }
    let _ = write!(out, "; {}", advice(heap, request, free, largest));
    for (owner, blocks, bytes, largest) in heap.free_by_owner() {
        let name = if owner == ANYONE { "for any stream".to_owned() } else { format!("owner {owner}") };
        write_owner(&mut out, &name, blocks, bytes, largest);
    }
    if totals.bytes_reserved > 0 {
        let _ = write!(out, "\n  [{}] #: in use, +: partly, .: free", heap.picture(PICTURE_WIDTH));
    }
    out
}

fn advice(heap: &Heap, request: &Request, free: u64, largest: u64) -> String {
    let short = request.bytes.saturating_sub(largest);
    if free >= request.bytes {
        format!(
            "the free memory would be enough but lies in pieces: {} more in one piece would do; \
             a larger initial size keeps blocks together",
            format_bytes(short)
        )
    } else if heap
        .maximum_bytes()
        .is_some_and(|maximum| heap.totals().bytes_reserved + request.bytes > maximum)
    {
        format!("it is {} short; raise the maximum, or free memory", format_bytes(request.bytes - free))
    } else {
        format!("it is {} short, and the device has no more; free memory", format_bytes(request.bytes - free))
    }
}
