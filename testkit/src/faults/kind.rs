//! The ways in which a driver call can fail.

use std::fmt;

use millpond_core::DriverError;
use millpond_driver::CallKind;
use millpond_driver::sim::FaultPlan;

/// If one of these calls fails, memory may be left.
pub(crate) const FREES: [CallKind; 6] = [
    CallKind::MemFree,
    CallKind::MemFreeAsync,
    CallKind::MemFreeHost,
    CallKind::MemRelease,
    CallKind::MemUnmap,
    CallKind::MemAddressFree,
];

/// A way in which a driver call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FaultKind {
    /// The name of the fault, as text for people.
    pub name: &'static str,
    /// The code of the failed call, as in [`DriverError::code`].
    pub code: i32,
    /// Whether all later calls also fail. After a sticky code they always fail, except calls that query
    /// versions and attributes.
    pub persistent: bool,
}

/// The ways in which each call fails.
pub const KINDS: [FaultKind; 7] = [
    FaultKind { name: "out of memory once", code: DriverError::OUT_OF_MEMORY, persistent: false },
    FaultKind { name: "out of memory from then on", code: DriverError::OUT_OF_MEMORY, persistent: true },
    FaultKind { name: "invalid value", code: DriverError::INVALID_VALUE, persistent: false },
    FaultKind { name: "invalid value from then on", code: DriverError::INVALID_VALUE, persistent: true },
    FaultKind { name: "not permitted", code: DriverError::NOT_PERMITTED, persistent: false },
    FaultKind { name: "sticky illegal address", code: DriverError::ILLEGAL_ADDRESS, persistent: false },
    FaultKind { name: "device lost", code: DriverError::ECC_UNCORRECTABLE, persistent: true },
];

impl FaultKind {
    /// Returns whether the device is lost for good.
    pub fn is_sticky(self) -> bool {
        DriverError::new(self.code, "").is_sticky()
    }

    /// Returns the plan that fails the call with this number, counted from 0, in this way.
    pub fn plan(self, call: u64) -> FaultPlan {
        let plan = FaultPlan::nth_call(call, self.code);
        if self.persistent { plan.persistent() } else { plan }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
