//! Says what driver calls the pool may spend to hold less memory, and how large handles are.

use crate::tuning::Policy;

/// Driver calls that the pool has earned and spent to hold less memory. Growth for a new peak is not counted:
/// any pool has to make those calls.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct CallBudget {
    /// Allocations and deallocations of the pool so far, when they were last noted.
    operations: u64,
    spent: u64,
}

impl CallBudget {
    /// Notes the number of allocations and deallocations so far: each earns a part of a call.
    pub(super) fn note_operations(&mut self, policy: &Policy, operations: u64) {
        self.operations = operations;
        let earned = policy.earned(operations);
        // Calls overdrawn beyond the most slack are forgiven, or a busy phase would leave no calls to a quiet
        // one.
        let most_owed = policy.calls_for_slack * policy.most_slack;
        self.spent = self.spent.clamp(earned.saturating_sub(policy.most_saved_calls), earned + most_owed);
    }

    pub(super) fn spend(&mut self, calls: u64) {
        self.spent += calls;
    }

    /// Returns the calls that may be spent now.
    pub(super) fn available(&self, policy: &Policy) -> u64 {
        policy.earned(self.operations).saturating_sub(self.spent)
    }

    /// Returns the calls that may be spent now, without those that only a new pool has: a first pass should
    /// be quick.
    pub(super) fn available_later(&self, policy: &Policy) -> u64 {
        self.available(policy).min(policy.earned_steadily(self.operations))
    }

    /// Returns the calls that were spent beyond those earned.
    fn overdrawn(&self, policy: &Policy) -> u64 {
        self.spent.saturating_sub(policy.earned(self.operations))
    }
}

impl Policy {
    fn earned_steadily(&self, operations: u64) -> u64 {
        operations.saturating_mul(self.calls_per_thousand) / 1000
    }

    /// Returns the driver calls that a pool has earned after this many operations.
    fn earned(&self, operations: u64) -> u64 {
        let early = (operations / self.operations_for_early_call).min(self.early_calls);
        self.first_calls + early + self.earned_steadily(operations)
    }

    /// Returns the physical bytes that the pool aims not to exceed.
    pub(super) fn target(&self, peak_live: u64) -> u64 {
        peak_live + peak_live / 1000 * self.slack
    }

    /// Returns the physical bytes up to which the pool grows rather than stitch blocks.
    ///
    /// Where a program allocates and frees blocks of random sizes at its peak, nearly each block would have
    /// to be stitched, at about ten microseconds each. The pool then takes more memory instead, until best
    /// fit serves.
    pub(super) fn allowed(&self, peak_live: u64, budget: &CallBudget) -> u64 {
        let more = budget.overdrawn(self) / self.calls_for_slack;
        (peak_live + peak_live / 1000 * (self.slack + more)).min(self.most(peak_live))
    }

    /// Returns the most physical bytes that the pool takes to save driver calls.
    pub(super) fn most(&self, peak_live: u64) -> u64 {
        peak_live + peak_live / 1000 * self.most_slack.max(self.slack)
    }

    /// Returns the bytes by which the small address range, of `range_bytes` now, grows at a time.
    pub(super) fn spans_at_once(&self, range_bytes: u64, granularity: u64) -> u64 {
        (range_bytes / self.spans_share).clamp(granularity, self.most_spans_at_once.max(granularity))
            / granularity
            * granularity
    }

    /// Returns the most bytes of a new handle for a large block.
    pub(super) fn largest_handle(&self, request: u64, peak_live: u64, granularity: u64) -> u64 {
        let mean = (u128::from(request) * u128::from(peak_live)).isqrt() as u64;
        (mean / self.handle_share).max(self.handle_bytes).max(granularity) / granularity * granularity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_earn_calls_and_only_so_many_may_be_owed() {
        let policy = Policy::default();
        let (first, early) = (policy.first_calls, policy.early_calls);
        let tenth = 10 * policy.operations_for_early_call;
        let later = 1000 * policy.calls_per_thousand;
        for (operations, earned) in [(0, first), (tenth, first + 10), (1_000_000, first + early + later)] {
            assert_eq!(policy.earned(operations), earned, "after {operations} operations");
        }
        let mut budget = CallBudget::default();
        budget.spend(1_000_000);
        budget.note_operations(&policy, 0);
        assert_eq!(budget.overdrawn(&policy), policy.calls_for_slack * policy.most_slack);
    }
}
