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

    /// Ends a plan that spent calls and was not run.
    pub(super) fn give_back(&mut self, calls: u64) {
        self.spent = self.spent.saturating_sub(calls);
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

    #[test]
    fn calls_are_saved_up_to_the_most() {
        let policy = Policy { most_saved_calls: 100, first_calls: 30, early_calls: 0, ..Policy::default() };
        let mut budget = CallBudget::default();
        assert_eq!((budget.available(&policy), budget.available_later(&policy)), (30, 0));
        for (operations, steady) in [(10_000, 30), (20_000, 60), (100_000, 300)] {
            budget.note_operations(&policy, operations);
            let available = (30 + steady).min(100);
            assert_eq!(budget.available(&policy), available, "after {operations} operations");
            assert_eq!(budget.available_later(&policy), available.min(steady));
        }
        budget.spend(60);
        assert_eq!((budget.available(&policy), budget.overdrawn(&policy)), (40, 0));
        budget.spend(45);
        assert_eq!((budget.available(&policy), budget.overdrawn(&policy)), (0, 5));
    }

    #[test]
    fn overdrawn_calls_give_slack_up_to_the_most() {
        let policy = Policy { slack: 10, calls_for_slack: 8, most_slack: 100, ..Policy::default() };
        for (overdrawn, thousandths) in
            [(0, 10), (7, 10), (8, 11), (80, 20), (719, 99), (720, 100), (800, 100)]
        {
            let budget = CallBudget { operations: 0, spent: policy.earned(0) + overdrawn };
            let allowed = policy.allowed(1_000_000, &budget);
            assert_eq!(allowed, 1_000_000 + 1000 * thousandths, "{overdrawn} calls overdrawn");
        }
        assert_eq!((policy.target(1_000_000), policy.most(1_000_000)), (1_010_000, 1_100_000));
        let wide = Policy { slack: 200, ..policy };
        assert_eq!((wide.target(1_000_000), wide.most(1_000_000)), (1_200_000, 1_200_000));
    }

    #[test]
    fn sizes_are_multiples_of_the_granularity_within_their_limits() {
        const MIB: u64 = 1 << 20;
        let policy = Policy::default();
        for (range, granularity, bytes) in [
            (0, 2, 2),
            (384, 2, 6),
            (448, 2, 6),
            (512, 2, 8),
            (1 << 20, 2, 32),
            (384, 64, 64),
            (1 << 20, 64, 64),
        ] {
            let grown = policy.spans_at_once(range * MIB, granularity * MIB);
            assert_eq!(grown, bytes * MIB, "a range of {range} MiB, granules of {granularity} MiB");
        }
        for (request, peak, granularity, bytes) in
            [(4, 8, 2, 6), (1024, 1024, 2, 60), (4, 65_536, 2, 30), (4, 8, 64, 64), (1024, 1024, 64, 64)]
        {
            let handle = policy.largest_handle(request * MIB, peak * MIB, granularity * MIB);
            assert_eq!(handle, bytes * MIB, "{request} of {peak} MiB, granules of {granularity} MiB");
        }
    }
}
