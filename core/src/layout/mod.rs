//! The size and the alignment of a request.

mod checked;

/// The alignment of every block, in bytes, unless the request asks for a larger alignment. Memory from CUDA's
/// own allocation functions has at least the same alignment.
pub const ALLOCATION_ALIGNMENT: u64 = 256;

/// Rounds `bytes` up to a multiple of `alignment`, which is a power of two. Returns `None` if the result
/// overflows.
///
/// ```
/// assert_eq!(millpond_core::align_up(1000, 256), Some(1024));
/// assert_eq!(millpond_core::align_up(u64::MAX, 256), None);
/// ```
pub const fn align_up(bytes: u64, alignment: u64) -> Option<u64> {
    match bytes.checked_add(alignment - 1) {
        Some(sum) => Some(sum & !(alignment - 1)),
        None => None,
    }
}

/// The size and the alignment of a request.
///
/// Pass the same layout to `allocate` and to the `deallocate` of the same block.
///
/// ```
/// use millpond_core::Layout;
/// let layout = Layout::new(1000);
/// assert_eq!((layout.bytes(), layout.alignment()), (1000, 256));
/// assert!(Layout::with_alignment(64, 4096).is_ok());
/// assert!(Layout::with_alignment(64, 768).is_err()); // not a power of two
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    bytes: u64,
    alignment: u64,
}

impl Layout {
    /// The largest size of a request in bytes: 32 PiB, far more than any device has. Every resource refuses a
    /// larger request. So sums of sizes and alignments do not overflow.
    pub const MOST_BYTES: u64 = 1 << 55;

    /// Creates a layout of `bytes` bytes with the alignment [`ALLOCATION_ALIGNMENT`].
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, alignment: ALLOCATION_ALIGNMENT }
    }

    /// Returns the size in bytes, as requested and not rounded.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the alignment in bytes: a power of two, at least [`ALLOCATION_ALIGNMENT`].
    #[inline]
    pub const fn alignment(self) -> u64 {
        self.alignment
    }

    /// Returns the size rounded up to a multiple of [`ALLOCATION_ALIGNMENT`]; `None` if the size exceeds
    /// [`MOST_BYTES`](Self::MOST_BYTES).
    pub const fn rounded_bytes(self) -> Option<u64> {
        match align_up(self.bytes, ALLOCATION_ALIGNMENT) {
            Some(bytes) if bytes <= Self::MOST_BYTES => Some(bytes),
            _ => None,
        }
    }

    /// Returns the layout for an allocator of the host; `None` if no address space is that large.
    pub(crate) fn of_host(self) -> Option<std::alloc::Layout> {
        let (bytes, alignment) = (usize::try_from(self.bytes).ok()?, usize::try_from(self.alignment).ok()?);
        std::alloc::Layout::from_size_align(bytes, alignment).ok()
    }

    /// Returns a layout of the same size with the alignment [`ALLOCATION_ALIGNMENT`].
    #[must_use]
    pub const fn at_base_alignment(self) -> Self {
        Self::new(self.bytes)
    }
}
