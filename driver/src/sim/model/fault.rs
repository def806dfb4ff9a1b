//! Makes chosen driver calls fail.

use millpond_core::DriverError;

use super::answer::Refusal;
use crate::CallKind;

/// A driver call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fault {
    /// Only calls of this kind count; `None` counts every call.
    kind: Option<CallKind>,
    /// Which of the counted calls fails: 0 is the first after the plan was set.
    nth: u64,
    /// The code of the failed call, as in [`DriverError::code`].
    code: i32,
    /// Whether all counted calls after it fail too.
    persistent: bool,
}

/// A plan that tells which driver calls fail. A failed call has no other effect.
///
/// After a [sticky](DriverError::is_sticky) error code, every later call fails with the same code, even if
/// the plan does not name the call. Calls of the kind [`CallKind::Other`] query versions and attributes. Such
/// calls fail only if the fault is [persistent](Self::persistent).
///
/// Every method of the driver that can fail counts as one call of its [`CallKind`], as in
/// [`CountingDriver`](crate::CountingDriver).
///
/// ```
/// use millpond_core::driver::{Driver, DriverError};
/// use millpond_driver::CallKind;
/// use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
///
/// let plan = FaultPlan::nth_of(CallKind::MemAlloc, 1, DriverError::OUT_OF_MEMORY);
/// let device = SimDevice::new(SimConfig::h200().faults(plan));
/// assert!(device.mem_alloc(256).is_ok());
/// assert!(device.mem_alloc(256).unwrap_err().is_out_of_memory());
/// assert!(device.mem_alloc(256).is_ok());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<Fault>,
}

impl FaultPlan {
    /// Creates a plan in which no call fails.
    pub const fn none() -> Self {
        Self { faults: Vec::new() }
    }

    /// Creates a plan in which the `n`-th driver call of any kind fails with `code`. The first call has the
    /// number 0.
    pub fn nth_call(n: u64, code: i32) -> Self {
        Self::of(None, n, code)
    }

    /// Creates a plan in which the `n`-th driver call of one kind fails with `code`. The first call has the
    /// number 0.
    pub fn nth_of(kind: CallKind, n: u64, code: i32) -> Self {
        Self::of(Some(kind), n, code)
    }

    fn of(kind: Option<CallKind>, nth: u64, code: i32) -> Self {
        Self { faults: vec![Fault { kind, nth, code, persistent: false }] }
    }

    /// Makes every fault of the plan persistent. After the planned call has failed, all later calls fail,
    /// too. If the fault names one kind of call, only later calls of this kind fail.
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.faults.iter_mut().for_each(|fault| fault.persistent = true);
        self
    }

    /// Returns a plan with the faults of `self` and `other`. If both plans fail the same call, the call fails
    /// with the code of `self`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.faults.extend(other.faults);
        self
    }
}

/// Counts calls and fails the ones that the plan names.
#[derive(Debug)]
pub(crate) struct Faults {
    plan: FaultPlan,
    calls: u64,
    of_kind: [u64; CallKind::ALL.len()],
    failed: [u64; CallKind::ALL.len()],
    sticky: Option<i32>,
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        const NONE: [u64; CallKind::ALL.len()] = [0; CallKind::ALL.len()];
        Self { plan, calls: 0, of_kind: NONE, failed: NONE, sticky: None }
    }

    /// How many calls of a kind were made to fail.
    pub(crate) const fn failed(&self, kind: CallKind) -> u64 {
        self.failed[kind as usize]
    }

    pub(crate) const fn is_lost(&self) -> bool {
        self.sticky.is_some()
    }

    /// Counts one call, and fails it if the plan names it.
    pub(crate) fn call(&mut self, kind: CallKind) -> Result<(), Refusal> {
        let (call, of_kind) = (self.calls, self.of_kind[kind as usize]);
        self.calls += 1;
        self.of_kind[kind as usize] += 1;
        if self.plan.faults.is_empty() && self.sticky.is_none() {
            return Ok(());
        }
        if let Some(code) = self.sticky.filter(|_| kind != CallKind::Other) {
            self.failed[kind as usize] += 1;
            return Err(Refusal::new(code, "an earlier failed call made the context unusable"));
        }
        let hit = self.plan.faults.iter().find(|fault| {
            let at = if fault.kind.is_some() { of_kind } else { call };
            fault.kind.is_none_or(|k| k == kind) && (at == fault.nth || (fault.persistent && at > fault.nth))
        });
        let Some(fault) = hit else { return Ok(()) };
        if DriverError::new(fault.code, "").is_sticky() {
            self.sticky = Some(fault.code);
        }
        self.failed[kind as usize] += 1;
        Err(Refusal::new(fault.code, "the fault plan fails this call"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(plan: FaultPlan, calls: &[CallKind]) -> Vec<Option<i32>> {
        let mut faults = Faults::new(plan);
        calls.iter().map(|kind| faults.call(*kind).err().map(|refusal| refusal.named("").code())).collect()
    }

    const CALLS: [CallKind; 5] =
        [CallKind::MemAlloc, CallKind::MemFree, CallKind::MemAlloc, CallKind::Other, CallKind::MemFree];

    #[test]
    fn counts_all_calls_or_those_of_a_kind() {
        assert_eq!(failing(FaultPlan::none(), &CALLS), [None; 5]);
        assert_eq!(failing(FaultPlan::nth_call(3, 1), &CALLS), [None, None, None, Some(1), None]);
        let plan = FaultPlan::nth_of(CallKind::MemFree, 1, 2);
        assert_eq!(failing(plan, &CALLS), [None, None, None, None, Some(2)]);
    }

    #[test]
    fn a_persistent_fault_stays_and_a_plain_one_passes() {
        let plan = FaultPlan::nth_of(CallKind::MemAlloc, 0, 2).persistent();
        assert_eq!(failing(plan.clone(), &CALLS), [Some(2), None, Some(2), None, None]);
        let both = plan.and(FaultPlan::nth_call(1, 1));
        assert_eq!(failing(both, &CALLS), [Some(2), Some(1), Some(2), None, None]);
    }

    #[test]
    fn a_sticky_code_stays_for_all_but_versions_and_attributes() {
        let plan = FaultPlan::nth_call(1, DriverError::ILLEGAL_ADDRESS);
        assert_eq!(failing(plan, &CALLS), [None, Some(700), Some(700), None, Some(700)]);
    }

    #[test]
    fn a_persistent_sticky_code_fails_versions_and_attributes_too() {
        let mut faults = Faults::new(FaultPlan::nth_call(1, DriverError::ECC_UNCORRECTABLE).persistent());
        let codes = CALLS.map(|kind| faults.call(kind).err().map(|refusal| refusal.named("").code()));
        assert_eq!(codes, [None, Some(214), Some(214), Some(214), Some(214)]);
        assert_eq!((faults.failed(CallKind::MemFree), faults.failed(CallKind::MemAlloc)), (2, 1));
    }
}
