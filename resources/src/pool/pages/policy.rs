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
    /// The small line grows by this part of it …
    pub(in crate::pool) spans_share: u64,
    /// … up to so many bytes.
    pub(in crate::pool) most_spans_at_once: u64,
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
    /// So many mappings in views are always worth the memory that they save, …
    pub(in crate::pool) first_moves: u64,
    /// … and one more for so many allocations and deallocations, …
    pub(in crate::pool) operations_for_first_move: u64,
    /// … up to so many; …
    pub(in crate::pool) free_moves: u64,
    /// … from then on one for so many.
    pub(in crate::pool) operations_for_move: u64,
    /// So many mappings beyond what is worth it give a thousandth more slack, …
    pub(in crate::pool) moves_for_slack: u64,
    /// … up to this.
    pub(in crate::pool) slack_when_busy: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            slack: 4,
            small_bytes: 2 << 20,
            spans_share: 64,
            most_spans_at_once: 32 << 20,
            handle_bytes: 6 << 20,
            handle_share: 17,
            least_piece: 512 << 10,
            inside: 125,
            mappings: 8192,
            first_moves: 256,
            operations_for_first_move: 32,
            free_moves: 768,
            operations_for_move: 4000,
            moves_for_slack: 4,
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
        let free = self.first_moves + operations / self.operations_for_first_move;
        let worth = free.min(self.free_moves) + operations / self.operations_for_move;
        let more = moves.saturating_sub(worth) / self.moves_for_slack;
        peak_live + peak_live / 1000 * (self.slack + more).min(self.slack_when_busy)
    }

    /// How much a line of so many bytes grows at a time for spans: a small part of it, so that it does not
    /// grow often.
    pub(super) fn spans_at_once(&self, line_bytes: u64, granularity: u64) -> u64 {
        (line_bytes / self.spans_share).clamp(granularity, self.most_spans_at_once.max(granularity))
            / granularity
            * granularity
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
