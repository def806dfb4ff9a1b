/// How large handles are, and when the pool grows instead of putting together what it has.
///
/// A handle costs the same to create and to map whatever its size, and cannot be mapped in part. Large ones
/// waste memory, small ones time. `docs/PAGES.md` holds the study behind these figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) struct Policy {
    /// How far physical memory may exceed the most that was in use, in thousandths, before blocks are put
    /// together in views.
    pub(in crate::pool) slack: u64,
    /// Requests of fewer bytes are served from the small line, of handles as small as can be.
    pub(in crate::pool) small_bytes: u64,
    /// New handles for large blocks may have so many bytes …
    pub(in crate::pool) handle_bytes: u64,
    /// … or the geometric mean of the request and the most that was in use, over this.
    pub(in crate::pool) handle_share: u64,
    /// Free ends of handles with fewer bytes are not worth a mapping.
    pub(in crate::pool) least_piece: u64,
    /// A hole inside a handle goes before one at a border up to this size, in hundredths of the request.
    pub(in crate::pool) inside: u64,
    /// So many mappings in views are kept, and a few for each handle.
    pub(in crate::pool) mappings: usize,
    /// So many mappings in views are always worth the memory that they save …
    pub(in crate::pool) free_moves: u64,
    /// … and one more for so many allocations and deallocations.
    pub(in crate::pool) operations_for_move: u64,
    /// The slack where more mappings were made than that.
    pub(in crate::pool) slack_when_busy: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            slack: 4,
            small_bytes: 2 << 20,
            handle_bytes: 6 << 20,
            handle_share: 17,
            least_piece: 512 << 10,
            inside: 125,
            mappings: 8192,
            free_moves: 1024,
            operations_for_move: 4000,
            slack_when_busy: 100,
        }
    }
}

impl Policy {
    /// How many physical bytes the pool may have before it puts blocks together, after so many mappings in
    /// views and so many operations.
    ///
    /// Where blocks of random sizes come and go at the peak, nearly each would have to be put together, at
    /// some ten microseconds. Then the pool takes more memory instead, until best fit serves.
    pub(super) fn allowed(&self, peak_live: u64, moves: u64, operations: u64) -> u64 {
        let slack = if self.is_busy(moves, operations) { self.slack_when_busy } else { self.slack };
        peak_live + peak_live / 1000 * slack
    }

    /// Whether more mappings in views were made than so many operations are worth.
    pub(super) fn is_busy(&self, moves: u64, operations: u64) -> bool {
        moves > self.free_moves + operations / self.operations_for_move
    }

    /// The most bytes of a new handle for a large block.
    pub(super) fn largest_handle(&self, request: u64, peak_live: u64, granularity: u64) -> u64 {
        let mean = (u128::from(request) * u128::from(peak_live)).isqrt() as u64;
        (mean / self.handle_share).max(self.handle_bytes).max(granularity) / granularity * granularity
    }

    /// The largest hole inside a handle that goes before one at a border.
    pub(super) fn inside_upto(&self, request: u64) -> u64 {
        request + (request / 100).saturating_mul(self.inside.saturating_sub(100))
    }
}
