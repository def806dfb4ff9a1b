//! Memory of the host for what is made once and lives as long as the pool: side by side, in pieces that grow,
//! and large pieces in huge pages.
//!
//! The tables of a pool with 10^5 blocks have some megabytes, which are looked at in no order: with pages of
//! 4 KiB most looks would miss the processor's address cache besides its data caches.

use std::alloc::{self, Layout};

/// The first piece; each further one is twice as large, up to [`LARGEST`].
const SMALLEST: usize = 16 << 10;

/// Pieces of so many bytes are huge pages, where the system has them.
const LARGEST: usize = 2 << 20;

/// See the module. What is made is never dropped: it must not need to be.
#[derive(Debug, Default)]
pub(crate) struct MetadataArena {
    pieces: Vec<(*mut u8, Layout)>,
    /// Bytes of the last piece that were used.
    used: usize,
}

// SAFETY: the pieces are this value's own.
unsafe impl Send for MetadataArena {}

impl MetadataArena {
    /// Makes so many in a row; they live as long as this.
    pub(crate) fn make<T: Default>(&mut self, count: usize) -> *mut T {
        const { assert!(!std::mem::needs_drop::<T>() || cfg!(millpond_loom)) };
        let layout = Layout::array::<T>(count).expect("a table is far smaller than memory");
        let first = self.bytes(layout).cast::<T>();
        for index in 0..count {
            // SAFETY: the bytes are room for so many, and nobody has them yet.
            unsafe { first.add(index).write(T::default()) };
        }
        first
    }

    fn bytes(&mut self, layout: Layout) -> *mut u8 {
        let start = self.used.next_multiple_of(layout.align());
        match self.pieces.last() {
            Some((piece, of)) if start + layout.size() <= of.size() => {
                self.used = start + layout.size();
                // SAFETY: it is inside the piece.
                unsafe { piece.add(start) }
            }
            _ => {
                self.used = layout.size();
                self.add_piece(layout)
            }
        }
    }

    /// A new piece, with room for this at its start.
    fn add_piece(&mut self, for_layout: Layout) -> *mut u8 {
        let larger = self.pieces.last().map_or(SMALLEST, |(_, last)| (last.size() * 2).min(LARGEST));
        let bytes = larger.max(for_layout.size());
        let align = if bytes.is_multiple_of(LARGEST) { LARGEST } else { 4096.max(for_layout.align()) };
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

/// Asks the system for huge pages, where it has them and the bytes fill some.
pub(crate) fn advise_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let first = start.align_offset(LARGEST);
        if first < bytes && bytes - first >= LARGEST {
            let whole = (bytes - first) / LARGEST * LARGEST;
            // SAFETY: the bytes are the caller's, and the advice changes nothing in them. Where the system
            // does not know it, all stays as it was.
            unsafe { libc::madvise(start.add(first).cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, bytes);
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_apart_and_aligned() {
        #[derive(Default)]
        #[repr(align(128))]
        struct Wide([u64; 32]);

        let mut slabs = MetadataArena::default();
        let mut made: Vec<(usize, usize)> = Vec::new();
        for count in (1..200).map(|n| n * n % 97 + 1) {
            let wide = slabs.make::<Wide>(count);
            // SAFETY: so many were made.
            assert!(unsafe { std::slice::from_raw_parts(wide, count) }.iter().all(|wide| wide.0 == [0; 32]));
            assert_eq!(wide.addr() % 128, 0);
            made.push((wide.addr(), count * size_of::<Wide>()));
            let small = slabs.make::<u32>(3);
            made.push((small.addr(), 12));
        }
        made.sort_unstable();
        assert!(made.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(slabs.pieces.len() < 20, "{} pieces", slabs.pieces.len());
    }
}
