//! A bump allocator for host metadata that lives as long as the pool. It uses growing pieces and huge pages.
//!
//! The tables of a pool with 10^5 blocks take some megabytes, and are read in random order. With pages of 4
//! KiB, most reads would miss the processor's address cache as well as its data caches.

use std::alloc::{self, Layout};

/// Bytes of the first piece: a small pool needs little. Each next piece is twice as large.
const FIRST_PIECE: usize = 16 << 10;

/// Bytes of a huge page, and of the largest pieces.
const HUGE_PAGE: usize = 2 << 20;

/// A bump allocator. It drops no values, so their types must not need a drop.
#[derive(Debug, Default)]
pub(crate) struct MetadataArena {
    pieces: Vec<(*mut u8, Layout)>,
    /// The bytes in use of the last piece.
    used: usize,
}

// SAFETY: this value owns the pieces.
unsafe impl Send for MetadataArena {}

impl MetadataArena {
    /// Allocates `count` contiguous default values, which live as long as the arena.
    pub(crate) fn allocate<T: Default>(&mut self, count: usize) -> *mut T {
        const { assert!(!std::mem::needs_drop::<T>() || cfg!(millpond_loom)) };
        let layout = Layout::array::<T>(count).expect("a table is far smaller than memory");
        let first = self.bytes(layout).cast::<T>();
        for index in 0..count {
            // SAFETY: the bytes have room for `count` values, and only this function has them yet.
            unsafe { first.add(index).write(T::default()) };
        }
        first
    }

    fn bytes(&mut self, layout: Layout) -> *mut u8 {
        let start = self.used.next_multiple_of(layout.align());
        match self.pieces.last() {
            Some((piece, of)) if start + layout.size() <= of.size() => {
                self.used = start + layout.size();
                // SAFETY: the start is inside the piece.
                unsafe { piece.add(start) }
            }
            _ => {
                self.used = layout.size();
                self.add_piece(layout)
            }
        }
    }

    /// Adds a piece with room for `first` at its start.
    fn add_piece(&mut self, first: Layout) -> *mut u8 {
        let next = self.pieces.last().map_or(FIRST_PIECE, |(_, last)| (last.size() * 2).min(HUGE_PAGE));
        let bytes = next.max(first.size());
        let align = if bytes.is_multiple_of(HUGE_PAGE) { HUGE_PAGE } else { 4096.max(first.align()) };
        let layout = Layout::from_size_align(bytes, align).expect("sizes are powers of two");
        // SAFETY: the size is not zero.
        let piece = unsafe { alloc::alloc(layout) };
        if piece.is_null() {
            alloc::handle_alloc_error(layout);
        }
        advise_huge_pages(piece, bytes);
        self.pieces.push((piece, layout));
        piece
    }
}

impl Drop for MetadataArena {
    fn drop(&mut self) {
        for (piece, layout) in self.pieces.drain(..) {
            // SAFETY: the piece came from the allocator with this layout.
            unsafe { alloc::dealloc(piece, layout) };
        }
    }
}

/// Asks the system for huge pages, if the bytes fill some.
pub(crate) fn advise_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let (first, whole) = huge_pages_in(start.addr(), bytes);
        // SAFETY: the bytes, which may be none, belong to the caller, and the advice does not change them. A
        // system that does not know the advice returns an error, which changes nothing.
        unsafe { libc::madvise(start.wrapping_add(first).cast(), whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, bytes);
}

/// Returns the offset of the first huge page, and the bytes of all huge pages that fit.
#[cfg(any(test, all(target_os = "linux", not(miri))))]
fn huge_pages_in(start: usize, bytes: usize) -> (usize, usize) {
    let first = start.next_multiple_of(HUGE_PAGE) - start;
    (first, bytes.saturating_sub(first) / HUGE_PAGE * HUGE_PAGE)
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_whole_huge_pages_are_asked_for() {
        const START: usize = 7 * HUGE_PAGE;
        assert_eq!(huge_pages_in(START, HUGE_PAGE - 1).1, 0);
        assert_eq!(huge_pages_in(START, HUGE_PAGE), (0, HUGE_PAGE));
        assert_eq!(huge_pages_in(START, 4 * HUGE_PAGE - 1), (0, 3 * HUGE_PAGE));
        assert_eq!(huge_pages_in(START + 4096, 4096).1, 0);
        assert_eq!(huge_pages_in(START + 4096, 2 * HUGE_PAGE - 4097).1, 0);
        assert_eq!(huge_pages_in(START + 4096, 3 * HUGE_PAGE), (HUGE_PAGE - 4096, 2 * HUGE_PAGE));
    }

    #[test]
    fn allocations_are_disjoint_and_aligned() {
        #[derive(Default)]
        #[repr(align(128))]
        struct Wide([u64; 32]);

        let mut arena = MetadataArena::default();
        let mut made: Vec<(usize, usize)> = Vec::new();
        for count in (1..200).map(|n| n * n % 97 + 1) {
            let wide = arena.allocate::<Wide>(count);
            // SAFETY: the arena allocated `count` values.
            assert!(unsafe { std::slice::from_raw_parts(wide, count) }.iter().all(|wide| wide.0 == [0; 32]));
            assert_eq!(wide.addr() % 128, 0);
            made.push((wide.addr(), count * size_of::<Wide>()));
            let small = arena.allocate::<u32>(3);
            made.push((small.addr(), 12));
        }
        made.sort_unstable();
        assert!(made.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(arena.pieces.len() < 20, "{} pieces", arena.pieces.len());
    }
}
