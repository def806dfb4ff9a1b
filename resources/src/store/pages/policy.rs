//! Decides how many driver calls the pool may spend to hold less memory, and how large handles are.

use crate::tuning::{CALLS_PER_THOUSAND, HANDLE_SHARE, Policy, SLACK};

/// Driver calls that the pool has earned and spent to hold less memory. Calls for growth to a new peak do not
/// count, since any pool has to make them.
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
        // The pool may owe as many calls as it may save, so that a busy phase leaves some calls for a quiet
        // one.
        let saved = policy.saved_calls;
        self.spent = self.spent.clamp(earned.saturating_sub(saved), earned.saturating_add(saved));
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

    /// Returns the calls that may be spent now, without the ones that only a new pool has: a first pass
    /// should be quick.
    pub(super) fn available_later(&self, policy: &Policy) -> u64 {
        self.available(policy).min(earned_steadily(self.operations))
    }

    /// Returns the number of calls spent beyond the earned ones.
    fn overdrawn(&self, policy: &Policy) -> u64 {
        self.spent.saturating_sub(policy.earned(self.operations))
    }
}

/// The most slack in thousandths.
const MOST_SLACK: u64 = 10 * SLACK;

fn earned_steadily(operations: u64) -> u64 {
    operations.saturating_mul(CALLS_PER_THOUSAND) / 1000
}

/// Returns the physical bytes that the pool aims not to exceed.
pub(super) fn target_bytes(peak_live: u64) -> u64 {
    peak_live + peak_live / 1000 * SLACK
}

/// Returns the most physical bytes that the pool takes to save driver calls.
pub(super) fn most_bytes(peak_live: u64) -> u64 {
    peak_live + peak_live / 1000 * MOST_SLACK
}

impl Policy {
    /// Returns the driver calls that a pool has earned after this many operations.
    fn earned(&self, operations: u64) -> u64 {
        self.saved_calls + earned_steadily(operations)
    }

    /// Returns the physical bytes up to which the pool grows rather than stitches blocks.
    ///
    /// If a program allocates and frees blocks of random sizes at its peak, the pool would have to stitch
    /// nearly every block, at about ten microseconds each. It takes more memory instead, until best fit
    /// serves.
    pub(super) fn allowed(&self, peak_live: u64, budget: &CallBudget) -> u64 {
        let more = (MOST_SLACK - SLACK).saturating_mul(budget.overdrawn(self)) / self.saved_calls;
        peak_live + peak_live / 1000 * (SLACK + more).min(MOST_SLACK)
    }

    /// Returns the most bytes of a new handle for a large block.
    pub(super) fn largest_handle(&self, request: u64, peak_live: u64, granularity: u64) -> u64 {
        let mean = (u128::from(request) * u128::from(peak_live)).isqrt() as u64;
        (mean / HANDLE_SHARE).max(self.handle_bytes).max(granularity) / granularity * granularity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_earn_calls_and_only_so_many_may_be_owed() {
        let policy = Policy::default();
        for (operations, earned) in [(0, 0), (999, 2), (1_000_000, 1000 * CALLS_PER_THOUSAND)] {
            assert_eq!(
                policy.earned(operations),
                policy.saved_calls + earned,
                "after {operations} operations"
            );
        }
        let mut budget = CallBudget::default();
        budget.spend(1_000_000);
        budget.note_operations(&policy, 0);
        assert_eq!(budget.overdrawn(&policy), policy.saved_calls);
    }

    #[test]
    fn calls_are_saved_up_to_the_most() {
        let policy = Policy { saved_calls: 100, ..Policy::default() };
        let mut budget = CallBudget::default();
        budget.spend(70);
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
        let policy = Policy { saved_calls: 720, ..Policy::default() };
        for (overdrawn, thousandths) in
            [(0, 10), (7, 10), (8, 11), (80, 20), (719, 99), (720, 100), (800, 100)]
        {
            let budget = CallBudget { operations: 0, spent: policy.earned(0) + overdrawn };
            let allowed = policy.allowed(1_000_000, &budget);
            assert_eq!(allowed, 1_000_000 + 1000 * thousandths, "{overdrawn} calls overdrawn");
        }
        assert_eq!((target_bytes(1_000_000), most_bytes(1_000_000)), (1_010_000, 1_100_000));
    }

    #[test]
    fn sizes_are_multiples_of_the_granularity_within_their_limits() {
        const MIB: u64 = 1 << 20;
        let policy = Policy::default();
        for (request, peak, granularity, bytes) in
            [(4, 8, 2, 6), (1024, 1024, 2, 60), (4, 65_536, 2, 30), (4, 8, 64, 64), (1024, 1024, 64, 64)]
        {
            let handle = policy.largest_handle(request * MIB, peak * MIB, granularity * MIB);
            assert_eq!(handle, bytes * MIB, "{request} of {peak} MiB, granules of {granularity} MiB");
        }
    }
}
