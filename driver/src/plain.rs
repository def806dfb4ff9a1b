//! The rule by which plain memory (`cuMemAlloc`) takes pages of 2 MiB, which blocks share.
//!
//! As measured on an H200 with `cuMemGetInfo`:
//! - A block of up to 2 MiB lies within one page, and its size is rounded up to a multiple of 512. Blocks of
//!   any such size share a page: 20 of 100 KiB, or two of 1 MiB, or one of 1 MiB plus 1 B along with small
//!   ones.
//! - A larger block has its own pages: its size is rounded up to a multiple of 2 MiB.
//! - A page returns to the device with its last block.

use std::ops::Range;

/// A page's size in bytes.
pub(crate) const PAGE: u64 = 2 << 20;

/// Blocks that share a page start and end at multiples of this many bytes.
pub(crate) const UNIT: u64 = 512;

/// Whether a block of this size shares a page.
pub(crate) const fn shares(bytes: u64) -> bool {
    bytes <= PAGE
}

/// The bytes of a block that has its own pages. A size that no device has is returned unchanged.
pub(crate) const fn own_pages(bytes: u64) -> u64 {
    match bytes.checked_next_multiple_of(PAGE) {
        Some(rounded) => rounded,
        None => bytes,
    }
}

/// The numbers of the parts, of `part` bytes each, that a range of addresses touches.
pub(crate) const fn touched(start: u64, bytes: u64, part: u64) -> Range<u64> {
    start / part..start.saturating_add(bytes).div_ceil(part)
}
