//! The rule by which plain memory (`cuMemAlloc`) takes pages of 2 MiB, which blocks share.
//!
//! As measured on an H200 with `cuMemGetInfo`:
//! - a block of up to 2 MiB, its size rounded up to a multiple of 512, lies in one page that blocks of any
//!   such size share, and never across two: so a page holds 20 blocks of 100 KiB, two of 1 MiB, one of 1 MiB
//!   plus 1 B and small ones beside it;
//! - a larger one has pages of its own: its size is rounded up to a multiple of 2 MiB;
//! - a page goes back to the device with its last block.

use std::ops::Range;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 2 << 20;

/// Blocks that share a page begin and end at multiples of this many bytes.
pub(crate) const UNIT: u64 = 512;

/// Whether a block of this size shares a page.
pub(crate) const fn shares(bytes: u64) -> bool {
    bytes <= PAGE
}

/// The bytes of the pages of a block that shares none. A size that no device has is returned unchanged.
pub(crate) const fn own_pages(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(PAGE) {
        Some(rounded) => rounded,
        None => bytes,
    }
}

/// The parts of `part` bytes each, by number, that a range of addresses lies in.
pub(crate) const fn touched(start: u64, bytes: u64, part: u64) -> Range<u64> {
    start / part..start.saturating_add(bytes).div_ceil(part)
}
