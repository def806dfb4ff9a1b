//! The thresholds of the paged backing: when the pool takes memory instead of stitching, and how finely.
//!
//! "Bytes" beside a threshold are bytes taken over peak live, the mean over six logs after 40 passes, eight
//! perturbed copies of each (`long_run --passes 40 --copies 8`, simulated H200): 1.063 as it is, with a
//! spread of about 0.002.

/// How large handles are, and how many driver calls the pool spends to hold little memory.
///
/// A handle costs the same to create and to map whatever its size, and cannot be mapped in part: large ones
/// waste memory, small ones time. `docs/PAGES.md` holds the study behind these figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// The target: physical memory may exceed peak live by this many thousandths (`PoolOptions::slack`).
    pub(crate) slack: u64,
    /// Requests of fewer bytes are served from the small address range, whose handles are one granule each.
    pub(crate) small_bytes: u64,
    /// The small address range grows by this part of itself, so that it does not grow often …
    pub(crate) spans_share: u64,
    /// … but by at most this many bytes at a time.
    pub(crate) most_spans_at_once: u64,
    /// The largest handle for large blocks has this many bytes (4 MiB: bytes 1.059, but first passes with
    /// short kernels take up to 4 % longer) …
    pub(crate) handle_bytes: u64,
    /// … or the geometric mean of the request and peak live, over this (25: bytes 1.060, with more calls in
    /// first passes).
    pub(crate) handle_share: u64,
    /// A free end of a handle with fewer bytes is not worth a mapping.
    pub(crate) least_piece: u64,
    /// The pool keeps this many alias mappings, and a few for each handle.
    pub(crate) mappings: usize,
    /// Driver calls that a new pool may spend at once …
    pub(crate) first_calls: u64,
    /// … and one more for this many allocations and deallocations (without either: multistream's first pass
    /// takes 1.083 of live instead of 1.037), …
    pub(crate) operations_for_early_call: u64,
    /// … up to this many.
    pub(crate) early_calls: u64,
    /// All along it earns this many calls for each thousand operations (2: bytes 1.067, 6: 1.056), …
    pub(crate) calls_per_thousand: u64,
    /// … and saves at most this many for later (512: bytes 1.068, 4096: no better).
    pub(crate) most_saved_calls: u64,
    /// Each of these calls that it spends beyond what it earned gives a thousandth more slack (2 to 32: no
    /// effect), …
    pub(crate) calls_for_slack: u64,
    /// … up to this much slack.
    pub(crate) most_slack: u64,
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
            mappings: 8192,
            first_calls: 512,
            operations_for_early_call: 16,
            early_calls: 512,
            calls_per_thousand: 3,
            most_saved_calls: 1024,
            calls_for_slack: 8,
            most_slack: 100,
        }
    }
}

/// Driver calls that the pool has earned and spent to hold little memory. Growth for a new peak is not
/// counted: any pool has to make those calls.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct CallBudget {
    /// Allocations and deallocations of the pool so far, as last noted.
    operations: u64,
    spent: u64,
}

impl CallBudget {
    /// Notes how many allocations and deallocations there were: each earns a little.
    pub(super) fn note_operations(&mut self, policy: &Policy, operations: u64) {
        self.operations = operations;
        let earned = policy.earned(operations);
        // Debts that give no more slack are forgotten, or a busy time would leave nothing for a quiet one.
        let most_owed = policy.calls_for_slack * policy.most_slack;
        self.spent = self.spent.clamp(earned.saturating_sub(policy.most_saved_calls), earned + most_owed);
    }

    pub(super) fn spend(&mut self, calls: u64) {
        self.spent += calls;
    }

    /// Calls that may be spent now.
    pub(super) fn available(&self, policy: &Policy) -> u64 {
        policy.earned(self.operations).saturating_sub(self.spent)
    }

    /// Calls that may be spent now, without those that only a new pool has: a first pass should be quick.
    pub(super) fn available_later(&self, policy: &Policy) -> u64 {
        self.available(policy).min(policy.earned_steadily(self.operations))
    }

    /// Calls that were spent beyond what was earned.
    fn overdrawn(&self, policy: &Policy) -> u64 {
        self.spent.saturating_sub(policy.earned(self.operations))
    }
}

impl Policy {
    fn earned_steadily(&self, operations: u64) -> u64 {
        operations.saturating_mul(self.calls_per_thousand) / 1000
    }

    /// Driver calls that a pool has earned after this many operations.
    fn earned(&self, operations: u64) -> u64 {
        let early = (operations / self.operations_for_early_call).min(self.early_calls);
        self.first_calls + early + self.earned_steadily(operations)
    }

    /// The physical bytes that the pool aims to hold at most.
    pub(super) fn target(&self, peak_live: u64) -> u64 {
        peak_live + peak_live / 1000 * self.slack
    }

    /// The physical bytes up to which the pool grows rather than stitch blocks together.
    ///
    /// Where blocks of random sizes come and go at the peak, nearly each would have to be stitched, at some
    /// ten microseconds. Then the pool takes more memory instead, until best fit serves.
    pub(super) fn allowed(&self, peak_live: u64, budget: &CallBudget) -> u64 {
        let more = budget.overdrawn(self) / self.calls_for_slack;
        (peak_live + peak_live / 1000 * (self.slack + more)).min(self.most(peak_live))
    }

    /// The most physical bytes that the pool takes to save driver calls.
    pub(super) fn most(&self, peak_live: u64) -> u64 {
        peak_live + peak_live / 1000 * self.most_slack.max(self.slack)
    }

    /// How much a address range of this many bytes grows at a time for spans.
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
}
